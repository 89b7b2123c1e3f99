"""Which tasks are late: held for much longer than such tasks usually take."""

import statistics
from collections.abc import Callable

from dipaco.control.database import Database
from dipaco.control.tasks import Task


def late_tasks(
    database: Database, worker: str, factor: float, is_waiting: Callable[[Task], bool]
) -> list[int]:
    """Numbers of the tasks that one other worker has held for `factor` times as long as a phase of
    their arm usually takes, the longest held first. One that `is_waiting` says waits for others is
    not late.
    """
    held = database.rows("single_claims", worker=worker)
    usual = {arm: _usual_seconds(database, arm) for arm in {arm for _, _, arm, *_ in held}}
    late = []
    for task_id, kind, arm, subject, phase, seconds in held:
        usual_seconds = usual[arm]
        is_late = usual_seconds is not None and seconds >= factor * usual_seconds
        if is_late and not is_waiting(Task(kind, arm, subject, phase)):
            late.append(task_id)
    return late


def _usual_seconds(database: Database, arm: str) -> float | None:
    """That a phase of a path takes; None while none is finished."""
    usual = [seconds for (seconds,) in database.rows("usual_seconds", arm=arm)]
    return statistics.median(usual) if usual else None
