"""A serving engine: a store of paths in memory, and a loop that turns requests into tokens.

A service routes, follows releases and knows which modules are whole. An engine makes the tokens.
`InProcessEngine` is the engine of one process. A router before other servers has no engine of its
own: see `upstreams.py`.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Protocol

import jax

from dipaco import trees
from dipaco.model.config import ModelConfig, part_parameters
from dipaco.model.inference import prepare
from dipaco.receipt import Receipt
from dipaco.serving.decoding.grammar import Grammars
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.meter import LoopStats
from dipaco.serving.decoding.mixing import Mixer
from dipaco.serving.decoding.module_stacks import RELEASES
from dipaco.serving.decoding.stream import GenerationRequest, OnItems, Stream
from dipaco.serving.decoding.tiles import LevelShape
from dipaco.serving.memory import free_bytes, memory_budget, zero_path
from dipaco.serving.path_cache import Modules, Parts, PathCache, PathStore
from dipaco.serving.releases import ReleaseHealth, ServedRelease
from dipaco.serving.warm_up import WarmUp
from dipaco.store.address import Address
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.objects import Objects
from dipaco.store.tensors import load_for_jax
from dipaco.topology import Topology

PARAMETER_BYTES = 4  # an upper bound: prepared parameters are of float32 or, some of them, smaller


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """The run that an engine serves, and its limits."""

    address: Address  # address of the run
    objects: Objects  # objects of the run
    model: ModelConfig
    limits: LoopLimits = LoopLimits()  # limits of each loop
    # Bytes of all paths in memory. None = the bytes that the rows leave free.
    path_bytes: int | None = None
    topology: Topology | None = None  # None = no two paths share a step
    paths: tuple[int, ...] | None = None  # the paths of the run that it is asked for. None = any
    modules_of: Callable[[str, int], Modules]  # (release, path) of a request
    health: ReleaseHealth  # records which modules could not be read
    on_cold: Callable[[float], object] = lambda seconds: None  # seconds a path took to load
    # For requests with a schema, and for the tokens that are drawn. None = there are no such
    # requests, and each id of the model is a token.
    grammars: Grammars | None = None


def level_shapes(
    model: ModelConfig, topology: Topology, paths: Sequence[int]
) -> tuple[LevelShape, ...]:
    """The levels that own parts, with the modules that some paths of a run go through."""
    modules = {module for path in paths for module in topology.modules_of(path)}
    sizes = part_parameters(model)
    return tuple(
        LevelShape(
            level.parts,
            sum(module.level == level.name for module in modules),
            PARAMETER_BYTES * sum(sizes[part] for part in level.parts),
        )
        for level in topology.levels
        if level.parts
    )


class TokenLoop(Protocol):
    """Turns requests into tokens, as `Loop` does."""

    @property
    def capacity(self) -> int: ...

    @property
    def is_alive(self) -> bool: ...

    @property
    def problem(self) -> str | None: ...

    def submit(self, request: GenerationRequest, on_items: OnItems | None = None) -> Stream: ...

    def stats(self) -> LoopStats: ...

    def stop(self, drain_seconds: float) -> None: ...


class ServingEngine(Protocol):
    """A path store and a loop. Nothing is compiled and no thread runs before `start`."""

    @property
    def cache(self) -> PathStore: ...

    @property
    def loop(self) -> TokenLoop: ...

    @property
    def num_programs(self) -> int:
        """Number of programs that `start` runs in this process."""
        ...

    def start(self, served: ServedRelease | None = None, warm_up: WarmUp | None = None) -> None:
        """Makes everything ready.

        Args:
          warm_up: runs the programs that are compiled in this process.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: no path of it can be served.
        """
        ...


class InProcessEngine:
    """A path cache and a loop in this process, on one device.

    Args:
      device: None = the default device.
      num_devices: devices of the process that serve. On CPU they share its memory.
      paths: the paths of the run that this device is asked for. None = those of the engine.
    """

    def __init__(
        self,
        spec: EngineSpec,
        device: jax.Device | None = None,
        num_devices: int = 1,
        paths: Sequence[int] | None = None,
    ):
        paths = spec.paths if paths is None else paths
        self._spec, self._device, self._paths = spec, device, paths
        topology = spec.topology
        if topology is not None and paths is None:
            paths = range(topology.num_paths)
        levels = level_shapes(spec.model, topology, paths) if topology and paths else ()
        # First: as many rows as were asked for may be more than fit.
        stacks = RELEASES * Mixer(spec.model, levels, spec.limits).stack_bytes
        free = free_bytes(device, num_devices)
        budget = memory_budget(spec.model, spec.limits, spec.path_bytes, free, stacks)
        self.cache = PathCache(
            self._load, budget.paths, spec.on_cold, trees.num_bytes, reading_bytes=budget.reading
        )
        self.loop = Loop(
            spec.model, self._parts_of, limits=spec.limits, levels=levels, grammars=spec.grammars
        )

    @property
    def num_programs(self) -> int:
        return self.loop.num_programs + self.has_common_steps

    @property
    def has_common_steps(self) -> bool:
        """True if rows of several paths may share a step."""
        return bool(self.loop.mixer.shapes)

    def start(self, served: ServedRelease | None = None, warm_up: WarmUp | None = None) -> None:
        """Compiles everything, times the steps, then starts the loop.

        Args:
          served: a whole path of it is used, and then cached. None: parameters are all 0, and
            nothing is read.
          warm_up: runs the programs. None = in silence.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: no path of it can be served.
        """
        self.compile(served, warm_up)
        self.time_steps(served, warm_up)
        self.loop.run()

    def compile(self, served: ServedRelease | None, warm_up: WarmUp | None) -> None:
        """The first part of `start`."""
        with self._any_path(served) as parts:
            self.loop.warm_up(parts, warm_up)

    def time_steps(self, served: ServedRelease | None, warm_up: WarmUp | None) -> None:
        """The second part of `start`. Other work of the machine is measured too."""
        if self.has_common_steps:
            with self._any_path(served) as parts:
                self.loop.time_steps(parts, warm_up)

    @contextlib.contextmanager
    def _any_path(self, served: ServedRelease | None) -> Generator[Parts]:
        """The first whole path of this engine, else of the release."""
        if served is None:
            yield self._on_device(zero_path(self._spec.model))
            return
        first = self._paths or ()
        paths = [*first, *(path for path in range(served.num_paths) if path not in first)]
        with contextlib.ExitStack() as stack:
            for path in paths:
                try:
                    parts = stack.enter_context(self.cache.pin(served.modules_of(path)))
                    break
                except (ObjectMissing, ObjectDamaged):
                    if path == paths[-1]:
                        raise
            yield parts

    @contextlib.contextmanager
    def _parts_of(self, release: str, path: int) -> Generator[Parts]:
        with self.cache.pin(self._spec.modules_of(release, path)) as parts:
            yield parts

    def _load(self, receipt: Receipt) -> Parts:
        health = self._spec.health
        try:
            with jax.default_device(self._device):
                parts = prepare(self._spec.model, load_for_jax(self._spec.objects, receipt))
        except (ObjectMissing, ObjectDamaged) as error:
            health.mark_broken(receipt.digest, str(error))
            raise
        health.mark_whole(receipt.digest)
        return self._on_device(parts)

    def _on_device(self, parts: Parts) -> Parts:
        """Committed to the device, if one is named: the loop computes where its parameters are."""
        return parts if self._device is None else jax.device_put(parts, self._device)
