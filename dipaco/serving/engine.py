"""Where tokens are made: paths in memory, and the loop that runs them; here, or elsewhere.

A service routes, follows releases and knows which modules are whole. What it needs besides is an
engine: something that holds paths, and something that takes requests. `InProcessEngine` is this
process; `elsewhere.py` is what a service holds when loops of other processes do it, each of which
is a `InProcessEngine` again.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp

from dipaco.errors import BadSetting
from dipaco.model.config import ModelConfig
from dipaco.model.inference import prepare
from dipaco.model.spec import describe
from dipaco.receipt import Receipt
from dipaco.serving.decoding.decode import make_pool
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.meter import LoopStats
from dipaco.serving.decoding.stream import GenerationRequest, OnToken, Stream
from dipaco.serving.path_cache import CacheStats, Modules, Parts, PathCache
from dipaco.serving.releases import ReleaseHealth, ServedRelease
from dipaco.store.address import Address
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.objects import Objects
from dipaco.store.tensors import load_tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """What an engine is told of the run that it serves."""

    address: Address  # of the run
    objects: Objects  # of the run
    model: ModelConfig
    limits: LoopLimits = LoopLimits()  # of each loop
    path_bytes: int | None = None  # of all paths in memory; None = half of what is free
    modules_of: Callable[[str, int], Modules]  # (release, path) of a request
    health: ReleaseHealth  # told which modules could not be read
    on_cold: Callable[[float], object] = lambda seconds: None  # a path was read in so many seconds


class PathStore(Protocol):
    """Keeps paths in memory, as `PathCache` does."""

    @property
    def max_bytes(self) -> int: ...

    def pin(self, modules: Modules) -> AbstractContextManager[object]: ...

    def contains(self, modules: Modules) -> bool: ...

    def stats(self) -> CacheStats: ...


class TokenLoop(Protocol):
    """Makes tokens, as `Loop` does."""

    @property
    def capacity(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    def submit(self, request: GenerationRequest, on_token: OnToken | None = None) -> Stream: ...

    def stats(self) -> LoopStats: ...

    def stop(self, drain_seconds: float) -> None: ...


class ServingEngine(Protocol):
    """Paths and a loop. Nothing is compiled and no thread is started before `start`."""

    @property
    def cache(self) -> PathStore: ...

    @property
    def loop(self) -> TokenLoop: ...

    def start(self, served: ServedRelease | None = None) -> None:
        """Makes everything ready.

        Args:
          served: the release whose paths come first.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: not a single path of it can be served.
        """
        ...


class InProcessEngine:
    """Paths and a loop of this process."""

    def __init__(self, spec: EngineSpec):
        self._spec = spec
        free_bytes = _free_bytes()
        check_rows_fit(spec.model, spec.limits.rows, free_bytes)
        max_bytes = spec.path_bytes or free_bytes // 2
        self.cache = PathCache(self._load, max_bytes, spec.on_cold)
        self.loop = Loop(spec.model, self._parts_of, limits=spec.limits)

    def start(self, served: ServedRelease | None = None) -> None:
        """Compiles everything, then starts the loop.

        Args:
          served: compiles with the first of its paths that is whole, which is then in memory; None:
            with parameters that are all 0, and reads nothing.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: not a single path of it can be served.
        """
        if served is None:
            self.loop.warm_up(_nothing(self._spec.model))
        else:
            self._warm_up(served)
        self.loop.run()

    def _warm_up(self, served: ServedRelease) -> None:
        for path in range(served.num_paths):
            try:
                with self.cache.pin(served.modules_of(path)) as parts:
                    return self.loop.warm_up(parts)
            except (ObjectMissing, ObjectDamaged):
                if path == served.num_paths - 1:
                    raise
        return None

    @contextlib.contextmanager
    def _parts_of(self, release: str, path: int) -> Generator[Parts]:
        with self.cache.pin(self._spec.modules_of(release, path)) as parts:
            yield parts

    def _load(self, receipt: Receipt) -> Parts:
        health = self._spec.health
        try:
            parts = prepare(self._spec.model, load_tree(self._spec.objects, receipt))
        except (ObjectMissing, ObjectDamaged) as error:
            health.mark_broken(receipt.digest, str(error))
            raise
        health.mark_whole(receipt.digest)
        return parts


def _nothing(model: ModelConfig) -> Parts:
    """A path of the right shapes."""
    zeros = jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), describe(model))
    return prepare(model, zeros)


def check_rows_fit(model: ModelConfig, rows: int, free_bytes: int) -> None:
    """Raises `BadSetting` where the cache of so many rows leaves paths less than half."""
    row = jax.eval_shape(lambda: make_pool(model, 0))  # the spare one
    row_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(row))
    most = free_bytes // 2 // row_bytes - 1
    if rows > most:
        expected = f"at most {most:,}" if most > 0 else "a machine with more free memory"
        hint = f" A row takes {row_bytes:,} of the {free_bytes:,} bytes that are free."
        raise BadSetting(name="--rows", value=rows, expected=expected, hint=hint)


def _free_bytes() -> int:
    """What the device, or the machine where that is the device, has free."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    with contextlib.suppress(OSError):  # Linux: with what files are kept in, as it is given back
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = dict(line.split(":") for line in lines)
        if "MemAvailable" in found:
            return int(found["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
