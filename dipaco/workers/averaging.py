"""The weighted mean of the contributions to a module, and the weight of each.

DiPaCo equation 3: a contribution counts by the documents of its path, and by the square root of the
fan-in. Rows of the vocabulary may have other weights. Contributions are added one at a time,
so memory does not grow with the fan-in. While one is added, a thread reads and verifies the next.
"""

import collections
import contextlib
import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from dipaco import trees
from dipaco.control.planning.tasks import Contribution, Task
from dipaco.outer.compress import codec_of
from dipaco.outer.errors import BadEncoding
from dipaco.outer.gradient import ContributionNorm, WeightedMean, path_weights, weight_in_step
from dipaco.outer.vocabulary import (
    RowCounts,
    effective_fan_in,
    put_rows,
    row_shares,
    row_weights_in_step,
    sent_rows,
    take_rows,
)
from dipaco.runs.run import Run
from dipaco.store.tensors import map_tree
from dipaco.workers.errors import ContributionRefused

Item = TypeVar("Item")
Loaded = TypeVar("Loaded")


class ContributionWeights(NamedTuple):
    """The weights of one contribution in an outer step."""

    weight: float
    row_weight_V: np.ndarray | None  # one for each row of the vocabulary, None: `weight`
    sent_V: np.ndarray | None  # the rows that it holds, None: all


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
    # Weights and fan-ins of the rows of the vocabulary.
    shares: dict[int, np.ndarray] = {}
    row_fan_ins: dict[int, np.ndarray] = {}
    for phase in sorted({contribution.phase for contribution in contributions}):
        through = arm.contributors(task.module, phase)
        documents = run.shards_of(run.routing_of(task.arm, phase)).documents
        of_phase = path_weights(
            [documents[path] for path in through], by_documents=settings.weigh_by_documents
        )
        fan_ins[phase] = len(through)
        alphas |= {(phase, path): a for path, a in zip(through, of_phase.tolist(), strict=True)}
        counts[phase] = of_tokens = run.counts_through(task.arm, task.module, phase)
        if of_tokens is not None:
            shares[phase] = row_shares(of_tokens, of_phase)
            row_fan_ins[phase] = effective_fan_in(shares[phase])
    fan_in = fan_ins[max(fan_ins)]

    def weights_of(phase: int, path: int) -> ContributionWeights:
        rescale = settings.rescale_by_fan_in
        weight = weight_in_step(
            alphas[phase, path], fan_ins[phase], fan_in, rescale_by_fan_in=rescale
        )
        if (of_tokens := counts[phase]) is None:
            return ContributionWeights(weight, None, None)
        place = arm.contributors(task.module, phase).index(path)
        row_weight_V = row_weights_in_step(
            shares[phase][place], row_fan_ins[phase], fan_in, rescale_by_fan_in=rescale
        )
        return ContributionWeights(weight, row_weight_V, sent_rows(of_tokens, place))

    return [weights_of(each.phase, each.path) for each in contributions], fan_in


def weighted_mean(
    run: Run,
    contributions: list[Contribution],
    weights: list[ContributionWeights],
    like: Mapping[str, Any],
) -> tuple[dict[str, Any], list[ContributionNorm]]:
    """Returns the weighted mean of the contributions, and the norm of each. Each is read once, in
    the order given.
    """

    # A function, so that a contribution is freed before the one after the next is read.
    def add(
        mean: WeightedMean,
        contribution: Contribution,
        message: Any,
        weights: ContributionWeights,
    ) -> ContributionNorm:
        sent_V = weights.sent_V
        expected = _sent(like, sent_V)
        try:
            gradient = codec_of(run.config.outer).decode(message, expected)
        except BadEncoding as error:
            refuse(contribution, str(error))
        difference = trees.difference(expected, gradient)
        if difference is not None:
            refuse(contribution, f"Its {difference}.")
        whole = gradient if sent_V is None else put_rows(gradient, sent_V)
        norm = mean.add(whole, weights.weight, weights.row_weight_V)
        # Finite values whose squares overflow would make the module diverge on any worker.
        if norm.whole == math.inf and all(
            np.isfinite(leaf).all() for _, leaf in trees.flatten(gradient)
        ):
            refuse(contribution, "Its norm is infinite: a value is larger than training gives.")
        return norm

    with (
        ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="sum") as threads,
        one_ahead(
            lambda contribution: map_tree(run.objects, contribution.message), contributions
        ) as messages,
    ):
        mean = WeightedMean(threads)
        norms = [
            add(mean, contribution, next(messages), of_contribution)
            for contribution, of_contribution in zip(contributions, weights, strict=True)
        ]
        return mean.take(), norms


def find_culprit(
    run: Run,
    contributions: list[Contribution],
    weights: list[ContributionWeights],
    like: Mapping[str, Any],
) -> None:
    """Raises `ContributionRefused` for the first contribution that is not finite."""
    for contribution, (_, _, sent_V) in zip(contributions, weights, strict=True):
        message = map_tree(run.objects, contribution.message)
        gradient = codec_of(run.config.outer).decode(message, _sent(like, sent_V))
        for name, leaf in trees.flatten(gradient):
            if not np.isfinite(leaf).all():
                refuse(contribution, f"`{name}` holds a NaN or an infinity.")


def refuse(contribution: Contribution, reason: str) -> NoReturn:
    raise ContributionRefused(
        path=contribution.path, module=contribution.module, phase=contribution.phase, reason=reason
    )


def _sent(like: Mapping[str, Any], sent_V: np.ndarray | None) -> Mapping[str, Any]:
    """The rows of a module like this that a contribution holds."""
    return like if sent_V is None else trees.outline(take_rows(like, sent_V))


@contextlib.contextmanager
def one_ahead(load: Callable[[Item], Loaded], items: Iterable[Item]) -> Generator[Iterator[Loaded]]:
    """Yields an iterator over `load(item)` for each item in order, loading one ahead in a thread,
    which ends with the loop, however that ends.

    An error of `load` is raised in the item's turn. Two loaded items exist at a time: the one in
    use and the next.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as thread:

        def in_turn() -> Iterator[Loaded]:
            waiting = collections.deque()
            for item in items:
                waiting.append(thread.submit(load, item))
                if len(waiting) == 2:
                    yield waiting.popleft().result()
            if waiting:
                yield waiting.popleft().result()

        yield in_turn()
