"""What each row of the pool holds, so that a prompt is read only from where no row has it.

A row keeps its content when its request ends: prompt and answer. The next turn of a chat begins
with both, so only what is new in it is read. Found by the longest common beginning, token by token:
there are as many texts as rows, and comparing a thousand tokens takes two microseconds.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from dipaco.serving.decoding.waiting_requests import PathKey


class Beginning(NamedTuple):
    """The row whose text begins most like a prompt."""

    pool_row: int
    length: int  # tokens that are the same
    is_all: bool  # whether that is the row's whole text


class CachedTexts:
    """The tokens that rows have in the cache, and of which path they are."""

    def __init__(self):
        self._texts: dict[int, tuple[PathKey, np.ndarray]] = {}

    def put(self, pool_row: int, path: PathKey, tokens: Sequence[int]) -> None:
        """The row now has these tokens, from its first slot on."""
        self._texts[pool_row] = path, np.array(tokens, np.int32)

    def longest(
        self, path: PathKey, tokens: Sequence[int], free: Collection[int]
    ) -> Beginning | None:
        """The row of a path with the most of a prompt. Of equals, a free one that has nothing else:
        it can be taken as it is.
        """
        wanted = np.array(tokens, np.int32)
        found = [
            Beginning(row, length, length == len(text))
            for row, (owner, text) in self._texts.items()
            if owner == path and (length := _num_common(text, wanted))
        ]
        key = lambda each: (each.length, each.is_all and each.pool_row in free)  # noqa: E731
        return max(found, key=key, default=None)


def _num_common(a: np.ndarray, b: np.ndarray) -> int:
    shortest = min(len(a), len(b))
    differs = a[:shortest] != b[:shortest]
    return int(np.argmax(differs)) if differs.any() else shortest
