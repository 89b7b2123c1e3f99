"""Path sampling: a share of the paths takes part in each phase (`outer.path_share`)."""

import array
import bisect
import functools
import hashlib
import threading
from collections.abc import Sequence


@functools.lru_cache(maxsize=1024)
def paths_drawn(num_paths: int, share: float, seed: int, phase: int) -> tuple[int, ...]:
    """The paths of a phase, ascending. Each phase has the same number of paths.

    The draw orders digests, so that every version of every library draws the same.
    """
    if share == 1:
        return tuple(range(num_paths))

    def lot(path: int) -> bytes:
        return hashlib.sha256(f"{seed} {phase} {path}".encode()).digest()

    return tuple(sorted(sorted(range(num_paths), key=lot)[: max(1, round(share * num_paths))]))


def phases_drawn(num_paths: int, share: float, seed: int, path: int, before: int) -> Sequence[int]:
    """The phases below `before` in which a path takes part, ascending."""
    return range(before) if share == 1 else _phases(num_paths, share, seed).of(path, before)


class _Phases:
    """The phases of every path, drawn as far as anyone has asked.

    A phase is drawn again if an interrupt came before all of its paths knew of it.
    """

    def __init__(self, num_paths: int, share: float, seed: int):
        self._draw = functools.partial(paths_drawn, num_paths, share, seed)
        self._guard = threading.Lock()
        self._by_path = [array.array("L") for _ in range(num_paths)]
        self._num_drawn = 0

    def of(self, path: int, before: int) -> Sequence[int]:
        with self._guard:
            while self._num_drawn < before:
                for each in self._draw(self._num_drawn):
                    known = self._by_path[each]
                    if not known or known[-1] < self._num_drawn:
                        known.append(self._num_drawn)
                self._num_drawn += 1
            phases = self._by_path[path]
            return phases[: bisect.bisect_left(phases, before)]


@functools.lru_cache(maxsize=64)
def _phases(num_paths: int, share: float, seed: int) -> _Phases:
    return _Phases(num_paths, share, seed)
