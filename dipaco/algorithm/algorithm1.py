"""DiPaCo's Algorithm 1, line by line. Source: arXiv 2403.10616, Algorithm 1 and section 2.7."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from dipaco.outer.config import OuterSettings
from dipaco.outer.gradient import WeightedMean, outer_gradient, path_weights
from dipaco.outer.step import first_outer_state, outer_step
from dipaco.topology import ModuleId, Topology, assemble, dissect

Modules = dict[ModuleId, dict[str, Any]]  # module -> part -> parameters
# (path, phase, parts, carried or None) -> (parts after tau inner steps, carried). What a path
# carries from phase to phase (optimiser state, data position) belongs to that path alone.
TrainPath = Callable[[int, int, Any, Any], tuple[Any, Any]]


def train(
    topology: Topology,
    modules: Modules,
    train_path: TrainPath,
    documents: Sequence[int],
    phases: int,
    outer: OuterSettings,
) -> Iterator[Modules]:
    """Yields theta(t), every module after outer step t, for t = 1..T.

    Args:
      topology: levels, their modules, and the paths through them.
      modules: theta(0) of every module, usually all cut from one base model.
      train_path: lines 5-10, tau inner steps of one path on its shard D_i.
      documents: [P] |D_i|, documents in each path's shard.
      phases: T, outer steps.
      outer: Nesterov's rate and momentum, and which of section 2.7's two factors are on: a path's
        weight by its documents, and the root of a module's fan-in. `variants.py` has the other
        settings.
    """
    carried: list[Any] = [None] * topology.num_paths
    momentum = {module: first_outer_state(outer, modules[module]) for module in topology.modules}
    for phase in range(phases):  # line 2
        trained: list[Modules] = []
        for path in range(topology.num_paths):  # line 3, in parallel on real machines
            parts = assemble(modules, topology.modules_of(path))  # line 4
            parts, carried[path] = train_path(path, phase, parts, carried[path])  # lines 5-10
            trained.append(dissect(jax.device_get(parts), topology, path))

        stepped: Modules = {}
        for module in topology.modules:  # line 11, in parallel on real machines
            paths = topology.paths_through(module)
            alphas = path_weights(
                [documents[path] for path in paths], by_documents=outer.weigh_by_documents
            )
            mean = WeightedMean()
            for path, alpha in zip(paths, alphas, strict=True):  # lines 12-14, in path order
                mean.add(outer_gradient(modules[module], trained[path][module]), alpha)
            # Line 15. A copy: `outer_step` empties it, and the caller may still hold theta(t-1).
            stepped[module], momentum[module], _ = outer_step(
                outer, dict(modules[module]), mean.take(), momentum[module], len(paths)
            )
        modules = stepped
        yield modules
