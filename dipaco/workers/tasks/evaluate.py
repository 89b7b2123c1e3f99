"""`score` and `evaluate`: log-likelihoods of validation documents under each path of a release, and
what they come to. `label`: those of the router's documents, before an alternation. `check`: how
well a path predicts what its shard holds out.

A document is scored under the path it was routed to; under every path where the oracle row is asked
for, once, at the end.
"""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from dipaco.control.release import Release
from dipaco.control.tasks import (
    Claim,
    Evaluated,
    Fact,
    PathChecked,
    PathLabelled,
    PathScored,
)
from dipaco.data.corpus import Tokens
from dipaco.data.first_tokens import encode_first_tokens, first_tokens
from dipaco.errors import NothingToScore
from dipaco.evaluation.perplexity import (
    best_path,
    perplexity,
    routed,
    score_documents,
    score_tokens,
)
from dipaco.inner.early_stopping import Best, best_so_far
from dipaco.runs.routing import features, router_of
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.errors import ArmDiverged

CHUNK = 4096  # documents of a file that are in memory at once


def score_path(run: Run, claim: Claim) -> list[Fact]:
    """Scores one path of a release."""
    started = time.monotonic()
    task = claim.task
    release = run.ledger.release(task.arm, task.phase)
    documents, paths = validation(run, task.arm, task.phase)
    corpus = run.tokens_of(documents)
    if not scores_every_path(run, task.arm, task.phase):
        documents = documents[paths == task.path]
    parts = run.path_of(release, task.path)
    scores = {"documents": documents}
    if run.config.reroute.every and scores_every_path(run, task.arm, task.phase):
        sums, counts, scores["values"] = _scored(run, parts, corpus, documents, score_tokens)
        router_documents = run.corpus.documents("router")
        scored = _scored(run, parts, run.corpus, router_documents, score_tokens)
        scores["router_values"] = scored[2]
    else:
        sums, counts = _scored(run, parts, corpus, documents)
    scores |= {"sums": sums, "counts": counts}
    return [
        PathScored(
            arm=task.arm,
            path=task.path,
            phase=task.phase,
            scores=save_tree(run.objects, "scores", scores),
            seconds=time.monotonic() - started,
        )
    ]


def label_path(run: Run, claim: Claim) -> list[Fact]:
    """Scores the router's documents under a path as it is at the start of a phase.

    P paths take P forward passes of each of these documents. A path is the piece that is done
    again when a worker is lost.
    """
    started = time.monotonic()
    task, documents = claim.task, run.corpus.documents("router")
    sums, _ = _scored(run, run.parts_at(task.arm, task.path, task.phase), run.corpus, documents)
    return [
        PathLabelled(
            arm=task.arm,
            path=task.path,
            phase=task.phase,
            scores=save_tree(run.objects, "scores", {"documents": documents, "sums": sums}),
            seconds=time.monotonic() - started,
        )
    ]


def check_path(run: Run, claim: Claim) -> list[Fact]:
    """The loss of a path on what its shard holds out, and the phase at which it was lowest so far.
    DiPaCo section 2.7.
    """
    started = time.monotonic()
    arm, path, phase = run.plan.arm(claim.task.arm), claim.task.path, claim.task.phase
    held_out = load_tree(run.objects, run.routing_of(arm.name, phase).artifacts["held_out"])
    documents = held_out[f"{path:06d}"]
    parts = run.parts_at(arm.name, path, phase)
    sums, counts = _scored(run, parts, run.tokens_of(documents), documents)
    loss = -float(sums.sum()) / int(counts.sum())
    before = None
    if phase > arm.routed_at(phase):
        at = run.ledger.checks(arm.name, phase - 1)[path].best_phase
        before = Best(at, run.ledger.checks(arm.name, at)[path].loss)
    return [
        PathChecked(
            arm=arm.name,
            path=path,
            phase=phase,
            loss=loss,
            best_phase=best_so_far(before, phase, loss).phase,
            seconds=time.monotonic() - started,
        )
    ]


def _scored(
    run: Run,
    parts: Any,
    tokens_of: Tokens,
    documents: np.ndarray,
    score: Callable[..., tuple[np.ndarray, ...]] = score_documents,
) -> tuple[np.ndarray, ...]:
    """Summed log-likelihood of documents under a path, and how many tokens are counted; by
    `score_tokens` also those of each token.
    """
    tokens, lengths = first_tokens(tokens_of, documents, run.config.data.length)
    return score(
        run.programs.log_likelihoods(parts),
        tokens,
        lengths,
        prefix_tokens=run.config.data.prefix_tokens,
        batch_size=run.config.evaluation.batch_size,
    )


