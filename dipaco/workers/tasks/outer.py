"""`outer`: steps a module by the contributions of its paths, and records how it was moved.

`stepping.py` computes the step. DiPaCo Algorithm 1, lines 11-15.
"""

import math

import numpy as np

from dipaco import trees
from dipaco.control.planning.tasks import (
    Claim,
    Contribution,
    Fact,
    GradientStats,
    ModuleReady,
    Task,
)
from dipaco.outer.errors import NotFinite
from dipaco.outer.gradient import mean_cosine
from dipaco.runs.run import Run
from dipaco.store.tensors import map_tree, save_state, save_tree
from dipaco.workers.averaging import find_culprit, refuse, weights_of_step
from dipaco.workers.errors import ModuleDiverged
from dipaco.workers.stepping import SteppedModule, contributions_taken, stepped_module


def step_module(run: Run, claim: Claim) -> list[Fact]:
    """Averages a module's contributions, steps it, and saves the module and its optimizer state.

    Weights and fan-in count the paths that took part in the phase. A step without any contribution
    leaves the module as it is, momentum included. With a quorum it takes what `Quorums.take` has
    decided: late contributions of the phase before, then those of its own phase that are in.

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
    try:
        stepped = stepped_module(run, task, stored, contributions)
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
            gradient_stats=_gradient_stats(contributions, stepped),
        )
    ]


def _check_bases(run: Run, task: Task, contributions: list[Contribution]) -> None:
    """Refuses a contribution that did not start from the module at the start of its phase."""
    digests = {
        phase: run.ledger.facts.module(task.arm, task.module, phase).parameters.digest
        for phase in {contribution.phase for contribution in contributions}
    }
    for contribution in contributions:
        if contribution.base_digest != digests[contribution.phase]:
            refuse(contribution, "It started from other parameters than the module's.")


def _gradient_stats(contributions: list[Contribution], stepped: SteppedModule) -> GradientStats:
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
    )
