"""The path store of a front end: what its replicas hold, as they report it."""

import contextlib
from collections.abc import Set
from contextlib import AbstractContextManager
from typing import NamedTuple

from dipaco.serving.path_cache import CacheStats, Modules, PathPin
from dipaco.serving_cluster.remote_loop import RemoteLoop


class RemoteCache(NamedTuple):
    """The path store of a front end, which holds nothing: replicas cache their own paths."""

    loop: RemoteLoop

    @property
    def max_bytes(self) -> int:
        """Of all replicas that answer."""
        return sum(stats.max_bytes for stats in self.loop.present())

    @property
    def holds_parts(self) -> bool:
        """Whether `pin` gives parameters: False, they are at the replicas."""
        return False

    def pin(self, modules: Modules) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def contains(self, modules: Modules) -> bool:
        return True

    def has_room(self, modules: Modules) -> bool:
        return True

    def count_lookup(self, modules: Modules) -> None:
        """Replicas count for themselves."""

    def memory_of(self, modules: Modules) -> int:
        return 0

    def reserve(self, modules: Modules, kept: Set[str] = frozenset()) -> PathPin:
        return PathPin(dict, lambda: None)

    def stats(self) -> CacheStats:
        """All replicas together, as of their last updates; counts also of those that are gone."""
        ever = [stats.cache for stats in list(self.loop.replica_stats.values())]
        present = [stats.cache for stats in self.loop.present()]
        return _sums(present)._replace(
            hits=sum(one.hits for one in ever),
            misses=sum(one.misses for one in ever),
            evictions=sum(one.evictions for one in ever),
        )


def _sums(stats: list[CacheStats]) -> CacheStats:
    return CacheStats(*map(sum, zip(*stats, strict=True))) if stats else CacheStats(*[0] * 7)
