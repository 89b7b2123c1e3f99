"""Paths on the device, assembled on demand; the least recently used are evicted to make room.

The cache holds modules by digest: paths that share a module, and releases that did not change it,
share one copy, and a path is a union of modules without copying. So a run that is larger than the
device can be served. A *pinned* path is in use and is not evicted; when only pinned paths are left,
`NoRoomForPath` asks the caller to try again after a pin is released.
"""

import contextlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from dipaco.receipt import Receipt
from dipaco.serving.errors import NoRoomForPath, PathCacheTooSmall
from dipaco.topology import ModuleId, assemble

Parts = Mapping[str, Any]
Modules = Mapping[ModuleId, Receipt]  # the modules of a path, and where each is stored


class CacheStats(NamedTuple):
    """What a cache holds now, and its counts since it began."""

    paths: int  # assembled
    pinned: int  # of them, in use
    modules: int  # held
    num_bytes: int  # of all modules held
    hits: int  # pins that read nothing
    misses: int  # pins that read modules
    evictions: int  # paths evicted


class PathCache:
    """Every method may be called from any thread.

    Args:
      load: reads a module and puts it on the device; raises if it is missing or damaged.
      max_bytes: of all modules held; never exceeded.
      on_cold: called with the seconds it took to load a path that was not cached.
      num_bytes_of: of a module as `load` gave it; None = as many as it takes on disk.
    """

    def __init__(
        self,
        load: Callable[[Receipt], Parts],
        max_bytes: int,
        on_cold: Callable[[float], object] = lambda seconds: None,
        num_bytes_of: Callable[[Parts], int] | None = None,
    ):
        self.max_bytes = max_bytes
        self._num_bytes_of = num_bytes_of
        self._load, self._on_cold = load, on_cold
        self._lock = threading.Lock()  # of the state below; never held while a file is read
        self._reading = threading.Lock()  # one path is read at a time; only its reader evicts
        self._modules: dict[str, Parts] = {}  # digest -> its parts, on the device
        self._sizes: dict[str, int] = {}  # digest -> bytes
        self._known_sizes: dict[str, int] = {}  # of every module that was ever held
        # A path is keyed by the digests of its modules; the least recently used comes first.
        self._paths: OrderedDict[tuple[str, ...], Parts] = OrderedDict()
        self._pins: Counter[tuple[str, ...]] = Counter()
        self._hits = self._misses = self._evictions = 0

    @property
    def holds_parts(self) -> bool:
        """Whether `pin` gives parameters: True, since it is in this process."""
        return True

    @contextlib.contextmanager
    def pin(self, modules: Modules) -> Generator[Parts]:
        """The parts of a path, kept in memory while the context is open.

        Raises:
          NoRoomForPath: every cached path is in use; try again when one is unpinned.
          PathCacheTooSmall: the path alone is larger than the cache.
          ObjectMissing, ObjectDamaged: a module cannot be read.
        """
        key = _key(modules)
        parts = self._pin_cached(key, modules) or self._pin_cold(key, modules)
        try:
            yield parts
        finally:
            with self._lock:
                self._pins[key] -= 1
                self._pins += Counter()  # drops zeros

    def contains(self, modules: Modules) -> bool:
        """Whether pinning the path now would read nothing: its modules are in memory."""
        with self._lock:
            return self._modules.keys() >= set(_key(modules))

    def fits(self, modules: Modules) -> bool:
        """Whether there is room for the path now, beside those in use. Also True if there is never
        enough: `pin` says so.
        """
        wanted = {receipt.digest: self._size_of(receipt) for receipt in modules.values()}
        with self._lock:
            used = {digest: self._sizes[digest] for key in self._pins for digest in key}
        alone = sum(wanted.values())
        return alone > self.max_bytes or sum((used | wanted).values()) <= self.max_bytes

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(
                paths=len(self._paths),
                pinned=len(self._pins),
                modules=len(self._modules),
                num_bytes=sum(self._sizes.values()),
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
            )

    def _pin_cached(self, key: tuple[str, ...], modules: Modules) -> Parts | None:
        """Pins a path whose modules are all in memory, be they of several other paths."""
        with self._lock:
            if not self._modules.keys() >= set(key):
                return None
            if key not in self._paths:
                self._paths[key] = self._assembled(modules, self._modules)
            self._hits += 1
            self._pins[key] += 1
            self._paths.move_to_end(key)
            return self._paths[key]

    def _pin_cold(self, key: tuple[str, ...], modules: Modules) -> Parts:
        started = time.monotonic()
        with self._reading:
            if parts := self._pin_cached(key, modules):  # another thread read it in the meantime
                return parts
            receipts = {receipt.digest: receipt for receipt in modules.values()}
            wanted = {digest: self._size_of(receipt) for digest, receipt in receipts.items()}
            with self._lock:
                self._evict_for(wanted)
                held = {digest: self._modules[digest] for digest in wanted.keys() & self._modules}
            held |= {digest: self._load(receipts[digest]) for digest in wanted.keys() - held}
            parts = self._assembled(modules, held)
            if self._num_bytes_of is not None:
                self._known_sizes |= {key: self._num_bytes_of(own) for key, own in held.items()}
                wanted = {digest: self._known_sizes[digest] for digest in wanted}
            with self._lock:
                self._evict_for(wanted)  # in memory they may take more than on disk
                self._modules |= held
                self._sizes |= wanted
                self._paths[key] = parts
                self._pins[key] += 1
                self._misses += 1
        self._on_cold(time.monotonic() - started)
        return parts

    def _assembled(self, modules: Modules, held: Mapping[str, Parts]) -> Parts:
        by_module = {module: held[receipt.digest] for module, receipt in modules.items()}
        return assemble(by_module, tuple(modules))

    def _size_of(self, receipt: Receipt) -> int:
        return self._known_sizes.get(receipt.digest, receipt.num_bytes)

    def _evict_for(self, wanted: Mapping[str, int]) -> None:
        """Evicts paths, the least recently used first, until `wanted` fits beside the others."""
        alone = sum(wanted.values())
        if alone > self.max_bytes:
            raise PathCacheTooSmall(num_bytes=alone, max_bytes=self.max_bytes)
        self._drop_unused_modules(wanted)
        for key in [key for key in self._paths if key not in self._pins]:
            if self._fits(wanted):
                return
            del self._paths[key]
            self._evictions += 1
            self._drop_unused_modules(wanted)
        if not self._fits(wanted):
            raise NoRoomForPath(pinned=len(self._pins))

    def _fits(self, wanted: Mapping[str, int]) -> bool:
        new = sum(wanted[digest] for digest in wanted.keys() - self._modules)
        return sum(self._sizes.values()) + new <= self.max_bytes

    def _drop_unused_modules(self, wanted: Mapping[str, int]) -> None:
        used = {digest for key in self._paths for digest in key} | wanted.keys()
        for digest in self._modules.keys() - used:
            del self._modules[digest], self._sizes[digest]


def _key(modules: Modules) -> tuple[str, ...]:
    return tuple(receipt.digest for receipt in modules.values())
