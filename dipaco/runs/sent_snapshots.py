"""The snapshots that go to the run's bucket: every n-th of each path, and its last
(`retention.send_snapshots_every`).

A snapshot is most of what a machine sends. Sent snapshots are in the bucket before their phase is
recorded. The others stay on the disk of the machine that made them. If that disk is lost, the path
trains the phases since its last sent snapshot again, from the modules that these phases began from,
to the same bits. A run in a folder has all its snapshots there.
"""

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import Task
from dipaco.runs.run import Run
from dipaco.schedule.arm import Arm


def sends_snapshot(run: Run, arm: Arm, path: int, phase: int) -> bool:
    """True if a worker sends the snapshot that it makes of a path after a phase. A phase that is
    trained again is always sent: its snapshot was lost, and another machine asks for it.
    """
    every = run.config.retention.send_snapshots_every
    if every == 1 or arm.name == run.plan.base.name or is_sent(arm, path, phase, every):
        return True
    return path in run.ledger.facts.trained(arm.name, phase)


def superseded_snapshots(run: Run, task: Task) -> list[str]:
    """Names of the snapshots that a path needs no longer once this phase of it is recorded. A
    sent one stays until snapshots of enough later phases were sent too.
    """
    arm, keep = run.plan.arm(task.arm), run.config.retention
    of, every = (arm.name, task.path, task.phase), keep.send_snapshots_every
    superseded = run.ledger.retention.superseded_snapshots
    names = superseded(*of, keep.num_snapshots)
    if run.objects.remote is None or every == 1 or arm.name == run.plan.base.name:
        return names
    phase: int | None = task.phase
    for _ in range(keep.num_snapshots if names else 0):
        phase = None if phase is None else arm.trained_before(task.path, phase)
    if phase is not None and is_sent(arm, task.path, phase, every):
        names = []
    return names + superseded(*of, keep.num_snapshots * every)


def unsent_phases(run: Run) -> dict[str, int]:
    """Path of the modular model -> phases that it trains again if its machine is lost now. Paths
    that would lose none are left out.
    """
    arm, every = run.plan.arm(MODULAR), run.config.retention.send_snapshots_every
    if run.objects.remote is None or every == 1:
        return {}
    phases = {
        str(each.path): num_unsent(arm, each.path, each.phase, every)
        for each in run.ledger.progress.newest_phases()
        if each.arm == MODULAR
    }
    return {path: number for path, number in phases.items() if number}


def paths_of_other_machines(run: Run, machine: str) -> set[tuple[str, int]]:
    """(arm, path) of which a phase that is on one disk alone was trained by another kind of machine
    than this one, which cannot make its bits.
    """
    every = run.config.retention.send_snapshots_every
    if run.objects.remote is None or every == 1:
        return set()
    found = set()
    for (arm, path), phases in run.ledger.progress.newest_machines(every - 1).items():
        (newest, _), *_ = phases
        unsent = num_unsent(run.plan.arm(arm), path, newest, every)
        if arm != run.plan.base.name and any(of != machine for _, of in phases[:unsent]):
            found.add((arm, path))
    return found


def is_sent(arm: Arm, path: int, phase: int, every: int) -> bool:
    """True if the setting asks for a path's snapshot after a phase: every n-th of the phases that
    the path takes part in, and the last.
    """
    if _taken(arm, path, phase) % every == 0:
        return True
    return not any(path in arm.paths_in(at) for at in range(phase + 1, arm.phases))


def num_unsent(arm: Arm, path: int, phase: int, every: int) -> int:
    """Phases of a path whose snapshots, after this phase, are on one disk alone."""
    return 0 if is_sent(arm, path, phase, every) else _taken(arm, path, phase) % every


def _taken(arm: Arm, path: int, phase: int) -> int:
    """Phases that a path has taken part in, this one included."""
    return sum(path in arm.paths_in(at) for at in range(phase + 1))
