"""`outer`: averages what the paths contributed to one module, and steps it.

Contributions are added one at a time, in path order: memory does not grow with the fan-in, and the
bits of the sum do not depend on who came first. With a quorum they depend on who came in time: what
a step takes is recorded before it begins, and those that were late for the step before come first.
While one is added, the next is read and verified in a thread. DiPaCo Algorithm 1, lines 11-15.
"""

import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np

from dipaco import trees
from dipaco.control.tasks import Claim, Contribution, Fact, ModuleReady, Moves, Task
from dipaco.outer.compress import Codec, codec
from dipaco.outer.errors import BadEncoding, NotFinite
from dipaco.outer.gradient import WeightedMean, mean_cosine, path_weights, weight_in_step
from dipaco.outer.step import fresh, outer_step
from dipaco.runs.run import Run
from dipaco.store.tensors import load_state, map_tree, save_state, save_tree
from dipaco.workers.errors import ContributionMissing, ContributionRefused, ModuleDiverged
from dipaco.workers.prefetch import one_ahead


def step_module(run: Run, claim: Claim) -> list[Fact]:
    """Does the task; its fact is true only once it is recorded.

    Only paths that took part in the phase contribute: weights and fan-in are theirs. A module that
    no path of the phase goes through stays as it is, momentum included. With a quorum, those that
    are late are not waited for, and come along with the next step.
    """
    task, settings = claim.task, run.config.outer
    module = task.module
    stored = run.ledger.facts.module(task.arm, module, task.phase)
    awaited = _awaited(run, claim)
    if not awaited:
        return [
            ModuleReady(
                arm=task.arm,
                module=module,
                phase=task.phase + 1,
                parameters=stored.parameters,
                outer_state=stored.outer_state,
                gradient_norm=None,
            )
        ]
    arrivals = _arrivals(run, task, awaited)
    weights, fan_in = _weights(run, task, arrivals)
    _check_bases(run, task, arrivals)
    like = trees.outline(map_tree(run.objects, stored.parameters))
    try:
        mean, norms = _weighted_mean(run, arrivals, weights, like)
    except NotFinite:
        _find_culprit(run, arrivals, codec(settings.codec))
        raise
    # Only now: beside the sum there are a contribution and the next.
    before = map_tree(run.objects, stored.parameters)
    momentum = fresh(settings, before)
    if stored.outer_state is not None:
        momentum = load_state(run.objects, stored.outer_state, momentum)
    after, momentum, norm = outer_step(settings, before, mean, momentum, fan_in)
    for name, leaf in trees.flatten(after):
        if not np.isfinite(leaf).all():
            raise ModuleDiverged(module=module, phase=task.phase, name=name)
    return [
        ModuleReady(
            arm=task.arm,
            module=module,
            phase=task.phase + 1,
            parameters=save_tree(run.objects, "modules", after),
            outer_state=save_state(run.objects, momentum),
            gradient_norm=norm,
            moves=_moves(arrivals, weights, norms, norm),
        )
    ]


def _awaited(run: Run, claim: Claim) -> list[tuple[int, int]]:
    """(phase, path) of the contributions that the step takes, in the order of their sum."""
    task = claim.task
    arm = run.plan.arm(task.arm)
    if arm.has_quorum:
        return [(taken.phase, taken.path) for taken in run.ledger.quorums.take(claim)]
    return [(task.phase, path) for path in arm.paths_through(task.module, task.phase)]


def _arrivals(run: Run, task: Task, awaited: list[tuple[int, int]]) -> list[Contribution]:
    """All are there, unless one was refused and its path is not trained again yet."""
    there = {
        (arrival.phase, arrival.path): arrival
        for phase in sorted({phase for phase, _ in awaited})
        for arrival in run.ledger.facts.contributions(task.arm, task.module, phase)
    }
    for phase, path in awaited:
        if (phase, path) not in there:
            raise ContributionMissing(path=path, module=task.module, phase=phase)
    return [there[key] for key in awaited]


