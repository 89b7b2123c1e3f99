"""Which tasks are late: held for much longer than such tasks usually take."""

import statistics
from collections.abc import Callable, Iterable

from dipaco.control.database import Database
from dipaco.control.tasks import Task


def late_tasks(
    database: Database, worker: str, factor: float, is_waiting: Callable[[Task], bool]
) -> list[int]:
    """Numbers of the tasks that one other worker has held for `factor` times as long as a phase of
    their arm usually takes, the longest held first. One that `is_waiting` says waits for others is
    not late, nor is one of a path that trains an earlier phase again: what a second worker needs
    for it is being made.
    """
    held = database.rows("single_claims", worker=worker, factor=factor)
    usual = {arm: usual_seconds(database, [arm]) for arm in {arm for _, _, arm, *_ in held}}
    late = []
    for task_id, kind, arm, subject, phase, seconds in held:
        of_phase = usual[arm]
        is_late = of_phase is not None and seconds >= factor * of_phase
        task = Task(kind, arm, subject, phase)
        if is_late and not is_waiting(task) and not _is_being_prepared(database, task):
            late.append(task_id)
    return late


def _is_being_prepared(database: Database, task: Task) -> bool:
    return database.one("has_earlier_phase", **task._asdict()) is not None


def usual_seconds(database: Database, arms: Iterable[str]) -> float | None:
    """That a phase of a path takes, in the slowest of these arms; None while none is finished."""
    medians = [
        statistics.median(seconds)
        for arm in arms
        if (seconds := [taken for (taken,) in database.rows("usual_seconds", arm=arm)])
    ]
    return max(medians, default=None)
