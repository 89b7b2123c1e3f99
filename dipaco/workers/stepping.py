"""The outer step of a module, computed from its contributions.

The `outer` task computes it, and so does every machine that fetches a module as its contributions,
to the same bits. Contributions are added in path order, so the bits of the sum do not depend on the
order of arrival. With a quorum they depend on which came in time: what a step takes is recorded
before it begins, and contributions that were late for the step before come first. DiPaCo Algorithm
1, lines 11-15.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dipaco import trees
from dipaco.control.facts.facts import StoredModule
from dipaco.control.planning.tasks import Claim, Contribution, Task
from dipaco.model.config import VOCABULARY_AXIS
from dipaco.outer.gradient import ContributionNorm, sum_of_squares
from dipaco.outer.step import Module, first_outer_state, outer_step
from dipaco.runs.run import Run
from dipaco.store.tensors import load_state, map_tree
from dipaco.workers.averaging import ContributionWeights, weighted_mean, weights_of_step
from dipaco.workers.errors import ContributionMissing


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
) -> SteppedModule:
    """Computes an outer step.

    Args:
      contributions: the step's, in the order of their sum.

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
    momentum = first_outer_state(settings, before, rule)
    if stored.outer_state is not None:
        momentum = load_state(run.objects, stored.outer_state, momentum)
    has_rows = weights[0].row_weight_V is not None
    norm_by_weight = _norm_without_rows(mean) if has_rows else None
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
    awaited = [(task.phase, path) for path in arm.contributors(task.module, task.phase)]
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


def _norm_without_rows(mean: Mapping[str, Any]) -> float:
    """The norm of a mean without the rows of the vocabulary."""
    kept = {name: leaf for name, leaf in trees.flatten(mean) if name not in VOCABULARY_AXIS}
    return math.sqrt(sum_of_squares(kept))
