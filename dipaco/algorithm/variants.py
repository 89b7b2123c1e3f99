"""Algorithm 1 with everything that a run may switch on, in one process and in memory.

A run may have path sampling, codecs with error feedback, late contributions (`outer.quorum`), paths
that go ahead of their modules (`outer.delay`), alternations (documents are routed again between
phases), an outer step of its own, inner steps without an outer step, and early stopping. With
everything off it gives the bits of `algorithm1.train`. An *arm* is one of the models that a run
trains, such as `modular` and `dense`, with the schedule of its phases (`schedule/arm.py`). This
module is the reference for runs (*oracle* in tests): it asks the same arm and adds in the same
order, so tests compare bit for bit.
Arms whose paths take every step together have a reference of their own (`synchronous.py`).

Source: arXiv 2403.10616, sections 2.4, 2.7 and 3. Quorum and codecs: see `dipaco/outer`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.algorithm.algorithm1 import Modules, TrainPath
from dipaco.outer.codecs.contract import Codec
from dipaco.outer.compress import codec_of, encode_rows
from dipaco.outer.config import OuterSettings
from dipaco.outer.delay import merge
from dipaco.outer.gradient import WeightedMean, outer_gradient, path_weights, weight_in_step
from dipaco.outer.own_step import OuterRule
from dipaco.outer.step import first_outer_state, outer_step
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
from dipaco.schedule.arm import Arm
from dipaco.topology import ModuleId, Topology, assemble, dissect


class Shards(NamedTuple):
    """The shards that paths train on until documents are routed again."""

    documents: Sequence[int]  # [P] |D_i|, documents of each path's shard
    # int [P, V], how often each token occurs in each shard: a row of the vocabulary is then
    # averaged over the paths that have its token (`outer/vocabulary.py`). None: as all parameters.
    token_counts: np.ndarray | None = None


# (phase, modules) -> the shards of that phase and those after it
Route = Callable[[int, Modules], Shards]
# (module, outer step) -> (phase, path) of the contributions it takes, in the order of the sum
Takes = Callable[[ModuleId, int], Sequence[tuple[int, int]]]


class TrainAhead(NamedTuple):
    """A phase of a path that goes ahead of its modules (`outer.delay`), in two pieces."""

    ahead: TrainPath  # its first `delay` steps, from the path's own parameters
    rest: TrainPath  # its other steps, from what they and the modules were merged to


class WaitingContribution(NamedTuple):
    """A contribution that no outer step has taken yet."""

    gradient: Any  # decoded
    weight: float  # alpha_i among the paths of its phase
    fan_in: int  # number of those paths
    row_share_V: np.ndarray | None = None  # the path's share of each row of the vocabulary
    row_fan_in_V: np.ndarray | None = None  # the effective fan-in of each row


def train(
    arm: Arm,
    modules: Modules,
    train_path: TrainPath,
    route: Route,
    *,
    outer: OuterSettings,
    outer_rule: OuterRule | None = None,
    takes: Takes | None = None,
    train_ahead: TrainAhead | None = None,
) -> Iterator[Modules]:
    """Yields every module after each outer step of an arm, as `algorithm1.train` does.

    Args:
      arm: who takes part when, and when documents are routed. An arm without outer steps has one
        path for each module, which becomes what the path's inner steps made of it. The base model
        and the dense baselines are trained in this way.
      modules, train_path: as in `algorithm1.train`.
      route: called before the first phase and before each of the arm's alternations
        (discriminative routing, section 2.4). `train_path` uses the new shards from then on.
      outer: how modules step and how contributions travel. What a message cannot hold is the
        path's residual, which is added to its next message.
      outer_rule: steps modules in the place of Nesterov (`outer/own_step.py`).
      takes: the contributions that each outer step takes, where a path may be late (quorum). None:
        all of its own phase. Each contribution is taken once, after it is made, and a step takes
        at least one if there is one. A path trains on its modules as they are, with or without
        its late contribution.
      train_ahead: a path that goes ahead (`outer.delay`) begins a phase with its own parameters,
        takes `ahead`, is merged with its modules at the start of the phase (`outer/delay.py`), and
        takes `rest`. Contributions are measured from the modules at the start of the phase.
    """
    topology, codec = arm.topology, codec_of(outer)
    carried: list[Any] = [None] * topology.num_paths
    own: dict[int, Any] = {}  # path -> its parameters after the phase before
    momentum = {
        module: first_outer_state(outer, modules[module], outer_rule) for module in topology.modules
    }
    residual: dict[tuple[int, ModuleId], Any] = {}
    # Contributions of each module that wait for a step, by (phase, path).
    waiting: dict[ModuleId, dict[tuple[int, int], WaitingContribution]] = {
        module: {} for module in topology.modules
    }

    for phase in range(arm.phases):  # line 2
        if phase == arm.routed_at(phase):
            shards = route(phase, modules)
        trained: dict[int, Modules] = {}
        for path in arm.paths_in(phase):  # line 3, in parallel on real machines
            parts = assemble(modules, topology.modules_of(path))  # line 4
            train_on = train_path
            if train_ahead is not None and arm.goes_ahead(path, phase):
                ahead, carried[path] = train_ahead.ahead(path, phase, own[path], carried[path])
                parts = merge(jax.device_get(ahead), parts, outer.delay_merge)
                train_on = train_ahead.rest
            after, carried[path] = train_on(path, phase, parts, carried[path])  # lines 5-10
            trained[path] = dissect(jax.device_get(after), topology, path)
        own = {path: assemble(trained[path], topology.modules_of(path)) for path in trained}

        stepped: Modules = {}
        for module in topology.modules:  # line 11, in parallel on real machines
            contributors = arm.contributors(module, phase)
            if not contributors and not waiting[module]:
                stepped[module] = modules[module]
                continue
            if not arm.has_outer_steps:
                (path,) = contributors
                stepped[module] = trained[path][module]
                continue
            weights = path_weights(
                [shards.documents[path] for path in contributors],
                by_documents=outer.weigh_by_documents,
            )
            counts = None
            if shards.token_counts is not None and contributors and has_rows(modules[module]):
                through = topology.paths_through(module)
                counts = counts_of(shards.token_counts, through, contributors)
            shares_PV = None if counts is None else row_shares(counts, weights)
            fan_in_V = None if shares_PV is None else effective_fan_in(shares_PV)
            for index, (path, weight) in enumerate(zip(contributors, weights, strict=True)):
                gradient, residual[path, module] = _sent(
                    codec,
                    outer_gradient(modules[module], trained[path][module]),
                    residual.get((path, module)),
                    None if counts is None else sent_rows(counts, index),
                )
                row_share_V = None if shares_PV is None else shares_PV[index]
                waiting[module][phase, path] = WaitingContribution(
                    gradient, weight, len(contributors), row_share_V, fan_in_V
                )
            keys = list(waiting[module]) if takes is None else takes(module, phase)
            taken = [waiting[module].pop(key) for key in keys]
            # If no path of this phase takes part, late contributions come with their own fan-in.
            fan_in = len(contributors) or taken[-1].fan_in
            mean = _mean(taken, fan_in, outer)  # lines 12-14
            stepped[module], momentum[module], _ = outer_step(  # line 15
                outer, dict(modules[module]), mean, momentum[module], fan_in, outer_rule
            )
        modules = stepped
        yield modules


def _sent(codec: Codec, gradient: Any, residual: Any, sent_V: np.ndarray | None) -> tuple[Any, Any]:
    """An outer gradient as the outer step reads it, and what the message could not hold.

    Args:
      codec: encodes the message.
      gradient: the outer gradient of one path for one module.
      residual: what earlier messages could not hold, or None.
      sent_V: the rows of the vocabulary that are sent. None = all rows.
    """
    encoded = encode_rows(codec, gradient, residual, sent_V)
    if sent_V is None:
        return codec.decode(encoded.message, gradient), encoded.residual
    decoded = codec.decode(encoded.message, take_rows(gradient, sent_V))
    return put_rows(decoded, sent_V), encoded.residual


def _mean(taken: Sequence[WaitingContribution], fan_in: int, outer: OuterSettings) -> Any:
    """The weighted mean of contributions, added in their order: late ones first, then by path."""
    rescales = outer.rescale_by_fan_in
    mean = WeightedMean()
    for each in taken:
        weight = weight_in_step(each.weight, each.fan_in, fan_in, rescale_by_fan_in=rescales)
        row_weight_V = None
        if each.row_share_V is not None and each.row_fan_in_V is not None:
            row_weight_V = row_weights_in_step(
                each.row_share_V, each.row_fan_in_V, fan_in, rescale_by_fan_in=rescales
            )
        mean.add(each.gradient, weight, row_weight_V)
    return mean.take()


def release(
    topology: Topology,
    history: Sequence[Modules],
    loss: Callable[[int, Any], float],
    *,
    routed_at: int = 0,
) -> list[Any]:
    """The parts of every path with early stopping (section 2.7). Each path is released as it was
    at the phase with the lowest loss on its own hold-out, the first of equal ones.

    Args:
      history: all modules at the start of every phase so far.
      loss: (path, parts) -> loss on the documents that the path's shard holds out. NaN is worse
        than any number.
      routed_at: the phase of the last routing. Earlier phases do not count.
    """
    released = []
    for path in range(topology.num_paths):
        of_path = [assemble(modules, topology.modules_of(path)) for modules in history[routed_at:]]
        losses = [loss(path, parts) for parts in of_path]
        best = min(range(len(losses)), key=lambda at: (math.isnan(losses[at]), losses[at]))
        released.append(of_path[best])
    return released