def evaluate_release(run: Run, claim: Claim) -> list[Fact]:
    """Brings the scores of all paths together."""
    started = time.monotonic()
    arm, phase = claim.task.arm, claim.task.phase
    documents, paths = validation(run, arm, phase)
    scores = [load_tree(run.objects, receipt) for receipt in run.ledger.scores(arm, phase)]
    best = None
    if scores_every_path(run, arm, phase):
        sums = np.stack([score["sums"] for score in scores])
        counts = scores[0]["counts"]
        value, best = routed(sums, counts, paths), best_path(sums, counts)
    else:
        sums = np.concatenate([score["sums"] for score in scores])
        counts = np.concatenate([score["counts"] for score in scores])
        value = perplexity(sums, counts)
    if not math.isfinite(value):
        raise ArmDiverged(arm=arm, phase=phase, perplexity=value)
    return [
        Evaluated(
            arm=arm,
            phase=phase,
            perplexity=value,
            best_path_perplexity=best,
            documents=len(documents),
            tokens=int(counts.sum()),
            seconds=time.monotonic() - started,
        )
    ]


def validation(run: Run, arm: str, phase: int) -> tuple[np.ndarray, np.ndarray]:
    """The documents that are evaluated and the path of each in this arm: int64 [N], int32 [N]."""
    valid = load_tree(run.objects, run.routing_of(arm, phase).artifacts["valid"])
    is_routed = run.plan.arm(arm).is_routed
    return valid["documents"], valid["paths"] if is_routed else np.zeros_like(valid["paths"])


def scores_every_path(run: Run, arm: str, phase: int) -> bool:
    """Whether every document is scored under every path, so that the best can be told after the
    fact.
    """
    is_last = phase == run.plan.arm(arm).phases
    return is_last and run.plan.arm(arm).is_routed and run.config.evaluation.best_path


def evaluate_texts(
    run: Run, release: Release, texts: Iterable[str], path: int | None = None
) -> dict[str, Any]:
    """Perplexity of any documents under a release; routed, or all under one path.

    Documents are taken in chunks, so a large file is never all in memory.

    Returns:
      JSON values: perplexity, tokens and documents that count, documents too short to evaluate,
      documents per path.

    Raises:
      NothingToScore: no document goes on after the routing prefix.
    """
    data = run.config.data
    likelihoods: dict[int, Any] = {}
    sums, counts = [np.zeros(0)], [np.zeros(0, np.int64)]
    documents_by_path: Counter[int] = Counter()
    too_short = 0
    tokenizer = run.corpus.tokenizer()
    for chunk in _chunks(texts, CHUNK):
        tokens, lengths = encode_first_tokens(tokenizer, chunk, data.length)
        is_scored = lengths > data.prefix_tokens
        too_short += int((~is_scored).sum())
        tokens, lengths = tokens[is_scored], lengths[is_scored]
        paths = _paths_of(run, release, tokens[:, : data.prefix_tokens], path)
        for one in np.unique(paths).tolist():
            if one not in likelihoods:
                likelihoods[one] = run.programs.log_likelihoods(run.path_of(release, one))
            mine = paths == one
            documents_by_path[one] += int(mine.sum())
            scored = score_documents(
                likelihoods[one],
                tokens[mine],
                lengths[mine],
                prefix_tokens=data.prefix_tokens,
                batch_size=run.config.evaluation.batch_size,
            )
            sums.append(scored[0])
            counts.append(scored[1])
    tokens_scored = np.concatenate(counts)
    if not tokens_scored.size:
        raise NothingToScore(documents=too_short)
    return {
        "perplexity": perplexity(np.concatenate(sums), tokens_scored),
        "tokens": int(tokens_scored.sum()),
        "documents": len(tokens_scored),
        "too_short": too_short,
        "paths": {str(one): number for one, number in sorted(documents_by_path.items())},
    }


def _paths_of(run: Run, release: Release, prefix: np.ndarray, path: int | None) -> np.ndarray:
    if path is not None or len(release.paths) == 1:
        return np.full(len(prefix), path or 0, np.int32)
    lengths = np.full(len(prefix), prefix.shape[1], np.int32)
    return router_of(run, release).assign(features(run, prefix, lengths))[:, 0]


def _chunks(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(texts)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
