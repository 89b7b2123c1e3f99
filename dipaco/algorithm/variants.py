"""Algorithm 1 with everything that a run may switch on, in one process and in memory.

Path sampling, codecs with error feedback, late contributions (quorum), late modules, alternations,
an outer step of one's own, plain AdamW without one, early stopping. With everything off it gives
the bits of `algorithm1.train`; runs are compared with it bit for bit, since the order of its sums
is theirs.

Source: arXiv 2403.10616, sections 2.4, 2.7 and 3. Quorum and codecs: see `dipaco/outer`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.algorithm.algorithm1 import Modules, TrainPath
from dipaco.outer.codecs.contract import Codec
from dipaco.outer.compress import PLAIN, encode_rows, own_parameters
from dipaco.outer.config import OuterSettings
from dipaco.outer.delay import merge
from dipaco.outer.gradient import WeightedMean, outer_gradient, path_weights, weight_in_step
from dipaco.outer.own_step import OuterRule
from dipaco.outer.step import fresh, outer_step
from dipaco.outer.vocabulary import (
    counts_of,
    effective_fan_in,
    has_rows,
    put_rows,
    row_shares,
    row_weights_in_step,
    sent_rows,
    take_rows,
)
from dipaco.topology import ModuleId, Topology, assemble, dissect

# (phase, modules) -> documents of each path's new shard, or None where the shards stay.
Alternate = Callable[[int, Modules], Sequence[int] | None]
# (module, outer step) -> (phase, path) of the contributions it takes, in the order of the sum
Takes = Callable[[ModuleId, int], Sequence[tuple[int, int]]]


class TrainLate(NamedTuple):
    """A phase of a path that takes its modules late (`outer.delay`), in two pieces."""

    ahead: TrainPath  # its first `delay` steps, from the path's own parameters
    rest: TrainPath  # its other steps, from what they and the modules were merged to


class WaitingContribution(NamedTuple):
    """A contribution that no outer step has taken yet."""

    gradient: Any  # decoded
    weight: float  # alpha_i among the paths of its phase
    fan_in: int  # number of those paths
    row_share_V: np.ndarray | None = None  # the path's for each row of the vocabulary
    row_fan_in_V: np.ndarray | None = None  # effective, of each row


def train(
    topology: Topology,
    modules: Modules,
    train_path: TrainPath,
    documents: Sequence[int],
    *,
    phases: int,
    outer: OuterSettings | None,
    codec: Codec | Callable[[int], Codec] = PLAIN,
    take_part: Callable[[int], Sequence[int]] | None = None,
    takes: Takes | None = None,
    alternate: Alternate = lambda phase, modules: None,
    token_counts: Callable[[int], np.ndarray] | None = None,
    outer_rule: OuterRule | None = None,
    train_late: TrainLate | None = None,
) -> Iterator[Modules]:
    """Yields every module after each of `phases` outer steps; see `algorithm1.train`.

    Args:
      topology, modules, train_path, documents, phases: as in `algorithm1.train`.
      outer: how modules step. None: plain AdamW. Every module then has one path and becomes what
        that path made of it, as the base model and the dense baselines are trained.
      codec: how contributions travel, or phase -> how those of the phase do. The path adds what a
        message cannot hold to its next one, or keeps it in its own parameters (`keeps_own`).
      take_part: phase -> its paths, ascending (path sampling, section 3). None: all paths. A module
        without a path in a phase stays as it is.
      takes: the contributions that each outer step takes (quorum mode: a path may be late). None:
        those of its own phase. Each contribution is taken once, after it is made, and a step takes
        at least one where there is one. A path trains on its modules as they are, with or without
        its late contribution.
      alternate: called before each phase but the first (discriminative routing, section 2.4);
        `train_path` uses the new shards from then on.
      token_counts: phase -> int [P, V], how often each token occurs in the shard of each path:
        rows of the vocabulary are averaged by those who have their tokens (`outer/vocabulary.py`).
        None: as all else.
      outer_rule: steps modules in the place of Nesterov (`outer/own_step.py`).
      train_late: paths take their modules late (`outer.delay`). Where a path took part in the phase
        before, and no documents were routed since, it begins a phase with its own parameters, takes
        `ahead`, is merged with its modules at the start of the phase (`outer/delay.py`), and takes
        `rest`. Else it begins with its modules: `train_path`. Contributions are measured from the
        modules at the start of the phase either way.
    """
    carried: list[Any] = [None] * topology.num_paths
    own: dict[int, Any] = {}  # path -> its parameters after the phase before
    momentum = {m: fresh(outer, modules[m], outer_rule) for m in topology.modules} if outer else {}
    residual: dict[tuple[int, ModuleId], Any] = {}
    # By module, then by (phase, path).
    waiting: dict[ModuleId, dict[tuple[int, int], WaitingContribution]] = {
        module: {} for module in topology.modules
    }

    for phase in range(phases):  # line 2
        coded = codec if isinstance(codec, Codec) else codec(phase)
        if phase > 0 and (routed := alternate(phase, modules)):
            documents, own = routed, {}
        paths = range(topology.num_paths) if take_part is None else take_part(phase)
        trained: dict[int, Modules] = {}
        for path in paths:  # line 3, in parallel on real machines
            parts = _assembled(topology, path, modules, residual, coded)  # line 4
            train_on = train_path
            if train_late is not None and outer is not None and path in own:
                ahead, carried[path] = train_late.ahead(path, phase, own[path], carried[path])
                parts = merge(jax.device_get(ahead), parts, outer.delay_merge)
                train_on = train_late.rest
            after, carried[path] = train_on(path, phase, parts, carried[path])  # lines 5-10
            trained[path] = dissect(jax.device_get(after), topology, path)
        own = {path: assemble(trained[path], topology.modules_of(path)) for path in trained}

        stepped: Modules = {}
        for module in topology.modules:  # line 11, in parallel on real machines
            through = [path for path in topology.paths_through(module) if path in trained]
            if not through and not waiting[module]:
                stepped[module] = modules[module]
                continue
            if outer is None:
                (path,) = through
                stepped[module] = trained[path][module]
                continue
            weights = path_weights(
                [documents[path] for path in through], by_documents=outer.weigh_by_documents
            )
            counts = None
            if token_counts is not None and through and has_rows(modules[module]):
                counts = counts_of(token_counts(phase), topology.paths_through(module), through)
            shares_PV = None if counts is None else row_shares(counts, weights)
            fan_in_V = None if shares_PV is None else effective_fan_in(shares_PV)
            for index, (path, weight) in enumerate(zip(through, weights, strict=True)):
                gradient, residual[path, module] = _sent(
                    coded,
                    outer_gradient(modules[module], trained[path][module]),
                    residual.get((path, module)),
                    None if counts is None else sent_rows(counts, index),
                )
                row_share_V = None if shares_PV is None else shares_PV[index]
                waiting[module][phase, path] = WaitingContribution(
                    gradient, weight, len(through), row_share_V, fan_in_V
                )
            keys = list(waiting[module]) if takes is None else takes(module, phase)
            taken = [waiting[module].pop(key) for key in keys]
            fan_in = len(through) or taken[-1].fan_in
            merged = _mean(taken, fan_in, outer)  # lines 12-14
            stepped[module], momentum[module], _ = outer_step(  # line 15
                outer, dict(modules[module]), merged, momentum[module], fan_in, outer_rule
            )
        modules = stepped
        yield modules


def _assembled(
    topology: Topology,
    path: int,
    modules: Modules,
    residual: Mapping[tuple[int, ModuleId], Any],
    codec: Codec,
) -> Any:
    """The parts that a path starts a phase from: its modules', or its own where the codec has what
    was not sent stay in them.
    """
    through = topology.modules_of(path)
    parts = assemble(modules, through)
    unsent = {m: residual[path, m] for m in through if (path, m) in residual}
    if codec.keeps_own and unsent:
        return own_parameters(parts, assemble(unsent, through))
    return parts


def _sent(codec: Codec, gradient: Any, residual: Any, rows_V: np.ndarray | None) -> tuple[Any, Any]:
    """An outer gradient as the outer step reads it, and what the message could not hold.

    Args:
      codec: how it travels.
      gradient: of a path, of one module.
      residual: what earlier messages could not hold; None = nothing.
      rows_V: the rows of the vocabulary that are sent; None = all of them.
    """
    encoded = encode_rows(codec, gradient, residual, rows_V)
    if rows_V is None:
        return codec.decode(encoded.message, gradient), encoded.residual
    decoded = codec.decode(encoded.message, take_rows(gradient, rows_V))
    return put_rows(decoded, rows_V), encoded.residual


def _mean(taken: Sequence[WaitingContribution], fan_in: int, outer: OuterSettings) -> Any:
    """The weighted mean of contributions, added in their order: that of the paths, late ones
    first.
    """
    rescales = outer.rescale_by_fan_in
    mean = WeightedMean()
    for each in taken:
        weight = weight_in_step(each.weight, each.fan_in, fan_in, rescale_by_fan_in=rescales)
        rows_V = None
        if each.row_share_V is not None and each.row_fan_in_V is not None:
            rows_V = row_weights_in_step(
                each.row_share_V, each.row_fan_in_V, fan_in, rescale_by_fan_in=rescales
            )
        mean.add(each.gradient, weight, rows_V)
    return mean.take()


def release(
    topology: Topology,
    history: Sequence[Modules],
    loss: Callable[[int, Any], float],
    *,
    routed_at: int = 0,
) -> list[Any]:
    """The parts of every path with early stopping (section 2.7): those of the phase at which the
    path did best on its own hold-out, of equals the first. Paths may be released at different
    phases.

    Args:
      topology: which paths go through which modules.
      history: all modules, at the start of every phase so far.
      loss: (path, parts) -> loss on the documents that the path's shard holds out. NaN is worse
        than any number.
      routed_at: the phase since which the shards are as they are; earlier phases do not count.
    """
    released = []
    for path in range(topology.num_paths):
        of_path = [assemble(modules, topology.modules_of(path)) for modules in history[routed_at:]]
        losses = [loss(path, parts) for parts in of_path]
        best = min(range(len(losses)), key=lambda at: (math.isnan(losses[at]), losses[at]))
        released.append(of_path[best])
    return released
