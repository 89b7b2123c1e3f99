"""The snapshots in what a phase costs a machine: their bytes, and which phases send one."""

from collections.abc import Sequence

from dipaco.config import MODULAR, RunConfig
from dipaco.model.config import num_parameters
from dipaco.outer.compress import Codec

VALUE_BYTES = 4  # of a parameter, whatever it computes in; of AdamW's and the outer states' too
ADAMW_VALUES = 2  # for each parameter
# Of AdamW's state and what else is in it: Orbax compresses them, the more of them are zeros. It was
# 0.8 of 0.1 M parameters after few steps, 0.85 to 0.93 of 0.84 M, 0.96 of 10 M.
SNAPSHOT_SHARE = 0.9


def snapshot_bytes(config: RunConfig, codec: Codec) -> float:
    """Of a path's snapshot with this codec."""
    of_others = codec.is_lossy + config.plan.arm(MODULAR).keeps_own  # the last: its own parameters
    values = num_parameters(config.model) * (ADAMW_VALUES + of_others)
    return SNAPSHOT_SHARE * VALUE_BYTES * values


def sent_share(config: RunConfig, phases: Sequence[int]) -> float:
    """The share of phases after which snapshots go to the bucket: every n-th, and the last."""
    every, last = config.retention.send_snapshots_every, config.plan.arm(MODULAR).phases
    sent = [phase + 1 == last or (phase + 1) % every == 0 for phase in phases]
    return sum(sent) / len(sent)
