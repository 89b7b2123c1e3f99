"""Steps by speed: how many inner steps a path takes in a phase, where slow machines take fewer.

A path on a machine with the share `v / v_max` of the fastest one's tokens a second takes that share
of a phase's steps, so that all paths end a phase at about the same time. Speeds are those of the
workers in the phases before, as measured, with all that a phase takes beside its steps; a worker
that has not trained yet takes all of them. The number is decided when the path's task is first
begun, recorded, and never changes: a task that is done again, by any worker, takes as many.

Source: arXiv 2401.09135, "Dynamic Local Updates": floor(v / v_max * tau).
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dipaco.control.database import Database
from dipaco.control.plan import Arm
from dipaco.control.queue import key_of
from dipaco.control.retry import retried
from dipaco.control.tasks import Claim
from dipaco.errors import ClaimLost

WINDOW_PHASES = 3  # whose speeds count
ALIKE_SHARE = 0.95  # of the fastest worker's speed: a worker above it takes all steps


class DecidedSteps(NamedTuple):
    """The inner steps of a path in a phase."""

    path: int
    phase: int
    steps: int
    out_of: int  # that the phase has
    share: float  # of the fastest worker's tokens a second
    worker: str  # '': none had begun when the outer step needed the number


def steps_by_speed(share: float, all_steps: int, least_share: float) -> int:
    """Inner steps of a path whose worker has `share` of the fastest one's speed; at least one, and
    at least `least_share` of them.
    """
    if share >= ALIKE_SHARE:
        return all_steps
    least = max(1, math.ceil(round(least_share * all_steps, 9)))
    return min(all_steps, max(least, math.floor(share * all_steps)))


def speed_share(worker: str, measured: Sequence[tuple[str, float]]) -> float:
    """A worker's share of the fastest one's speed, by medians of (worker, tokens a second)."""
    by_worker: dict[str, list[float]] = {}
    for name, speed in measured:
        by_worker.setdefault(name, []).append(speed)
    speeds = {name: statistics.median(values) for name, values in by_worker.items()}
    return speeds[worker] / max(speeds.values()) if worker in speeds else 1.0


class PhaseSteps:
    """The inner steps of paths in the phases of one run."""

    def __init__(self, database: Database):
        self._database = database

    @retried
    def decide(self, claim: Claim, arm: Arm) -> int:
        """Inner steps of the claimed path and phase. Decided at the first call for them; later
        calls, under other claims too, return the same.

        Raises:
          ClaimLost: another worker holds the task. Nothing was changed.
        """
        task, database = claim.task, self._database
        of = {"arm": task.arm, "path": task.path, "phase": task.phase}
        with database.transaction():
            if database.one("holds_claim", **key_of(claim)) is None:
                raise ClaimLost(task=task)
            if database.one("get_phase_steps", **of) is None:
                window = {"first": task.phase - WINDOW_PHASES, "last": task.phase}
                measured = database.rows("measured_speeds", arm=task.arm, **window)
                share = speed_share(claim.worker, measured)
                out_of = arm.steps_in(task.phase)
                steps = steps_by_speed(share, out_of, arm.least_steps_share)
                decided = {"steps": steps, "out_of": out_of, "share": share}
                database.change("put_phase_steps", **of, **decided, worker=claim.worker)
            database.change("hand_phase_steps", **of, worker=claim.worker)
            ((steps,),) = database.rows("get_phase_steps", **of)
        return steps

    @retried
    def in_phase(self, arm: Arm, phase: int, paths: Sequence[int]) -> dict[int, int]:
        """Inner steps of these paths in a phase. Those that no worker has begun take all of them:
        with a quorum, a step needs to know what the contributions weigh that it does not wait for.
        """
        of = {"arm": arm.name, "phase": phase}
        decided = dict(self._database.rows("phase_steps_in", **of))
        missing = [path for path in paths if path not in decided]
        if missing:
            steps = arm.steps_in(phase)
            with self._database.transaction():
                for path in missing:
                    self._database.change(
                        "put_phase_steps",
                        **of,
                        path=path,
                        steps=steps,
                        out_of=steps,
                        share=1.0,
                        worker="",
                    )
            decided = dict(self._database.rows("phase_steps_in", **of))
        return {path: decided[path] for path in paths}

    def all(self, arm: str) -> dict[tuple[int, int], int]:
        """(path, phase) -> inner steps, as decided so far."""
        rows = self._database.rows("phase_steps", arm=arm)
        return {(path, phase): steps for path, phase, steps in rows}

    def taken_before(self, arm: Arm, path: int, phase: int) -> int:
        """Inner steps that a path has taken in the phases before one."""
        decided: dict[int, int] = {}
        if arm.has_fewer_steps:
            of = {"arm": arm.name, "path": path, "phase": phase}
            decided = dict(self._database.rows("phase_steps_before", **of))
        return sum(decided.get(at, arm.steps_in(at)) for at in arm.phases_of(path, phase))

    def newest(self, arm: str) -> list[DecidedSteps]:
        """Those of the last phase of every path."""
        return [DecidedSteps(*row) for row in self._database.rows("newest_phase_steps", arm=arm)]

    def num_left_out(self, arm: str) -> int:
        """Inner steps that an arm's paths have not taken, or will not, of phases so far."""
        ((count,),) = self._database.rows("steps_left_out", arm=arm)
        return count
