"""A serving engine: a store of paths in memory, and a loop that turns requests into tokens.

A service routes, follows releases and knows which modules are whole; an engine makes the tokens.
`InProcessEngine` is the engine of one process. `serving_cluster` has the engine that forwards
requests to replicas, each of which is an `InProcessEngine` in a process of its own.
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
    """The run that an engine serves, and its limits."""

    address: Address  # of the run
    objects: Objects  # of the run
    model: ModelConfig
    limits: LoopLimits = LoopLimits()  # of each loop
    path_bytes: int | None = None  # of all paths in memory; None = half of what is free
    modules_of: Callable[[str, int], Modules]  # (release, path) of a request
    health: ReleaseHealth  # records which modules could not be read
    on_cold: Callable[[float], object] = lambda seconds: None  # seconds a path took to load


class PathStore(Protocol):
    """Keeps paths in memory, as `PathCache` does."""

    @property
    def max_bytes(self) -> int: ...

    def pin(self, modules: Modules) -> AbstractContextManager[object]: ...

    def contains(self, modules: Modules) -> bool: ...

    def stats(self) -> CacheStats: ...


class TokenLoop(Protocol):
    """Turns requests into tokens, as `Loop` does."""

    @property
    def capacity(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    def submit(self, request: GenerationRequest, on_token: OnToken | None = None) -> Stream: ...

    def stats(self) -> LoopStats: ...

    def stop(self, drain_seconds: float) -> None: ...


class ServingEngine(Protocol):
    """A path store and a loop. Nothing is compiled and no thread runs before `start`."""

    @property
    def cache(self) -> PathStore: ...

    @property
    def loop(self) -> TokenLoop: ...

    def start(self, served: ServedRelease | None = None) -> None:
        """Makes everything ready.

        Args:
          served: the first release.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: no path of it can be served.
        """
        ...


class InProcessEngine:
    """A path cache and a loop in this process."""

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
          served: compile with its first whole path, which is then cached; None: with parameters
            that are all 0, reading nothing.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: no path of it can be served.
        """
        if served is None:
            self.loop.warm_up(_zero_path(self._spec.model))
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


def _zero_path(model: ModelConfig) -> Parts:
    """Parameters of the right shapes, all 0."""
    zeros = jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), describe(model))
    return prepare(model, zeros)


def check_rows_fit(model: ModelConfig, rows: int, free_bytes: int) -> None:
    """Raises `BadSetting` if the cache of so many rows takes more than half of the free bytes."""
    row = jax.eval_shape(lambda: make_pool(model, 0))  # one row, the spare
    row_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(row))
    most = free_bytes // 2 // row_bytes - 1
    if rows > most:
        expected = f"at most {most:,}" if most > 0 else "a machine with more free memory"
        hint = f" A row takes {row_bytes:,} of the {free_bytes:,} bytes that are free."
        raise BadSetting(name="--rows", value=rows, expected=expected, hint=hint)


def _free_bytes() -> int:
    """Free bytes of the device; on CPU, of the machine."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    with contextlib.suppress(OSError):  # Linux: counts the page cache as free
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = dict(line.split(":") for line in lines)
        if "MemAvailable" in found:
            return int(found["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
