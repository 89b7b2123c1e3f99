"""Bytes that a machine receives and sends, and bytes that a run keeps, by kind.

All follow from the config, so that `dipaco plan`, the report, the dashboard and sweeps give the
same bytes for the same run. Training fetches modules and sends contributions and a snapshot. An
outer step fetches contributions and an outer state, and sends the module and its new outer state.
A path stays with its machine, which keeps its snapshot and its old modules. Any machine may
step a module, so the bytes are expectations over the machines that do. A module that has stepped
comes whole, or as the contributions of the other paths where these are fewer bytes. One of the
machines trains the base model, and sends each save of it.

Text, routing, evaluation and questions to the database are left out. So are rows of the vocabulary
that a contribution need not hold, which only the text can tell. `tests/system/test_interface.py`
compares with the counters of network interfaces, and `tools/bench_links.py` on slow links.
"""

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dipaco.config import DATA_PARALLEL, MODULAR, RunConfig
from dipaco.model.config import (
    ModelConfig,
    block_matrices,
    num_parameters,
    part_parameters,
)
from dipaco.outer.compress import BY_NAME, Codec, codec_of
from dipaco.topology import ModuleId

VALUE_BYTES = 4  # Parameters, inner and outer states are stored as float32.
# Orbax compresses a snapshot, the more zeros it holds the better. Measured shares: 0.8 for 0.1 M
# parameters after few steps, 0.85 to 0.93 for 0.84 M, 0.96 for 10 M.
SNAPSHOT_SHARE = 0.9
# A module is fetched as contributions if they are below this share of its bytes. A step also
# costs a pass over the module for each of them.
WORTH = 0.9
LEDGER_ROW_BYTES = (
    1200  # With indexes: 25 GB of 10,000 phases of 256 paths through 4 of 289 modules.
)
TRAFFIC_KINDS = ("modules", "contributions", "snapshots", "outer states")


class Traffic(NamedTuple):
    """Bytes over a machine's link."""

    down: float
    up: float

    def times(self, factor: float) -> "Traffic":
        return Traffic(factor * self.down, factor * self.up)


NOTHING = Traffic(0.0, 0.0)


def total(traffics: Iterable[Traffic]) -> Traffic:
    each = list(traffics)
    return Traffic(sum(one.down for one in each), sum(one.up for one in each))


def machines_at_work(config: RunConfig, workers: int) -> int:
    """Machines that train. The others wait, since a phase has one task for each path."""
    return min(workers, config.plan.arm(MODULAR).num_at_once)


def base_bytes(config: RunConfig) -> float:
    """Bytes that the machine which trains the base model sends: after each phase of it the model
    and the optimiser's state.
    """
    base, of_optimizer = config.plan.base, optimizer_bytes(config.model, config.inner.optimizer)
    sent = VALUE_BYTES * num_parameters(config.model) + SNAPSHOT_SHARE * of_optimizer
    return base.phases * sent if base.total_steps else 0.0


@functools.lru_cache(maxsize=4096)
def machine_bytes(
    config: RunConfig,
    arm_name: str,
    phase: int,
    of_base: float,
    workers: int | None = None,
    *,
    steps_elsewhere: bool = False,
) -> float:
    """Bytes through the network interface of the mean machine, down and up together, until an arm
    has come to a phase. 0 for a model that one machine trains.

    Args:
      of_base: bytes that the base model's machine has sent. All machines share them.
      workers: machines, each with one worker. None: one for each path of a phase.
      steps_elsewhere: executors beside the bucket step the modules.
    """
    paths, phases = config.plan.arm(MODULAR).num_at_once, range(phase)
    if paths == 1 or arm_name not in (MODULAR, DATA_PARALLEL):
        return 0.0
    machines = machines_at_work(config, paths if workers is None else workers)
    if not phases:
        return of_base / machines
    if arm_name == DATA_PARALLEL:
        traffic = lock_step_traffic(config, machines, phases)
    else:
        traffic = traffic_of_a_phase(
            config, machines, steps_elsewhere=steps_elsewhere, phases=phases
        )
    return of_base / machines + len(phases) * sum(total(traffic.values()))


def traffic_of_a_phase(
    config: RunConfig,
    workers: int,
    *,
    steps_elsewhere: bool = False,
    codec_name: str | None = None,
    phases: Sequence[int] | None = None,
) -> dict[str, Traffic]:
    """Bytes of the mean machine in the mean phase of the modular model, by kind.

    Args:
      workers: machines, each with one worker.
      steps_elsewhere: executors beside the bucket step the modules.
      codec_name: of contributions. None takes the config's.
      phases: the mean is over these. None takes all of the run.
    """
    arm = config.plan.arm(MODULAR)
    phases = range(arm.phases) if phases is None else phases
    if arm.is_synchronous:
        return lock_step_traffic(config, workers, phases, sum(module_parameters(config).values()))
    if arm.num_at_once == 1:  # It has nobody to exchange anything with.
        return dict.fromkeys(TRAFFIC_KINDS, NOTHING)
    machines = machines_at_work(config, workers)
    codec = BY_NAME[codec_name or config.outer.codec]
    parts = [_training(config, machines, codec, phases, steps_elsewhere=steps_elsewhere)]
    if not steps_elsewhere:
        parts.append(_stepping(config, machines, codec))
    return {kind: total(part[kind] for part in parts) for kind in TRAFFIC_KINDS}


