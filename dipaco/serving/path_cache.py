"""Paths on the device, assembled on demand; the least recently used go when the bytes run out.

What is held are modules, by digest: paths that share a module, and releases that did not change it,
hold it once, and a path is a union of what is there (no copy). So a run that is larger than the
device is served from it. A path that is *pinned* is in use and stays; where only pinned paths are
left and there is no room, there is no room *now*, and whoever asks comes again when a pin is gone.
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
Modules = Mapping[ModuleId, Receipt]  # what a path is made of, and where it lies


class CacheStats(NamedTuple):
    """What a cache holds, and what it has done so far."""

    paths: int  # assembled now
    pinned: int  # of them, in use
    modules: int  # held now
    num_bytes: int  # of them together
    hits: int  # pins of a path that was there
    misses: int  # pins that had to assemble it
    evictions: int  # paths that were let go


class PathCache:
    """Every method may be called from any thread.

    Args:
      load: reads a module and puts it on the device; raises where it is missing or damaged.
      max_bytes: of all modules held; never exceeded.
      on_cold: told the seconds that a path took which was not there.
    """

    def __init__(
        self,
        load: Callable[[Receipt], Parts],
        max_bytes: int,
        on_cold: Callable[[float], object] = lambda seconds: None,
    ):
        self.max_bytes = max_bytes
        self._load, self._on_cold = load, on_cold
        self._lock = threading.Lock()  # over what is below; never held while a file is read
        self._reading = threading.Lock()  # one path is read at a time; only its reader evicts
        self._modules: dict[str, Parts] = {}  # digest -> its parts, on the device
        self._sizes: dict[str, int] = {}  # digest -> bytes
        # A path is named by the digests of its modules; the least recently used stands first.
        self._paths: OrderedDict[tuple[str, ...], Parts] = OrderedDict()
        self._pins: Counter[tuple[str, ...]] = Counter()
        self._hits = self._misses = self._evictions = 0

    @contextlib.contextmanager
    def pin(self, modules: Modules) -> Generator[Parts]:
        """The parts of a path, which stay while the context is open.

        Raises:
          NoRoomForPath: all that is there is in use; ask again when something no longer is.
          PathCacheTooSmall: the path alone is larger than the cache.
          ObjectMissing, ObjectDamaged: a module cannot be read.
        """
        name = _name(modules)
        parts = self._pin_held(name) or self._pin_cold(name, modules)
        try:
            yield parts
        finally:
            with self._lock:
                self._pins[name] -= 1
                self._pins += Counter()  # drops what is zero

    def contains(self, modules: Modules) -> bool:
        """Whether pinning it now would read nothing."""
        with self._lock:
            return _name(modules) in self._paths

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

    def _pin_held(self, name: tuple[str, ...]) -> Parts | None:
        with self._lock:
            if name not in self._paths:
                return None
            self._hits += 1
            self._pins[name] += 1
            self._paths.move_to_end(name)
            return self._paths[name]

    def _pin_cold(self, name: tuple[str, ...], modules: Modules) -> Parts:
        started = time.monotonic()
        with self._reading:
            if parts := self._pin_held(name):  # somebody else read it while we waited
                return parts
            wanted = {receipt.digest: receipt for receipt in modules.values()}
            with self._lock:
                self._make_room(wanted)
                held = {digest: self._modules[digest] for digest in wanted.keys() & self._modules}
            held |= {digest: self._load(wanted[digest]) for digest in wanted.keys() - held}
            by_module = {module: held[receipt.digest] for module, receipt in modules.items()}
            parts = assemble(by_module, tuple(modules))
            with self._lock:
                self._modules |= held
                self._sizes |= {digest: wanted[digest].num_bytes for digest in held}
                self._paths[name] = parts
                self._pins[name] += 1
                self._misses += 1
        self._on_cold(time.monotonic() - started)
        return parts

    def _make_room(self, wanted: Mapping[str, Receipt]) -> None:
        """Lets paths go, the least recently used first, until `wanted` fits beside the others."""
        alone = sum(receipt.num_bytes for receipt in wanted.values())
        if alone > self.max_bytes:
            raise PathCacheTooSmall(num_bytes=alone, max_bytes=self.max_bytes)
        self._keep_used_and(wanted)
        for name in [name for name in self._paths if name not in self._pins]:
            if self._fits(wanted):
                return
            del self._paths[name]
            self._evictions += 1
            self._keep_used_and(wanted)
        if not self._fits(wanted):
            raise NoRoomForPath(pinned=len(self._pins))

    def _fits(self, wanted: Mapping[str, Receipt]) -> bool:
        new = sum(wanted[digest].num_bytes for digest in wanted.keys() - self._modules)
        return sum(self._sizes.values()) + new <= self.max_bytes

    def _keep_used_and(self, wanted: Mapping[str, Receipt]) -> None:
        used = {digest for name in self._paths for digest in name} | wanted.keys()
        for digest in self._modules.keys() - used:
            del self._modules[digest], self._sizes[digest]


def _name(modules: Modules) -> tuple[str, ...]:
    return tuple(receipt.digest for receipt in modules.values())
