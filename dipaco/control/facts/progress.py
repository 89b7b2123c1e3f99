"""Progress of a run and costs of its training, for `status`, the metrics and the report."""

import json
from typing import NamedTuple

from dipaco.control.database.contract import Database


class TrainingTotals(NamedTuple):
    """Costs of training an arm, over all its paths."""

    tokens: int
    seconds: float
    path_phases: int  # phases, counted once for each path that took part


class NewestModule(NamedTuple):
    """A module as it is now."""

    arm: str
    module: str
    phase: int
    digest: str


class NewestPhase(NamedTuple):
    """The last phase that a path went through."""

    arm: str
    path: int
    phase: int
    step: int  # Counted in the arm's schedule.
    loss: float | None  # Loss of the last inner step.
    tokens: int  # Sum over all its phases.


class RunProgress:
    """The progress of one run."""

    def __init__(self, database: Database):
        self._database = database

    def phases_reached(self, arm: str, num_modules: int) -> int:
        """The last phase that all modules of an arm have reached. -1 if there is none."""
        row = self._database.one("phases_reached", arm=arm, num_modules=num_modules)
        return -1 if row is None else row[0]

    def newest_modules(self) -> list[NewestModule]:
        """Every module of every arm."""
        return [NewestModule(*row) for row in self._database.rows("newest_modules")]

    def newest_phases(self) -> list[NewestPhase]:
        """Every path of every arm."""
        return [
            NewestPhase(arm, path, phase, step, next(iter(json.loads(losses)[-1:]), None), tokens)
            for arm, path, phase, step, losses, tokens in self._database.rows("newest_trained")
        ]

    def losses(self, arm: str) -> dict[int, list[float]]:
        """Training loss of every inner step, by path."""
        losses: dict[int, list[float]] = {}
        for path, values in self._database.rows("losses", arm=arm):
            losses.setdefault(path, []).extend(json.loads(values))
        return losses

    def training_totals(self, arm: str, before: int | None = None) -> TrainingTotals:
        """Sums over all phases, or over the phases before one."""
        if before is None:
            row = self._database.one("training_totals", arm=arm)
        else:
            row = self._database.one("training_totals_before", arm=arm, phase=before)
        assert row is not None
        return TrainingTotals(*row)

    def steps_in_partial_snapshots(self, arm: str) -> int:
        """Inner steps that are saved, of phases that are not finished."""
        rows = self._database.rows("partial_snapshot_losses", arm=arm)
        return sum(len(json.loads(losses)) for (losses,) in rows)

    def machines(self) -> dict[str, int]:
        """Kind of machine -> phases of paths that it trained."""
        return dict(self._database.rows("machines"))

    def newest_machines(self, most: int) -> dict[tuple[str, int], list[tuple[int, str]]]:
        """(arm, path) -> its newest phases, the newest first, each with the kind of machine that
        trained it.
        """
        newest: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for arm, path, phase, machine in self._database.rows("newest_machines", most=most):
            newest.setdefault((arm, path), []).append((phase, machine))
        return newest

    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes that were exchanged and written in the whole run."""
        return dict(self._database.rows("bytes_by_kind"))

    def tokens_by_arm(self) -> dict[str, int]:
        """Tokens that were trained on and recorded."""
        return dict(self._database.rows("tokens_by_arm"))
