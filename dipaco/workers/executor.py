"""`outer`: averages what the paths contributed to one module, and steps it.

Contributions are added one at a time, in path order: memory does not grow with the fan-in, and the
bits of the sum do not depend on who came first. DiPaCo Algorithm 1, lines 11-15.
"""

import jax
import numpy as np

from dipaco import trees
from dipaco.control.tasks import Claim, Fact, ModuleReady
from dipaco.errors import ContributionOfOtherBase, ModuleDiverged
from dipaco.outer.gradient import WeightedMean, path_weights
from dipaco.outer.step import fresh, outer_step
from dipaco.runs.run import Run
from dipaco.store.tensors import load_state, load_tree, save_state, save_tree


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
    mean = WeightedMean()
    for arrival, weight in zip(arrivals, weights, strict=True):
        if arrival.base_digest != stored.parameters.digest:
            raise ContributionOfOtherBase(path=arrival.path, module=module, phase=task.phase)
        mean.add(load_tree(run.objects, arrival.message), weight)

    before = load_tree(run.objects, stored.parameters)
    if stored.outer_state is None:
        momentum = fresh(settings, before)
    else:
        like = jax.eval_shape(lambda: fresh(settings, before))
        momentum = load_state(run.objects, stored.outer_state, like)
    after, momentum, norm = outer_step(settings, before, mean.take(), momentum, len(arrivals))
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
