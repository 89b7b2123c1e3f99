"""Whether a path's snapshot is sent to the run's bucket after a phase."""

import jax

from dipaco.control.plan import Arm
from dipaco.control.sent_snapshots import is_sent
from dipaco.runs.run import Run


def sends_snapshot(run: Run, arm: Arm, path: int, phase: int) -> bool:
    """By the setting, or because another machine asks for it: one of several hosts, or one that
    found it lost and has the phase trained again.
    """
    every = run.config.retention.send_snapshots_every
    if every == 1 or arm.name == run.plan.base.name or jax.process_count() > 1:
        return True
    is_done_again = path in run.ledger.facts.trained(arm.name, phase)
    return is_done_again or is_sent(arm, path, phase, every)
