"""Paths on the device, assembled on demand. The least recently used are evicted to make room.

The cache holds modules by digest: paths that share a module, and releases that did not change it,
share one copy, and a path is a union of modules without copying. So a run that is larger than the
device can be served. A *pinned* path is in use and is not evicted. When only pinned paths are left,
`NoRoomForPath` asks the caller to try again after a pin is released. Several paths are read at
once, and a module that two of them need is read once.
"""

import contextlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Set
from typing import Any, NamedTuple

from dipaco.receipt import Receipt
from dipaco.serving.errors import NoRoomForPath, PathCacheTooSmall
from dipaco.topology import ModuleId, assemble

Parts = Mapping[str, Any]
PathDigests = tuple[str, ...]  # digests of its modules, which tell it from other paths
Modules = Mapping[ModuleId, Receipt]  # the modules of a path, and where each is stored


class CacheStats(NamedTuple):
    """The content of a cache now, and its counts since it began."""

    paths: int  # assembled
    pinned: int  # paths in use
    modules: int  # held
    num_bytes: int  # bytes of all modules held
    hits: int  # times a path was asked for that was in memory
    misses: int  # and that was not
    evictions: int  # paths evicted


class PathPin(NamedTuple):
    """Room for a path, kept until `close`. Both may be called from any thread, `close` once."""

    read: Callable[[], Parts]  # its parts, read if they are not in memory. It blocks, and may raise
    close: Callable[[], None]


class PathCache:
    """Every method may be called from any thread.

    Args:
      load: reads a module and puts it on the device.
      max_bytes: of all modules held, never exceeded.
      on_cold: called with the seconds it took to load a path that was not cached.
      num_bytes_of: bytes of a module that `load` gave. None = its bytes on disk.
      reading_bytes: of modules that are read at once, which take as much again meanwhile. One is
        read in any case. None = no limit.
    """

    def __init__(
        self,
        load: Callable[[Receipt], Parts],
        max_bytes: int,
        on_cold: Callable[[float], object] = lambda seconds: None,
        num_bytes_of: Callable[[Parts], int] | None = None,
        reading_bytes: int | None = None,
    ):
        self.max_bytes = max_bytes
        self._num_bytes_of = num_bytes_of
        self._reading_bytes = reading_bytes
        self._load, self._on_cold = load, on_cold
        # Guards the state below. It is never held while a file is read.
        self._lock = threading.Condition()
        self._modules: dict[str, Parts] = {}  # digest -> its parts, on the device
        self._module_locks: dict[str, threading.Lock] = {}  # digest -> held while it is read
        self._sizes: dict[str, int] = {}  # digest -> bytes, also of modules still to be read
        self._known_sizes: dict[str, int] = {}  # sizes of every module that was ever held
        # A path is keyed by the digests of its modules. The least recently used comes first.
        self._paths: OrderedDict[PathDigests, Parts] = OrderedDict()
        self._pins: Counter[PathDigests] = Counter()  # none is 0
        self._used = ModulesInUse(self._sizes)  # modules of paths that are in memory or pinned
        self._pinned = ModulesInUse(self._sizes)  # modules of pinned paths
        self._bytes_being_read = 0
        self._hits = self._misses = self._evictions = 0

    @contextlib.contextmanager
    def pin(self, modules: Modules, kept: Set[str] = frozenset()) -> Generator[Parts]:
        """The parts of a path, kept in memory while the context is open.

        Args:
          kept: digests of modules. Paths of these alone are not evicted for it.

        Raises:
          NoRoomForPath: every cached path is in use. Try again when one is unpinned.
          PathCacheTooSmall: the path alone is larger than the cache.
          ObjectMissing, ObjectDamaged: a module cannot be read.
        """
        pin = self.reserve(modules, kept)
        try:
            yield pin.read()
        finally:
            pin.close()

    def preload(self, modules: Modules, kept: Set[str] = frozenset()) -> None:
        """Reads a path that is not in memory. Raises as `pin`."""
        with self.pin(modules, kept):
            pass

    def reserve(self, modules: Modules, kept: Set[str] = frozenset()) -> PathPin:
        """Pins a path without reading it: at once there is room for it, and reading may follow.
        Raises as `pin`, whose errors of reading `PathPin.read` raises.
        """
        key = digests_of(modules)
        wanted = {receipt.digest: self._size_of(receipt) for receipt in modules.values()}
        with self._lock:
            if not self._sizes.keys() >= wanted.keys():
                self._evict_for(wanted, kept)
                for digest, size in wanted.items():
                    self._sizes.setdefault(digest, size)
            self._pin(key)
        return PathPin(lambda: self._read(key, modules, kept), lambda: self._unpin(key))

    def contains(self, modules: Modules) -> bool:
        """True if pinning the path now would read nothing: its modules are in memory."""
        with self._lock:
            return self._modules.keys() >= set(digests_of(modules))

    def has_room(self, modules: Modules) -> bool:
        """True if the path needs no room: its modules are in memory, or being read."""
        with self._lock:
            return self._sizes.keys() >= set(digests_of(modules))

    def count_lookup(self, modules: Modules) -> None:
        """Counts a request for a path: a hit if it is in memory, else a miss."""
        with self._lock:
            is_hit = self._modules.keys() >= set(digests_of(modules))
            self._hits, self._misses = self._hits + is_hit, self._misses + (not is_hit)

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

    def _read(self, key: PathDigests, modules: Modules, kept: Set[str]) -> Parts:
        """The parts of a pinned path. A module is read by one thread, others wait for it."""
        started, is_hit = time.monotonic(), self.contains(modules)
        unread = list(modules.values())
        for waits in (False, True):  # what other threads are reading comes last
            unread = [each for each in unread if not self._read_module(key, each, kept, waits)]
        with self._lock:
            if key not in self._paths:
                held = {module: self._modules[each.digest] for module, each in modules.items()}
                self._paths[key] = assemble(held, tuple(modules))
            self._paths.move_to_end(key)
            parts = self._paths[key]
        if not is_hit:
            self._on_cold(time.monotonic() - started)
        return parts

    def _read_module(self, key: PathDigests, receipt: Receipt, kept: Set[str], waits: bool) -> bool:
        """Returns False where another thread reads it, unless this one waits for that."""
        with self._lock:
            reading = self._module_locks.setdefault(receipt.digest, threading.Lock())
        if not reading.acquire(blocking=waits):
            return False
        try:
            if receipt.digest not in self._modules:
                self._load_module(key, receipt, kept)
        finally:
            reading.release()
        return True

    def _load_module(self, key: PathDigests, receipt: Receipt, kept: Set[str]) -> None:
        digest, num_bytes = receipt.digest, self._size_of(receipt)
        with self._bytes_to_read(num_bytes):
            module = self._load(receipt)
        if self._num_bytes_of is not None:
            num_bytes = self._num_bytes_of(module)
        with self._lock:
            for modules in (self._used, self._pinned):
                modules.resize(digest, num_bytes - self._sizes[digest])
            self._known_sizes[digest] = self._sizes[digest] = num_bytes
            # A module may take more in memory than on disk.
            self._evict_for({each: self._sizes[each] for each in key}, kept)
            self._modules[digest] = module

    @contextlib.contextmanager
    def _bytes_to_read(self, num_bytes: int) -> Generator[None]:
        def may_read() -> bool:
            most, now = self._reading_bytes, self._bytes_being_read
            return most is None or not now or now + num_bytes <= most

        with self._lock:
            self._lock.wait_for(may_read)
            self._bytes_being_read += num_bytes
        try:
            yield
        finally:
            with self._lock:
                self._bytes_being_read -= num_bytes
                self._lock.notify_all()

    def _pin(self, key: PathDigests) -> None:
        if key not in self._pins:
            self._pinned.add(key)
            if key not in self._paths:
                self._used.add(key)
        self._pins[key] += 1

    def _unpin(self, key: PathDigests) -> None:
        with self._lock:
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]
                self._pinned.remove(key)
                if key not in self._paths:  # it was not read
                    self._drop(self._used.remove(key))

    def _size_of(self, receipt: Receipt) -> int:
        return self._known_sizes.get(receipt.digest, receipt.num_bytes)

    def _evict_for(self, wanted: Mapping[str, int], kept: Set[str]) -> None:
        """Evicts paths, the least recently used first, until `wanted` fits beside the others.
        Evicts none if it would not fit even without all that may go.
        """
        alone = sum(wanted.values())
        if alone > self.max_bytes:
            raise PathCacheTooSmall(num_bytes=alone, max_bytes=self.max_bytes)
        staying, stays = self._pinned, set(self._pins)
        if kept:
            staying = staying.copy()
            for key in [key for key in self._paths if kept >= set(key) and key not in stays]:
                staying.add(key)
                stays.add(key)
        if staying.bytes_with(wanted) > self.max_bytes:
            raise NoRoomForPath(pinned=len(self._pins))
        may_go = (key for key in list(self._paths) if key not in stays)
        while self._used.bytes_with(wanted) > self.max_bytes:
            key = next(may_go)
            del self._paths[key]
            self._evictions += 1
            self._drop(set(self._used.remove(key)) - wanted.keys())

    def _drop(self, digests: Iterable[str]) -> None:
        """Modules that no path uses."""
        for digest in digests:
            del self._sizes[digest]
            self._modules.pop(digest, None)


