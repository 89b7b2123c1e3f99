"""Facts of a task that was done again: which of them stand, and which replace what was recorded.

Tasks are deterministic on machines of one kind, so a fact comes again with the same bytes. A
machine of another kind makes others. They are as good as long as nothing was made of the first
ones, and then replace them: otherwise a run on machines of several kinds could never be mended.
What a module or a later phase was made of stays as it is recorded. Everything here runs inside the
caller's transaction.
"""

import json
from typing import Any

from dipaco.control.database.contract import Database
from dipaco.control.errors import NotReproduced
from dipaco.control.facts.recording import name_of_slice, table_of
from dipaco.control.planning.tasks import (
    Contribution,
    Evaluated,
    Fact,
    ModuleReady,
    PathChecked,
    PathLabelled,
    PathScored,
    PathTrained,
    Sampled,
    SliceDone,
    StageDone,
    Task,
)


def stands(database: Database, task: Task, fact: Fact) -> bool:
    """True if the recorded fact stands, so that the fact of a task done again is not recorded. A
    fact that does not stand is dropped here.

    Raises:
      NotReproduced: it is recorded with other bytes, and something that was made of these is needed
        again.
    """
    match fact:
        case ModuleReady():
            what = {"arm": fact.arm, "module": str(fact.module), "phase": fact.phase}
            row = database.one("get_module", **what)
            known = None if row is None else row[1]
            new = fact.parameters.digest
        case Contribution():
            return _contribution_stands(database, task, fact)
        case PathTrained():
            return _trained_stands(database, task, fact)
        case StageDone() | SliceDone():
            is_slice = isinstance(fact, SliceDone)
            stage = name_of_slice(fact) if is_slice else fact.stage
            row = database.one("get_stage", stage=stage, phase=0 if is_slice else fact.phase)
            known = None if row is None else _digests(json.loads(row[0]))
            new = known if stage == "report" else _digests(fact.artifacts)
        case PathScored() | PathLabelled():
            what = {"arm": fact.arm, "path": fact.path, "phase": fact.phase}
            row = database.one(f"get_likelihoods {table_of(fact)}", **what)
            known = None if row is None else row[0]
            new = fact.scores.digest
        case PathChecked():
            what = {"arm": fact.arm, "path": fact.path, "phase": fact.phase}
            row = database.one("get_check", **what)
            known = new = None
        case Evaluated() | Sampled():
            table = "evaluations" if isinstance(fact, Evaluated) else "samples"
            row = database.one(f"has_rows {table}", arm=fact.arm, phase=fact.phase)
            known = new = None
    if row is not None and known != new:
        raise NotReproduced(task=task, known=known, new=new)
    return row is not None


def _contribution_stands(database: Database, task: Task, fact: Contribution) -> bool:
    what = {"arm": fact.arm, "module": str(fact.module), "phase": fact.phase, "path": fact.path}
    row = database.one("get_contribution", **what)
    if row is None or row[0] == fact.message.digest:
        return row is not None
    step = database.one("step_of_contribution", **what)
    assert step is not None
    database.rows("lock_step", arm=fact.arm, module=str(fact.module), phase=step[0])
    found = database.one("state_of_step", arm=fact.arm, module=str(fact.module), phase=step[0])
    assert found is not None
    return _stands(database, "drop_contribution", what, found, task, row[0], fact.message.digest)


def _trained_stands(database: Database, task: Task, fact: PathTrained) -> bool:
    what = {"arm": fact.arm, "path": fact.path, "phase": fact.phase}
    row = database.one("get_trained", **what)
    if row is None:
        return False
    if row[1] == fact.snapshot.digest:
        # Each attempt writes its snapshot into a new folder.
        database.change("move_snapshot", **what, name=fact.snapshot.name)
        return True
    database.rows("lock_later_phases", arm=fact.arm, subject=str(fact.path), phase=fact.phase)
    found = database.one("state_of_later_phases", **what, subject=str(fact.path))
    assert found is not None
    return _stands(database, "drop_phase trained", what, found, task, row[1], fact.snapshot.digest)


def _stands(
    database: Database,
    drop: str,
    what: dict[str, Any],
    found: tuple,
    task: Task,
    known: str,
    new: str,
) -> bool:
    """True if a row stands though its task has made other bytes; dropped if not.

    Args:
      drop: the statement that drops it.
      what: names the row.
      found: whether something is recorded that was made of it, and the number of tasks that make
        such things now, and that are to make them again.
    """
    is_used, being_made, to_be_made = found
    if is_used and to_be_made:
        raise NotReproduced(task=task, known=known, new=new)
    if is_used or being_made:
        return True
    database.change(drop, **what)
    return False


def _digests(artifacts: Any) -> dict[str, str]:
    return {name: receipt[1] for name, receipt in artifacts.items()}
