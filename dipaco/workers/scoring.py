"""Scores of documents under paths: the documents that a path scores, and how it does."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dipaco.data.corpus import TokenReader
from dipaco.data.windows import first_tokens
from dipaco.evaluation.perplexity import TokenScores, score_documents, score_tokens
from dipaco.routing import token_router
from dipaco.routing.config import LIKELIHOOD
from dipaco.routing.likelihood import likeliest, prefix_scores
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree


class Held(NamedTuple):
    """The documents that are evaluated, of tune and of test, and where features send them."""

    documents: np.ndarray  # int64 [N], ascending
    is_test: np.ndarray  # bool [N], else it is of tune
    shortlists: np.ndarray  # int32 [N, n], the paths that are compared by likelihood, best first

    @property
    def paths(self) -> np.ndarray:
        """The best path of each by features, int32 [N]."""
        return self.shortlists[:, 0]


class ScoresOfPaths(NamedTuple):
    """Log-likelihoods of the held documents under the paths that have scored them, in nats.
    They are 0 under the others.
    """

    sums: np.ndarray  # float64 [P, N]
    counts: np.ndarray  # int64 [N], tokens summed
    prefixes: np.ndarray  # float64 [P, N], of the tokens before those


class DocumentScores(NamedTuple):
    """Log-likelihoods of test documents, each under the path that it is routed to, in nats."""

    documents: np.ndarray  # int64 [N], ascending
    sums: np.ndarray  # float64 [N]
    counts: np.ndarray  # int64 [N], tokens summed


def held_documents(run: Run, arm: str, phase: int) -> Held:
    """The documents that are evaluated, and the paths of each in this arm."""
    held = load_tree(run.objects, run.routing_of(arm, phase).artifacts["held"])
    shortlists = held["shortlists"]
    if not run.plan.arm(arm).is_routed:
        shortlists = np.zeros_like(shortlists[:, :1])
    return Held(held["documents"], held["is_test"], shortlists)


def documents_for_router(run: Run) -> np.ndarray:
    """The documents that the router within documents learns from."""
    return token_router.learned_from(run.corpus.documents("router"), run.config.reroute.steps)


def scores_every_path(run: Run, arm: str, phase: int) -> bool:
    """True if every document is scored under every path, to find the best path of each."""
    is_last = phase == run.plan.arm(arm).phases
    return is_last and run.plan.arm(arm).is_routed and run.config.evaluation.best_path


def compares_paths(run: Run, arm: str, phase: int) -> bool:
    """True if documents are scored under more paths than the one that features choose."""
    by_likelihood = run.config.routing.rule == LIKELIHOOD and run.plan.arm(arm).is_routed
    return by_likelihood or scores_every_path(run, arm, phase)


def scored_documents(run: Run, held: Held, arm: str, phase: int, path: int) -> np.ndarray:
    """True for the held documents that are scored under a path: bool [N]."""
    if scores_every_path(run, arm, phase):
        return np.ones(len(held.documents), bool)
    if compares_paths(run, arm, phase):
        return (held.shortlists == path).any(axis=1)
    return held.paths == path


def scores_of_paths(run: Run, held: Held, arm: str, phase: int) -> ScoresOfPaths:
    """Scores of all paths of a release, if it compares paths."""
    shape = run.plan.arm(arm).topology.num_paths, len(held.documents)
    result = ScoresOfPaths(np.zeros(shape), np.zeros(shape[1], np.int64), np.zeros(shape))
    for path, score in enumerate(saved_scores(run, arm, phase)):
        mine = scored_documents(run, held, arm, phase, path)
        result.sums[path, mine], result.counts[mine] = score["sums"], score["counts"]
        result.prefixes[path, mine] = score["prefixes"]
    return result


def saved_scores(run: Run, arm: str, phase: int) -> Iterator[dict[str, np.ndarray]]:
    """Scores that each path of a release has saved, in path order."""
    for receipt in run.ledger.facts.scores(arm, phase):
        yield load_tree(run.objects, receipt)


def document_scores(run: Run, arm: str, phase: int) -> DocumentScores:
    """Scores that make up the perplexity of a release, test document by test document.

    Raises:
      NotAvailable: it is not scored.
    """
    held = held_documents(run, arm, phase)
    if compares_paths(run, arm, phase):
        scores = scores_of_paths(run, held, arm, phase)
        path_N = by_rule(run, held, scores.prefixes)
        sum_N = scores.sums[path_N, np.arange(len(path_N))]
        documents_N, count_N = held.documents, scores.counts
    else:
        saved = list(saved_scores(run, arm, phase))
        documents_N, sum_N, count_N = (
            np.concatenate([score[name] for score in saved])
            for name in ("documents", "sums", "counts")
        )
    order_N = np.argsort(documents_N)[held.is_test]
    return DocumentScores(documents_N[order_N], sum_N[order_N], count_N[order_N])


def by_likelihood(run: Run, held: Held, prefix_PN: np.ndarray) -> np.ndarray:
    """The path of each held document by its likelihood: int32 [N]."""
    score_NP = prefix_scores(prefix_PN.T, held.shortlists, run.config.routing.prior_nats)
    return likeliest(score_NP, held.shortlists)


def by_rule(run: Run, held: Held, prefix_PN: np.ndarray) -> np.ndarray:
    """The path of each held document by `routing.rule`: int32 [N]."""
    if run.config.routing.rule == LIKELIHOOD:
        return by_likelihood(run, held, prefix_PN)
    return held.paths


def routed_paths(run: Run, held: Held, arm: str, phase: int) -> np.ndarray:
    """The same, read from the saved scores of a release if likelihood decides."""
    if run.config.routing.rule == LIKELIHOOD and run.plan.arm(arm).is_routed:
        return by_likelihood(run, held, scores_of_paths(run, held, arm, phase).prefixes)
    return held.paths


def score_under_path(
    run: Run, parts: Any, tokens_of: TokenReader, documents: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Summed log-likelihood of documents under a path, and how many tokens are counted."""
    return score_documents(*_asked(run, parts, tokens_of, documents), **_options(run))


def score_tokens_under_path(
    run: Run, parts: Any, tokens_of: TokenReader, documents: np.ndarray
) -> TokenScores:
    """The same, with the scores of each token and of the prefix."""
    return score_tokens(*_asked(run, parts, tokens_of, documents), **_options(run))


def _asked(
    run: Run, parts: Any, tokens_of: TokenReader, documents: np.ndarray
) -> tuple[Any, np.ndarray, np.ndarray]:
    tokens, lengths = first_tokens(tokens_of, documents, run.config.data.length)
    return run.scoring_programs.log_likelihoods(parts), tokens, lengths


def _options(run: Run) -> dict[str, int]:
    return {
        "prefix_tokens": run.config.data.prefix_tokens,
        "batch_size": run.config.evaluation.batch_size,
    }