def lock_step_traffic(
    config: RunConfig, workers: int, phases: Sequence[int], parameters: int | None = None
) -> dict[str, Traffic]:
    """Bytes of the mean machine of several that average float32 gradients at every step, in the
    mean phase, by kind. One of them sends the model and the optimiser's state after each phase.

    Args:
      parameters: of all modules. None: of one model.
    """
    machines = machines_at_work(config, workers)
    if machines == 1:
        return {"gradients": NOTHING}
    size = VALUE_BYTES * num_parameters(config.model)
    sent = size if parameters is None else VALUE_BYTES * parameters
    of_optimizer = sent / size * optimizer_bytes(config.model, config.inner.optimizer)
    begins = (0 in phases) / len(phases)  # share of the phases before which the base model comes
    return {
        "gradients": Traffic(size, size).times(config.inner.steps),
        "modules": Traffic((1 - 1 / machines) * begins * size, sent / machines),
        "snapshots": Traffic(0.0, SNAPSHOT_SHARE * of_optimizer / machines),
    }


def kept_bytes(config: RunConfig, phases: int | None = None) -> dict[str, int]:
    """Bytes of the modular model in the run's bucket or folder after so many phases, by kind. None
    takes all. With early stopping it is the most: each path of each release, and each path now, may
    be at its best in a phase of its own.
    """
    arm, keep = config.plan.arm(MODULAR), config.retention
    phases = arm.phases if phases is None else phases
    codec, sizes = codec_of(config.outer), module_parameters(config)
    newest = min(phases + 1, max(keep.num_modules, keep.send_snapshots_every + 1))
    releases = sum(arm.is_evaluated(phase) for phase in range(phases + 1 - newest))
    modules = sent = rows = 0.0
    for module in arm.topology.modules:
        at_best = len(arm.topology.paths_through(module)) if arm.hold_out else 0
        copies = min(phases + 1, newest + releases * (1 + at_best) + at_best)
        modules += copies * VALUE_BYTES * sizes[str(module)]
        sent += _sent_bytes(config, module, sizes[str(module)], codec)
        rows += _fan_in(config, module) + 2  # contributions, a task and a module
    snapshots = arm.topology.num_paths * min(phases, keep.num_snapshots)
    states = newest * VALUE_BYTES * sum(sizes.values()) if config.outer.momentum else 0
    return {
        "modules": round(modules),
        "contributions": round(min(phases, keep.num_contributions) * sent),
        "snapshots": round(snapshots * snapshot_bytes(config, codec)),
        "outer states": states,
        "ledger": round(phases * LEDGER_ROW_BYTES * (rows + 2 * arm.num_at_once)),
    }


def growth_bytes(config: RunConfig) -> int:
    """Bytes that a phase adds to those, in the mean of the run's second half: of releases, of rows
    of the ledger, and of all that is kept of every phase.
    """
    half = config.phases // 2
    at_half, at_end = (sum(kept_bytes(config, at).values()) for at in (half, config.phases))
    return round((at_end - at_half) / (config.phases - half))


def token_bytes(config: RunConfig) -> int:
    """Most bytes of text that one path fetches. A shard that is read again is fetched once."""
    arm = config.plan.arm(MODULAR)
    of_token = 2 if config.model.vocab_size <= 1 << 16 else 4
    return arm.total_steps * config.inner.batch_size * config.data.length * of_token


@functools.lru_cache(maxsize=64)
def module_parameters(config: RunConfig) -> dict[str, int]:
    """The number of parameters of each module."""
    sizes = config.topology.module_sizes(part_parameters(config.model))
    return {str(module): size for module, size in sizes.items()}


def snapshot_bytes(config: RunConfig, codec: Codec) -> float:
    """Bytes of a path's snapshot: the optimiser's, the codec's residual, its own parameters."""
    others = codec.is_lossy + (config.outer.delay > 0)
    whole = VALUE_BYTES * num_parameters(config.model)
    return SNAPSHOT_SHARE * (optimizer_bytes(config.model, config.inner.optimizer) + others * whole)


def optimizer_bytes(model: ModelConfig, optimizer: str) -> int:
    """Bytes of an inner optimiser's state: two moments of each parameter, but one where Muon is."""
    of_muon = model.num_layers * block_matrices(model) if optimizer == "muon" else 0
    return VALUE_BYTES * (2 * num_parameters(model) - of_muon)


