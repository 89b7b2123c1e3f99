"""`outer`: averages the contributions of the paths to one module, and steps it.

Contributions are added in path order, so the bits of the sum do not depend on the order of arrival.
With a quorum they depend on which came in time: what a step takes is recorded before it begins, and
contributions that were late for the step before come first. DiPaCo Algorithm 1, lines 11-15.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dipaco import trees
from dipaco.control.facts.facts import StoredModule
from dipaco.control.planning.tasks import (
    Claim,
    Contribution,
    Fact,
    GradientStats,
    ModuleReady,
    Task,
)
from dipaco.model.config import VOCABULARY_AXIS
from dipaco.outer.correlation import lag_cosine
from dipaco.outer.errors import NotFinite
from dipaco.outer.gradient import ContributionNorm, mean_cosine
from dipaco.outer.step import Module, fresh, outer_step
from dipaco.runs.run import Run
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.tensors import load_state, map_tree, read_pieces, save_state, save_tree
from dipaco.workers.averaging import (
    ContributionWeights,
    find_culprit,
    refuse,
    weighted_mean,
    weights_of_step,
)
from dipaco.workers.errors import ContributionMissing, ModuleDiverged


def step_module(run: Run, claim: Claim) -> list[Fact]:
    """Averages a module's contributions, steps it, and saves the module and its optimizer state.

    Weights and fan-in count the paths that took part in the phase. A module that no path of the
    phase goes through stays as it is, momentum included. With a quorum, late contributions are left
    for the next step.

    Raises:
      ContributionMissing, ContributionRefused: a path must train again.
      ModuleDiverged: the step made a parameter infinite or not a number.
    """
    task = claim.task
    module = task.module
    stored = run.ledger.facts.module(task.arm, module, task.phase)
    contributions = contributions_taken(run, task, claim)
    if not contributions:
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
    _check_bases(run, task, contributions)
    lag = None

    def measure_lag(before: Module, momentum: Module, mean: Module) -> None:
        nonlocal lag
        lag = _lag_cosine(run, task, stored, before, momentum, mean)

    # The state that an own step leaves does not say what the last mean was.
    on_mean = None if run.rule("outer_step") is not None else measure_lag
    try:
        stepped = stepped_module(run, task, stored, contributions, on_mean)
    except NotFinite:
        weights, _ = weights_of_step(run, task, contributions)
        like = trees.outline(map_tree(run.objects, stored.parameters))
        find_culprit(run, contributions, weights, like)
        raise
    for name, leaf in trees.flatten(stepped.after):
        if not np.isfinite(leaf).all():
            raise ModuleDiverged(module=module, phase=task.phase, name=name)
    return [
        ModuleReady(
            arm=task.arm,
            module=module,
            phase=task.phase + 1,
            parameters=save_tree(run.objects, "modules", stepped.after),
            outer_state=save_state(run.objects, stepped.momentum),
            gradient_norm=stepped.norm,
            gradient_stats=_gradient_stats(contributions, stepped, lag),
        )
    ]


class SteppedModule(NamedTuple):
    """A module after its outer step, and what was measured of its contributions."""

    after: Module
    momentum: dict[str, Any]
    norm: float  # the norm of the mean outer gradient
    norm_by_weight: float  # the same without rows of the vocabulary with other weights
    norms: list[ContributionNorm]  # one for each contribution
    weights: list[ContributionWeights]


def stepped_module(
    run: Run,
    task: Task,
    stored: StoredModule,
    contributions: list[Contribution],
    on_mean: Callable[[Module, Module, Module], None] | None = None,
) -> SteppedModule:
    """Computes an outer step: for the `outer` task, and on every machine that fetches the module as
    its contributions, to the same bits.

    Args:
      stored: the module before it, and its outer state.
      contributions: the step's, in the order of their sum.
      on_mean: called with (module, outer state, mean outer gradient) before they are overwritten.

    Raises:
      ContributionRefused.
      NotFinite: the mean holds a NaN or an infinity.
    """
    settings, rule = run.config.outer, run.rule("outer_step")
    weights, fan_in = weights_of_step(run, task, contributions)
    like = trees.outline(map_tree(run.objects, stored.parameters))
    mean, norms = weighted_mean(run, contributions, weights, like)
    # Mapped only now: while adding, memory holds the sum, a contribution and the next.
    before = map_tree(run.objects, stored.parameters)
    momentum = fresh(settings, before, rule)
    if stored.outer_state is not None:
        momentum = load_state(run.objects, stored.outer_state, momentum)
    has_rows = weights[0].row_weight_V is not None
    norm_by_weight = _norm_without_rows(mean) if has_rows else None
    if on_mean is not None:
        on_mean(before, momentum, mean)
    after, momentum, norm = outer_step(settings, before, mean, momentum, fan_in, rule)
    return SteppedModule(
        after, momentum, norm, norm if norm_by_weight is None else norm_by_weight, norms, weights
    )


def contributions_taken(run: Run, task: Task, claim: Claim | None = None) -> list[Contribution]:
    """The contributions that an outer step takes, in the order of their sum.

    Args:
      claim: decides what a step with a quorum takes, at its first call. None: reads it.

    Raises:
      ContributionMissing: one was refused, and its path trains again.
      ClaimLost: another worker holds the step.
    """
    arm = run.plan.arm(task.arm)
    awaited = [(task.phase, path) for path in arm.paths_through(task.module, task.phase)]
    if arm.has_quorum:
        quorums = run.ledger.quorums
        taken = quorums.of_step(task) if claim is None else quorums.take(claim)
        awaited = [(each.phase, each.path) for each in taken]
    by_phase_and_path = {
        (contribution.phase, contribution.path): contribution
        for phase in sorted({phase for phase, _ in awaited})
        for contribution in run.ledger.facts.contributions(task.arm, task.module, phase)
    }
    for phase, path in awaited:
        if (phase, path) not in by_phase_and_path:
            raise ContributionMissing(path=path, module=task.module, phase=phase)
    return [by_phase_and_path[key] for key in awaited]


def _check_bases(run: Run, task: Task, contributions: list[Contribution]) -> None:
    """Refuses a contribution that did not start from the module at the start of its phase."""
    digests = {
        phase: run.ledger.facts.module(task.arm, task.module, phase).parameters.digest
        for phase in {contribution.phase for contribution in contributions}
    }
    for contribution in contributions:
        if contribution.base_digest != digests[contribution.phase]:
            refuse(contribution, "It started from other parameters than the module's.")


def _gradient_stats(
    contributions: list[Contribution], stepped: SteppedModule, lag: float | None
) -> GradientStats:
    """A path may have a late contribution beside its own one: the norm of the newer is kept. The
    cosine leaves out rows of the vocabulary with other weights.
    """
    of_rest = [norm.by_weight for norm in stepped.norms]
    weights = [each.weight for each in stepped.weights]
    cosine = mean_cosine(weights, of_rest, stepped.norm_by_weight)
    by_path = zip(contributions, stepped.norms, strict=True)
    return GradientStats(
        {contribution.path: norm.whole for contribution, norm in by_path},
        None if math.isnan(cosine) else cosine,
        lag,
    )


def _lag_cosine(
    run: Run, task: Task, stored: StoredModule, before: Module, momentum: Module, mean: Module
) -> float | None:
    """The cosine between this mean and the mean of the phase before. None if that phase did not
    move the module, or if the module that it began with is lost. Only an `inspect` would miss it.
    """
    if task.phase == 0:
        return None
    earlier = run.ledger.facts.module(task.arm, task.module, task.phase - 1).parameters
    if earlier == stored.parameters:
        return None
    try:
        pieces = read_pieces(run.objects, earlier)
        return lag_cosine(run.config.outer, pieces, before, momentum, mean)
    except (ObjectMissing, ObjectDamaged):
        return None


def _norm_without_rows(mean: Mapping[str, Any]) -> float:
    """The norm of a mean without the rows of the vocabulary."""
    kept = [leaf for name, leaf in trees.flatten(mean) if name not in VOCABULARY_AXIS]
    return math.sqrt(sum(float(np.vdot(leaf, leaf)) for leaf in kept))