def _weights(run: Run, task: Task, arrivals: list[Contribution]) -> tuple[list[float], int]:
    """What each contribution counts for, and the fan-in of the step."""
    arm, settings = run.plan.arm(task.arm), run.config.outer
    alphas: dict[tuple[int, int], float] = {}
    fan_ins: dict[int, int] = {}
    for phase in sorted({arrival.phase for arrival in arrivals}):
        through = arm.paths_through(task.module, phase)
        documents = run.shards_of(run.routing_of(task.arm, phase)).documents
        shares = path_weights(
            [documents[path] for path in through], by_documents=settings.weigh_by_documents
        )
        fan_ins[phase] = len(through)
        alphas |= {(phase, path): a for path, a in zip(through, shares.tolist(), strict=True)}
    fan_in = fan_ins[max(fan_ins)]  # of this phase; where no path of it comes, of the late ones
    weights = [
        weight_in_step(
            alphas[arrival.phase, arrival.path],
            fan_ins[arrival.phase],
            fan_in,
            rescale_by_fan_in=settings.rescale_by_fan_in,
        )
        for arrival in arrivals
    ]
    return weights, fan_in


def _check_bases(run: Run, task: Task, arrivals: list[Contribution]) -> None:
    """Each started from the module as it was at the start of its own phase."""
    digests = {
        phase: run.ledger.facts.module(task.arm, task.module, phase).parameters.digest
        for phase in {arrival.phase for arrival in arrivals}
    }
    for arrival in arrivals:
        if arrival.base_digest != digests[arrival.phase]:
            _refuse(arrival, "It started from other parameters than the module's.")


def _moves(
    arrivals: list[Contribution], weights: list[float], norms: list[float], norm_of_mean: float
) -> Moves:
    """Where a path comes twice, late and in time, its norm is that of the newer."""
    cosine = mean_cosine(weights, norms, norm_of_mean)
    by_path = zip(arrivals, norms, strict=True)
    return Moves(
        {arrival.path: norm for arrival, norm in by_path}, None if math.isnan(cosine) else cosine
    )


def _find_culprit(run: Run, arrivals: list[Contribution], codec: Codec) -> None:
    """Raises `ContributionRefused` for the first that is not finite."""
    for arrival in arrivals:
        contribution = codec.decode(map_tree(run.objects, arrival.message))
        for name, leaf in trees.flatten(contribution):
            if not np.isfinite(leaf).all():
                _refuse(arrival, f"`{name}` holds a NaN or an infinity.")


def _refuse(arrival: Contribution, reason: str) -> NoReturn:
    raise ContributionRefused(
        path=arrival.path, module=arrival.module, phase=arrival.phase, reason=reason
    )


def _weighted_mean(
    run: Run, arrivals: list[Contribution], weights: list[float], like: Mapping[str, Any]
) -> tuple[dict[str, Any], list[float]]:
    """Of all contributions, read once, in the order given, decoded one at a time; and the norm of
    each.
    """
    decode = codec(run.config.outer.codec).decode

    # A function, so that nobody holds on to a contribution while the next but one is read.
    def add(mean: WeightedMean, arrival: Contribution, message: Any, weight: float) -> float:
        try:
            contribution = decode(message)
        except BadEncoding as error:
            _refuse(arrival, str(error))
        difference = trees.difference(like, contribution)
        if difference is not None:
            _refuse(arrival, f"Its {difference}.")
        return mean.add(contribution, weight)

    with (
        ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="sum") as threads,
        one_ahead(lambda arrival: map_tree(run.objects, arrival.message), arrivals) as messages,
    ):
        mean = WeightedMean(threads)
        norms = [
            add(mean, arrival, next(messages), weight)
            for arrival, weight in zip(arrivals, weights, strict=True)
        ]
        return mean.take(), norms
