"""A serving engine: a store of paths in memory, and a loop that turns requests into tokens.

A service routes, follows releases and knows which modules are whole. An engine makes the tokens.
`InProcessEngine` is the engine of one process. A router before other servers has no engine of its
own: see `upstreams.py`.
"""

import contextlib
from collections.abc import Callable, Sequence

from dipaco import trees
from dipaco.model.config import ModelConfig, part_parameters
from dipaco.model.inference import prepare
from dipaco.receipt import Receipt
from dipaco.serving.decoding.decode import LoopLimits
from dipaco.serving.decoding.grammar import Grammars
from dipaco.serving.decoding.loop import Loop
from dipaco.serving.decoding.mixing import RELEASES, LevelShape, Mixer
from dipaco.serving.memory import free_bytes, memory_budget
from dipaco.serving.models import ReleaseHealth, ServedRelease
from dipaco.serving.path_cache import Parts, PathCache
from dipaco.serving.warm_up import WarmUp, WarmUpProgram
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.objects import Objects
from dipaco.store.tensors import load_for_jax
from dipaco.topology import Topology

PARAMETER_BYTES = 4  # an upper bound: prepared parameters are of float32 or, some of them, smaller


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


class InProcessEngine:
    """A path cache and a loop in this process. Nothing is compiled and no thread runs before
    `start`.

    Args:
      objects: of the run.
      health: records which modules could not be read.
      path_bytes: of all paths in memory. None = what the rows leave free.
      topology: None = no two paths share a step.
      paths: the paths of the run that it is asked for. None = any.
      on_cold: called with the seconds that a path took to load.
    """

    def __init__(
        self,
        objects: Objects,
        model: ModelConfig,
        limits: LoopLimits,
        health: ReleaseHealth,
        *,
        path_bytes: int | None = None,
        topology: Topology | None = None,
        paths: Sequence[int] | None = None,
        on_cold: Callable[[float], object] = lambda seconds: None,
        grammars: Grammars | None = None,
    ):
        self._objects, self._model, self._health = objects, model, health
        self._first = paths or ()
        levels = ()
        if topology is not None:
            here = range(topology.num_paths) if paths is None else paths
            levels = level_shapes(model, topology, here)
        # First: as many rows as were asked for may be more than fit.
        stacks = RELEASES * Mixer(model, levels, limits).stack_bytes
        budget = memory_budget(model, limits, path_bytes, free_bytes(), stacks)
        self.cache = PathCache(
            self._load, budget.paths, on_cold, trees.num_bytes, reading_bytes=budget.reading
        )
        self.loop = Loop(model, self.cache.pin, limits=limits, levels=levels, grammars=grammars)

    def start(
        self, served: ServedRelease, warm_up: WarmUp, first: Sequence[WarmUpProgram] = ()
    ) -> None:
        """Compiles, others' programs first, with a whole path, which is then cached. Then starts
        the loop. Raises `ObjectMissing`, `ObjectDamaged` or `PathCacheTooSmall`: no
        path of the release can be served.
        """
        paths = list(dict.fromkeys([*self._first, *range(served.num_paths)]))
        with contextlib.ExitStack() as stack:
            for path in paths:
                try:
                    parts = stack.enter_context(self.cache.pin(served.modules_of(path)))
                    break
                except (ObjectMissing, ObjectDamaged):
                    if path == paths[-1]:
                        raise
            self.loop.warm_up(parts, warm_up, first)
        self.loop.run()

    def _load(self, receipt: Receipt) -> Parts:
        try:
            parts = prepare(self._model, load_for_jax(self._objects, receipt))
        except (ObjectMissing, ObjectDamaged) as error:
            self._health.mark_broken(receipt.digest, str(error))
            raise
        self._health.mark_whole(receipt.digest)
        return parts
