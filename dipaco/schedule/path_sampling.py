"""Path sampling: a share of the paths takes part in each phase (`outer.path_share`)."""

import functools
import hashlib


@functools.cache
def paths_drawn(num_paths: int, share: float, seed: int, phase: int) -> tuple[int, ...]:
    """The paths of a phase, ascending. Each phase has the same number of paths.

    The draw orders digests, so that every version of every library draws the same.
    """
    if share == 1:
        return tuple(range(num_paths))

    def lot(path: int) -> bytes:
        return hashlib.sha256(f"{seed} {phase} {path}".encode()).digest()

    return tuple(sorted(sorted(range(num_paths), key=lot)[: max(1, round(share * num_paths))]))
