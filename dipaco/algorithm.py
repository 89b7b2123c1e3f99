"""DiPaCo's Algorithm 1, line by line, in one process and in memory. Read this first.

No files, no database, no clock. Whatever runs the algorithm in some other way (as tasks, on many
machines, compressed, stacked) is compared with this function, bit for bit where the order of sums
is the same.

Source: arXiv 2403.10616, Algorithm 1 and section 2.7.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from dipaco.outer.compress import PLAIN, Codec, send
from dipaco.outer.config import OuterSettings
from dipaco.outer.gradient import WeightedMean, outer_gradient, path_weights
from dipaco.outer.step import fresh, outer_step
from dipaco.topology import ModuleId, Topology, assemble, dissect

Modules = dict[ModuleId, dict[str, Any]]
# (path, phase, parts, what the path carries or None) -> (parts after tau steps of AdamW, what it
# carries on)
TrainPath = Callable[[int, int, Any, Any], tuple[Any, Any]]


def train(
    topology: Topology,
    modules: Modules,
    train_path: TrainPath,
    documents: Sequence[int],
    *,
    phases: int,
    outer: OuterSettings | None,
    codec: Codec = PLAIN,
) -> Iterator[Modules]:
    """Yields every module after each of `phases` outer steps.

    Args:
      topology: which paths go through which modules.
      modules: theta(0) for every module of the topology, usually all cut from one base model.
      train_path: lines 5-10, tau inner steps of one path. What it carries (AdamW state, data
        position) belongs to the path alone.
      documents: |D_i|, documents in the shard of each path.
      phases: T, outer steps.
      outer: how modules step. None: nothing is averaged, which is only possible where every module
        has one path. The module becomes what the path made of it: plain AdamW, as the base model
        and the dense baselines are trained.
      codec: how contributions travel; what a message cannot hold, the path adds to its next.

    Source: DiPaCo Algorithm 1.
    """
    carried: list[Any] = [None] * topology.num_paths
    momentum = {m: fresh(outer, modules[m]) for m in topology.modules} if outer else {}
    residual: dict[tuple[int, ModuleId], Any] = {}

    for phase in range(phases):  # line 2
        moved: list[Modules] = []
        for path in range(topology.num_paths):  # line 3, in parallel on real machines
            parts = assemble(modules, topology.modules_of(path))  # line 4
            after, carried[path] = train_path(path, phase, parts, carried[path])  # lines 5-10
            moved.append(dissect(jax.device_get(after), topology, path))

        stepped: Modules = {}
        for module in topology.modules:  # line 11, in parallel on real machines
            through = topology.paths_through(module)
            if outer is None:
                (path,) = through
                stepped[module] = moved[path][module]
                continue
            weights = path_weights(
                [documents[path] for path in through], by_documents=outer.weigh_by_documents
            )
            mean = WeightedMean()
            for path, weight in zip(through, weights, strict=True):  # lines 12-14, in path order
                gradient = outer_gradient(modules[module], moved[path][module])
                sent = send(codec, gradient, residual.get((path, module)))
                residual[path, module] = sent.residual
                mean.add(codec.decode(sent.message), weight)
            stepped[module], momentum[module], _ = outer_step(  # line 15
                outer, dict(modules[module]), mean.take(), momentum[module], fan_in=len(through)
            )
        modules = stepped
        yield modules
