"""When a path's snapshot after a phase is sent to the run's bucket: before the phase is recorded,
while training goes on, or never.
"""

import jax

from dipaco.control.plan import Arm
from dipaco.control.sent_snapshots import is_last, is_sent
from dipaco.runs.run import Run


def sends_snapshot(run: Run, arm: Arm, path: int, phase: int) -> bool:
    """Whether before the phase is recorded: by the setting, because it is the path's last, or
    because another machine asks for it: one of several hosts, or one that found it lost and has the
    phase trained again.
    """
    keep = run.config.retention
    if keep.usually_unsent == 0 or arm.name == run.plan.base.name or jax.process_count() > 1:
        return True
    is_done_again = path in run.ledger.facts.trained(arm.name, phase)
    if sends_while_training(run, arm):
        return is_done_again or is_last(arm, path, phase)
    return is_done_again or is_sent(arm, path, phase, keep.send_snapshots_every)


def sends_while_training(run: Run, arm: Arm) -> bool:
    """Whether snapshots of an arm's paths are sent while training goes on
    (`background_sending.py`).
    """
    is_asked = run.config.retention.send_snapshots == "while_training"
    has_own_tasks = arm.name != run.plan.base.name and not arm.is_synchronous
    return is_asked and has_own_tasks and run.objects.remote is not None
