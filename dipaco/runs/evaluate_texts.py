"""Perplexity of any documents under a release: `dipaco evaluate --documents`."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dipaco.control.release import Release
from dipaco.data.first_tokens import encode_first_tokens
from dipaco.errors import NothingToScore
from dipaco.evaluation.perplexity import perplexity, score_documents
from dipaco.runs.routing import features, router_of
from dipaco.runs.run import Run

CHUNK_DOCUMENTS = 4096  # in memory at once


def evaluate_texts(
    run: Run, release: Release, texts: Iterable[str], path: int | None = None
) -> dict[str, Any]:
    """Perplexity of any documents under a release.

    Args:
      run: of the release.
      release: to evaluate.
      texts: documents; read in chunks, so a large file is never all in memory.
      path: scores all documents; None = each is routed.

    Returns:
      JSON values: perplexity, tokens and documents that count, documents too short to evaluate,
      documents per path.

    Raises:
      NothingToScore: no document is longer than the routing prefix.
    """
    data = run.config.data
    likelihoods: dict[int, Any] = {}
    sums, counts = [np.zeros(0)], [np.zeros(0, np.int64)]
    documents_by_path: Counter[int] = Counter()
    too_short = 0
    tokenizer = run.corpus.tokenizer()
    for chunk in _chunks(texts, CHUNK_DOCUMENTS):
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
