"""How much each contribution counts in an outer step, and each row of the vocabulary in it.

DiPaCo equation 3: by the documents of its path; and by the square root of the fan-in.
"""

from typing import NamedTuple

import numpy as np

from dipaco.control.tasks import Contribution, Task
from dipaco.outer.gradient import path_weights, weight_in_step
from dipaco.outer.vocabulary import (
    RowCounts,
    effective_fan_in,
    row_shares,
    row_weights_in_step,
    sent_rows,
)
from dipaco.runs.run import Run


class ContributionWeights(NamedTuple):
    """How much one contribution counts in a step."""

    weight: float
    row_weight_V: np.ndarray | None  # of rows of the vocabulary; None: as all else
    sent_V: np.ndarray | None  # the rows that it holds; None: all


def weights_of_step(
    run: Run, task: Task, contributions: list[Contribution]
) -> tuple[list[ContributionWeights], int]:
    """Returns the weights of each contribution, in order, and the fan-in of the step: the number
    of paths through the module in the newest phase among them.
    """
    arm, settings = run.plan.arm(task.arm), run.config.outer
    alphas: dict[tuple[int, int], float] = {}
    fan_ins: dict[int, int] = {}
    counts: dict[int, RowCounts | None] = {}
    shares: dict[int, np.ndarray] = {}  # for rows of the vocabulary, and their fan-ins
    row_fan_ins: dict[int, np.ndarray] = {}
    for phase in sorted({contribution.phase for contribution in contributions}):
        through = arm.paths_through(task.module, phase)
        if arm.is_routed:
            documents = run.shards_of(run.routing_of(task.arm, phase)).documents
        else:  # a base model, whose paths share the text out
            documents = [1] * arm.topology.num_paths
        of_phase = path_weights(
            [documents[path] for path in through], by_documents=settings.weigh_by_documents
        )
        fan_ins[phase] = len(through)
        alphas |= {(phase, path): a for path, a in zip(through, of_phase.tolist(), strict=True)}
        counts[phase] = of_tokens = run.counts_through(task.arm, task.module, phase)
        if of_tokens is not None:
            shares[phase] = row_shares(of_tokens, of_phase)
            row_fan_ins[phase] = effective_fan_in(shares[phase])
    fan_in = fan_ins[max(fan_ins)]  # of the newest phase among them

    def weights_of(phase: int, path: int) -> ContributionWeights:
        rescale = settings.rescale_by_fan_in
        weight = weight_in_step(
            alphas[phase, path], fan_ins[phase], fan_in, rescale_by_fan_in=rescale
        )
        if (of_tokens := counts[phase]) is None:
            return ContributionWeights(weight, None, None)
        place = arm.paths_through(task.module, phase).index(path)
        row_weight_V = row_weights_in_step(
            shares[phase][place], row_fan_ins[phase], fan_in, rescale_by_fan_in=rescale
        )
        return ContributionWeights(weight, row_weight_V, sent_rows(of_tokens, place))

    return [weights_of(each.phase, each.path) for each in contributions], fan_in
