"""Undoing: a path that a swarm trains is at an earlier step of its phase again."""

from dipaco.config import MODULAR
from dipaco.errors import WorkersActive
from dipaco.runs.run import Run
from dipaco.workers.errors import CannotUndo
from dipaco.workers.keeping import delete


def undo_steps(run: Run, path: int, step: int) -> None:
    """Puts a path that a swarm trains back to a step of its phase.

    Raises:
      CannotUndo: there is no snapshot of that step.
      WorkersActive: a backbone runs, or a worker holds a lease.
    """
    arm, facts = run.plan.arm(MODULAR), run.ledger.facts
    phase = run.ledger.progress.phases_reached(MODULAR, len(arm.topology.modules))
    saved, there = facts.partial_snapshots(MODULAR, path, max(phase, 0)), list[int]()
    if 0 <= phase < arm.phases and path not in facts.trained(MODULAR, phase):
        there = [arm.steps_before(phase), *(one.step for one in reversed(saved))]
    if step not in there:
        raise CannotUndo(path=path, step=step, there=", ".join(map(str, there)) or "none")
    if leading := list(run.ledger.swarms.backbones(MODULAR, path)):
        who = f"{', '.join(leading)} leads or follows its volunteers"
        raise WorkersActive(what="Going back", who=who)
    run.ledger.reaper.reap()
    run.ledger.swarms.undo(MODULAR, path, phase, step)
    gone = {one.receipt.name for one in saved if one.step > step}
    delete(run, lambda: gone, run.objects.delete)