def digests_of(modules: Modules) -> PathDigests:
    """The digests of a path's modules, which tell it from other paths."""
    return tuple(receipt.digest for receipt in modules.values())


class ModulesInUse:
    """The modules that some paths go through, and their bytes together, as paths come and go.

    Counting all of them each time would take longer than reading a small path does. Not
    thread-safe. Sizes, digest -> bytes, may change between calls, but only through `resize` for
    modules of the set.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self._sizes, self.num_bytes = sizes, 0
        self._num_paths: Counter[str] = Counter()  # digest -> of the paths, those through it

    def add(self, path: Iterable[str]) -> None:
        """A path, by the digests of its modules, that is not in the set."""
        for digest in set(path):
            self._num_paths[digest] += 1
            if self._num_paths[digest] == 1:
                self.num_bytes += self._sizes[digest]

    def remove(self, path: Iterable[str]) -> list[str]:
        """Removes a path of the set. Returns the modules that no other path goes through."""
        unused = []
        for digest in set(path):
            self._num_paths[digest] -= 1
            if not self._num_paths[digest]:
                del self._num_paths[digest]
                self.num_bytes -= self._sizes[digest]
                unused.append(digest)
        return unused

    def resize(self, digest: str, more_bytes: int) -> None:
        """A module is to take so many more bytes from now on, or fewer."""
        if digest in self._num_paths:
            self.num_bytes += more_bytes

    def bytes_with(self, path: Mapping[str, int]) -> int:
        """The bytes with one path more: digest -> bytes of its modules."""
        return self.num_bytes + sum(
            size for digest, size in path.items() if digest not in self._num_paths
        )

    def copy(self) -> "ModulesInUse":
        """A set of the same paths."""
        other = ModulesInUse(self._sizes)
        other.num_bytes, other._num_paths = self.num_bytes, self._num_paths.copy()
        return other
