"""Paths of a release on the device, the few that were asked for last."""

import collections
from collections.abc import Callable, Iterable
from typing import Any

from dipaco.control.release import Release
from dipaco.runs.run import Run

MOST_PATHS = 4  # on the device at once

LogLikelihoods = Callable[[Any, Any], Any]  # as `ScoringPrograms.log_likelihoods`


class RecentPaths:
    """Reads a path when it is asked for, and lets go of the one that was not for longest."""

    def __init__(self, run: Run, release: Release):
        self._run, self._release = run, release
        self._held: collections.OrderedDict[int, LogLikelihoods] = collections.OrderedDict()

    def log_likelihoods(self, path: int) -> LogLikelihoods:
        """`ScoringPrograms.log_likelihoods` of a path. Raises as `Run.path_of`."""
        if path not in self._held:
            while len(self._held) >= MOST_PATHS:
                self._held.popitem(last=False)
            parts = self._run.path_of(self._release, path)
            self._held[path] = self._run.scoring_programs.log_likelihoods(parts)
        self._held.move_to_end(path)
        return self._held[path]

    def held_first(self, paths: Iterable[int]) -> list[int]:
        """An order in which fewest have to be read."""
        return sorted(paths, key=lambda path: (path not in self._held, path))
