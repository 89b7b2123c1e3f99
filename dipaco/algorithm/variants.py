"""DiPaCo's Algorithm 1, line by line, in one process and in memory. Read this first. Below it, what
section 4.5 compares it with: paths that average their gradients at every step.

No files, no database, no clock. Whatever runs the algorithm in some other way (as tasks, on many
machines, compressed, stacked) is compared with this function, bit for bit where the order of sums
is the same.

Source: arXiv 2403.10616, Algorithm 1 and section 2.7.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dipaco.inner.synchronous import add_weighted, squared_norm, weighted
from dipaco.outer.compress import PLAIN, Codec, send
from dipaco.outer.config import OuterSettings
from dipaco.outer.gradient import WeightedMean, outer_gradient, path_weights, weight_in_step
from dipaco.outer.step import fresh, outer_step
from dipaco.topology import ModuleId, Topology, assemble, dissect

Modules = dict[ModuleId, dict[str, Any]]
# (path, phase, parts, what the path carries or None) -> (parts after tau steps of AdamW, what it
# carries on)
TrainPath = Callable[[int, int, Any, Any], tuple[Any, Any]]
# (phase, modules) -> documents of each path's shard, where paths are given others before that
# phase; None: they keep theirs
Alternate = Callable[[int, Modules], Sequence[int] | None]
# (module, outer step) -> (phase, path) of the contributions that it takes, in the order of the sum
Takes = Callable[[ModuleId, int], Sequence[tuple[int, int]]]


class WaitingContribution(NamedTuple):
    """What a path sent to a module, until a step takes it."""

    gradient: Any  # as decoded
    weight: float  # alpha_i, among the paths of its phase
    fan_in: int  # how many those are


def train(
    topology: Topology,
    modules: Modules,
    train_path: TrainPath,
    documents: Sequence[int],
    *,
    phases: int,
    outer: OuterSettings | None,
    codec: Codec = PLAIN,
    take_part: Callable[[int], Sequence[int]] | None = None,
    takes: Takes | None = None,
    alternate: Alternate = lambda phase, modules: None,
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
      take_part: the paths of a phase, rising (path sampling, section 3); None: all. A module that
        none of them goes through stays as it is.
      takes: what each outer step of each module takes (quorum mode: paths may be late); None: the
        contributions of its phase. Each is to be taken once, not before it is made, and each step
        is to take some where there are any; a path trains on its modules as they are, whether they
        have its contribution or not.
      alternate: asked before each phase but the first (discriminative routing, section 2.4); what
        `train_path` trains on from then on is its business.

    Source: DiPaCo Algorithm 1.
    """
    carried: list[Any] = [None] * topology.num_paths
    momentum = {m: fresh(outer, modules[m]) for m in topology.modules} if outer else {}
    residual: dict[tuple[int, ModuleId], Any] = {}
    # Of every module, what no step has taken yet, by (phase, path).
    waiting: dict[ModuleId, dict[tuple[int, int], WaitingContribution]] = {
        module: {} for module in topology.modules
    }

    for phase in range(phases):  # line 2
        if phase > 0:
            documents = alternate(phase, modules) or documents
        paths = range(topology.num_paths) if take_part is None else take_part(phase)
        moved: dict[int, Modules] = {}
        for path in paths:  # line 3, in parallel on real machines
            parts = assemble(modules, topology.modules_of(path))  # line 4
            after, carried[path] = train_path(path, phase, parts, carried[path])  # lines 5-10
            moved[path] = dissect(jax.device_get(after), topology, path)

        stepped: Modules = {}
        for module in topology.modules:  # line 11, in parallel on real machines
            through = [path for path in topology.paths_through(module) if path in moved]
            if not through and not waiting[module]:
                stepped[module] = modules[module]
                continue
            if outer is None:
                (path,) = through
                stepped[module] = moved[path][module]
                continue
            weights = path_weights(
                [documents[path] for path in through], by_documents=outer.weigh_by_documents
            )
            for path, weight in zip(through, weights, strict=True):
                gradient = outer_gradient(modules[module], moved[path][module])
                sent = send(codec, gradient, residual.get((path, module)))
                residual[path, module] = sent.residual
                received = codec.decode(sent.message)
                waiting[module][phase, path] = WaitingContribution(received, weight, len(through))
            keys = list(waiting[module]) if takes is None else takes(module, phase)
            taken = [waiting[module].pop(key) for key in keys]
            fan_in = len(through) or taken[-1].fan_in
            mean = WeightedMean()
            for each in taken:  # lines 12-14, in path order; late ones first
                weight = weight_in_step(
                    each.weight, each.fan_in, fan_in, rescale_by_fan_in=outer.rescale_by_fan_in
                )
                mean.add(each.gradient, weight)
            stepped[module], momentum[module], _ = outer_step(  # line 15
                outer, dict(modules[module]), mean.take(), momentum[module], fan_in
            )
        modules = stepped
        yield modules


