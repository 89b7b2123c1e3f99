"""`outer`: averages what the paths contributed to one module, and steps it.

Contributions are added one at a time, in path order: memory does not grow with the fan-in, and the
bits of the sum do not depend on who came first. While one is added, the next is read and verified
in a thread. DiPaCo Algorithm 1, lines 11-15.
"""

from typing import Any

import numpy as np

from dipaco import trees
from dipaco.control.tasks import Arrival, Claim, Fact, ModuleReady
from dipaco.errors import ContributionOfOtherBase, ModuleDiverged
from dipaco.outer.gradient import WeightedMean, path_weights
from dipaco.outer.step import fresh, outer_step
from dipaco.runs.run import Run
from dipaco.store.tensors import load_state, load_tree, map_tree, save_state, save_tree
from dipaco.workers.prefetch import one_ahead


def step_module(run: Run, claim: Claim) -> list[Fact]:
    """Does the task; its fact is true only once it is recorded."""
    task, settings = claim.task, run.config.outer
    module = task.module
    stored = run.ledger.module(task.arm, module, task.phase)
    arrivals = run.ledger.arrivals(task.arm, module, task.phase)
    documents = run.shard_index().documents
    weights = path_weights(
        [documents[arrival.path] for arrival in arrivals], by_documents=settings.weigh_by_documents
    )
    for arrival in arrivals:
        if arrival.base_digest != stored.parameters.digest:
            raise ContributionOfOtherBase(path=arrival.path, module=module, phase=task.phase)
    mean = _weighted_mean(run, arrivals, weights)

    before = load_tree(run.objects, stored.parameters)
    momentum = fresh(settings, before)
    if stored.outer_state is not None:
        momentum = load_state(run.objects, stored.outer_state, momentum)
    after, momentum, norm = outer_step(settings, before, mean, momentum, len(arrivals))
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
        )
    ]


def _weighted_mean(run: Run, arrivals: list[Arrival], weights: np.ndarray) -> dict[str, Any]:
    """Of all contributions, read once, in the order given."""
    mean = WeightedMean()
    with one_ahead(
        lambda arrival: map_tree(run.objects, arrival.message), arrivals
    ) as contributions:
        for contribution, weight in zip(contributions, weights, strict=True):
            mean.add(contribution, weight)
    return mean.take()