def _training(
    config: RunConfig, machines: int, codec: Codec, phases: Sequence[int], *, steps_elsewhere: bool
) -> dict[str, Traffic]:
    """Bytes of the mean machine for the paths that it trains."""
    sizes, arm = module_parameters(config), config.plan.arm(MODULAR)
    paths_here = arm.num_at_once / machines
    fetched_share = 1 if steps_elsewhere else 1 - 1 / machines  # another machine stepped the module
    # Before the first phase no machine has any module. A later phase fetches the modules
    # that stepped after the phase before.
    before = [phase - 1 for phase in phases if phase > 0]
    first = 1 - len(before) / len(phases)
    modules = sum(
        _is_here(config, module, paths_here)
        * (
            first * VALUE_BYTES * sizes[str(module)]
            + (1 - first) * _fetched_bytes(config, module, sizes[str(module)], codec, paths_here)
        )
        for module in arm.topology.modules
    )
    contributions = sum(
        _sent_bytes(config, module, sizes[str(module)], codec) for module in arm.topology.modules
    )
    snapshot = snapshot_bytes(config, codec) * _sent_share(config, phases)
    return {
        "modules": Traffic(fetched_share * modules, 0.0),
        "contributions": Traffic(0.0, contributions / machines),
        "snapshots": Traffic(0.0, paths_here * snapshot),
        "outer states": NOTHING,
    }


def steps_bytes(
    config: RunConfig,
    workers: int,
    *,
    steps_elsewhere: bool = False,
    codec_name: str | None = None,
) -> dict[str, float]:
    """Bytes, down and up, of each module's outer step over the link of the machine that takes it,
    or of an executor. Empty if nothing goes over links for it.
    """
    if not config.plan.arm(MODULAR).has_outer_steps or workers == 1:
        return {}
    machines = machines_at_work(config, workers)
    codec = BY_NAME[codec_name or config.outer.codec]
    return {
        str(module): sum(
            total(_step_of(config, module, machines, codec, elsewhere=steps_elsewhere).values())
        )
        for module in config.topology.modules
    }


def largest_of(steps: Mapping[str, float]) -> tuple[str, float]:
    """The module whose step takes most bytes, and these. No name if there is none."""
    return max(steps.items(), key=operator.itemgetter(1), default=("", 0.0))


def _stepping(config: RunConfig, machines: int, codec: Codec) -> dict[str, Traffic]:
    """Bytes of the mean machine for the modules that it steps."""
    costs = [_step_of(config, module, machines, codec) for module in config.topology.modules]
    return {kind: total(each[kind] for each in costs).times(1 / machines) for kind in TRAFFIC_KINDS}


def _step_of(
    config: RunConfig, module: ModuleId, machines: int, codec: Codec, *, elsewhere: bool = False
) -> dict[str, Traffic]:
    """Bytes of a module's step for one of the machines, or for an executor beside them."""
    size = module_parameters(config)[str(module)]
    whole = VALUE_BYTES * size
    state = whole if config.outer.momentum else 0
    others = 1.0 if elsewhere else 1 - 1 / machines  # share that is elsewhere
    paths_here = config.plan.arm(MODULAR).num_at_once / machines
    is_here = 0.0 if elsewhere else _is_here(config, module, paths_here)
    # A machine that computes the steps of its modules from contributions has their states.
    comes_whole = _fetched_bytes(config, module, size, codec, paths_here) == whole
    has_state = 0.0 if comes_whole else is_here
    return {
        "modules": Traffic(others * (1 - is_here) * whole, whole),
        "contributions": Traffic(others * _sent_bytes(config, module, size, codec), 0.0),
        "snapshots": NOTHING,
        "outer states": Traffic(others * (1 - has_state) * state, state),
    }


def _fetched_bytes(
    config: RunConfig, module: ModuleId, size: int, codec: Codec, paths_here: float
) -> float:
    """Bytes of a module after its step: whole, or the messages of the paths of other machines."""
    fan_in, whole = _fan_in(config, module), VALUE_BYTES * size
    own = max(1.0, paths_here * fan_in / config.plan.arm(MODULAR).num_at_once)
    messages = max(0.0, fan_in - own) * size * codec.bits_per_value / 8
    return messages if messages < WORTH * whole else whole


def _sent_bytes(config: RunConfig, module: ModuleId, size: int, codec: Codec) -> float:
    """Bytes of the contributions of all paths to a module's step."""
    return _fan_in(config, module) * size * codec.bits_per_value / 8


def _fan_in(config: RunConfig, module: ModuleId) -> float:
    """Paths through a module that take part in a phase, in the mean."""
    return config.plan.arm(MODULAR).num_at_once * _through(config, module)


def _is_here(config: RunConfig, module: ModuleId, paths_here: float) -> float:
    """The chance that a machine with so many paths trains a path through the module."""
    through = _through(config, module)
    return 1 - (1 - through) ** paths_here if paths_here > 1 else paths_here * through


def _through(config: RunConfig, module: ModuleId) -> float:
    """The share of the paths that go through a module."""
    return len(config.topology.paths_through(module)) / config.topology.num_paths


def _sent_share(config: RunConfig, phases: Sequence[int]) -> float:
    """The share of phases after which snapshots go to the bucket: every n-th, and the last."""
    every, last = config.retention.send_snapshots_every, config.plan.arm(MODULAR).phases
    return _mean(phase + 1 == last or (phase + 1) % every == 0 for phase in phases)


def _mean(values: Iterable[float]) -> float:
    each = list(values)
    return sum(each) / len(each)