def release(
    topology: Topology,
    history: Sequence[Modules],
    loss: Callable[[int, Any], float],
    *,
    routed_at: int = 0,
) -> list[Any]:
    """The parts of every path as they go out with early stopping (section 2.7): each as it was when
    it did best on its own hold-out, which other paths' modules may be long past.

    Args:
      topology: which paths go through which modules.
      history: all modules, at the start of every phase until now.
      loss: (path, parts) -> of the path on what its shard holds out.
      routed_at: the phase since which paths have these shards; what was before does not count.
    """
    released = []
    for path in range(topology.num_paths):
        of_path = [assemble(modules, topology.modules_of(path)) for modules in history[routed_at:]]
        released.append(min(of_path, key=lambda parts: loss(path, parts)))
    return released


def train_synchronously(
    topology: Topology,
    modules: Modules,
    states: Modules,
    gradient_of: Callable[[int, int, Any], Any],
    update: Callable[[int, Any, Any, Any, Any], tuple[Any, Any]],
    documents: Sequence[int],
    *,
    steps: Iterable[int],
    clip_norm: float,
    by_documents: bool = True,
) -> Iterator[tuple[Modules, Modules]]:
    """Yields modules and AdamW states after each step of all paths together.

    A module's gradient is the mean over its paths, with the weights of lines 12-14. A path's
    gradient is clipped as a whole, as that of a single model is, once it consists of such means;
    where paths of a module are clipped differently, it takes their weighted mean. So one path is
    plain AdamW, paths that share all are one model with their batches together, and paths that
    share nothing are as many models.

    Args:
      topology: which paths go through which modules.
      modules: parameters, given up.
      states: one AdamW state a module (not a path), given up.
      gradient_of: (path, step, parts) -> gradient of the path's mean loss.
      update: (step, module's parameters, state, gradient, scale to clip it with) -> (parameters,
        state), by AdamW.
      documents: |D_i|.
      steps: numbers of the inner steps to take.
      clip_norm: of a path's gradient.
      by_documents: weights in proportion to them; else all equal.

    Source: DiPaCo section 4.5.
    """
    weights = {
        module: dict(
            zip(
                topology.paths_through(module),
                path_weights(
                    [documents[path] for path in topology.paths_through(module)],
                    by_documents=by_documents,
                ).astype("float32"),
                strict=True,
            )
        )
        for module in topology.modules
    }
    for step in steps:
        mean: Modules = {}
        for path in range(topology.num_paths):  # in parallel on real machines, and all wait
            parts = assemble(modules, topology.modules_of(path))
            for module, gradient in dissect(gradient_of(path, step, parts), topology, path).items():
                weight = weights[module][path]
                mean[module] = (
                    add_weighted(mean[module], gradient, weight)
                    if module in mean
                    else weighted(gradient, weight)
                )
        squares = {module: squared_norm(gradient) for module, gradient in mean.items()}
        clip = []
        for path in range(topology.num_paths):
            norm = jnp.sqrt(sum(squares[module] for module in topology.modules_of(path)))
            clip.append(jnp.minimum(1.0, clip_norm / norm))
        stepped: Modules = {}
        for module in topology.modules:
            scale = sum(weight * clip[path] for path, weight in weights[module].items())
            stepped[module], states[module] = update(
                step, modules[module], states[module], mean.pop(module), scale
            )
        modules = stepped
        yield modules, states
