"""Retention: the objects that are kept though no task will read them again. More costs disk, lets a
run go back further (`dipaco rollback`) and makes lost objects cheaper to recompute. By default a
run can take back its two newest phases.
"""

import dataclasses
from typing import Annotated

from annotated_types import Ge

from dipaco.settings import Count, check_values

EVERYTHING = 1_000_000_000  # phases; more than any run has


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    """Number of kept objects, counted from the newest. None = all. Changes no result.

    A module of a phase that is evaluated belongs to a release, and is always kept. So is one that a
    path was at its best with, if it stops early.
    """

    snapshots: Count | None = 3
    """Phases of which every path's snapshot is kept; with 1, a damaged one is recomputed from the
    start. Once the run is finished one fewer, but at least one."""
    send_snapshots_every: Count = 1
    """Phases of a path from one snapshot that is sent to the run's bucket to the next. Those
    between stay on the disk of the machine that made them: if that is lost, the path trains these
    phases again, to the same bits. A run in a folder keeps them all there."""
    contributions: Count | None = 2
    """Phases of which the contributions to every module are kept, the phase that is going on
    included; with 1, a damaged one is recomputed from the start. Once the run is finished none but
    those that its way back needs."""
    modules: Annotated[int, Ge(2)] | None = 3
    """Phases of which modules and their outer state are kept: how far `dipaco rollback` goes
    back. Phases that would be trained again from them stay as well (`send_snapshots_every`). Once
    the run is finished, outer states are kept as snapshots are."""

    def __post_init__(self):
        check_values(self, "retention")

    @property
    def most_unsent(self) -> int:
        """The most phases of a path whose snapshots are on one machine's disk alone."""
        return self.send_snapshots_every - 1

    @property
    def num_snapshots(self) -> int:
        return EVERYTHING if self.snapshots is None else self.snapshots

    @property
    def num_finished_snapshots(self) -> int:
        """Number of kept snapshots of every path of a finished run."""
        return EVERYTHING if self.snapshots is None else max(1, self.snapshots - 1)

    @property
    def num_contributions(self) -> int:
        return EVERYTHING if self.contributions is None else self.contributions

    @property
    def num_modules(self) -> int:
        return EVERYTHING if self.modules is None else self.modules
