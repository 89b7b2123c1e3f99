"""Which snapshots of a path are sent to the run's bucket; the others stay on the disk of the
machine that made them (`retention.send_snapshots_every`). Pure.

A lost snapshot is made again by the task that made it, from the one before: so a path whose machine
is lost trains the phases since its last sent one again, from the modules that these phases began
from, to the same bits.
"""

from dipaco.control.plan import Arm


def is_sent(arm: Arm, path: int, phase: int, every: int) -> bool:
    """Whether a path's snapshot after a phase is: each `every`-th of the phases that the path takes
    part in, and the last.
    """
    return is_last(arm, path, phase) or _taken(arm, path, phase) % every == 0


def is_last(arm: Arm, path: int, phase: int) -> bool:
    """Whether a path takes part in no later phase."""
    return not any(path in arm.paths_in(at) for at in range(phase + 1, arm.phases))


def num_unsent(arm: Arm, path: int, phase: int, every: int) -> int:
    """How many phases of a path are lost with its machine, after a phase."""
    return 0 if is_sent(arm, path, phase, every) else _taken(arm, path, phase) % every


def num_taken_since(arm: Arm, path: int, phase: int, sent: int | None) -> int:
    """How many phases of a path are lost with its machine, after a phase, where the bucket's newest
    snapshot is that after `sent`; None = it has none.
    """
    before = 0 if sent is None else _taken(arm, path, sent)
    return _taken(arm, path, phase) - before


def _taken(arm: Arm, path: int, phase: int) -> int:
    """Phases that a path has taken part in, this one included."""
    return len(arm.phases_of(path, phase + 1))
