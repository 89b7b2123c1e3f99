"""Perplexity of any texts under a release: `dipaco evaluate --documents`."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dipaco.control.planning.release import Release
from dipaco.data.document import cut_text
from dipaco.data.windows import cut_windows, predicted_bytes
from dipaco.errors import NoTexts, NothingToScore
from dipaco.evaluation.perplexity import bits_per_byte, perplexity, score_documents
from dipaco.runs.routing import RecentPaths, paths_of_prefixes, routing_by
from dipaco.runs.run import Run

CHUNK_DOCUMENTS = 1024  # So many are in memory at once.


def evaluate_texts(
    run: Run,
    release: Release,
    texts: Iterable[str],
    path: int | None = None,
    rule: str | None = None,
    *,
    beginnings: bool = False,
) -> dict[str, Any]:
    """Perplexity of any texts under a release.

    A text is cut into documents as for training (`data.max_document_bytes`). Each is routed by its
    first `data.prefix_tokens`, and all tokens after these are predicted, in windows of
    `data.length`.

    Args:
      texts: read in chunks, so a large file is never all in memory.
      path: scores all documents. None: each is routed.
      rule: routes them. None: `routing.rule`.
      beginnings: only the first window of each document counts, as in the report of a run.

    Returns:
      JSON values: perplexity; bits per byte; tokens that were predicted, of how many there are, and
      the bytes of their text; documents and windows that count; documents too short to evaluate;
      documents per path.

    Raises:
      NoTexts: there is none, or nothing in them.
      NothingToScore: no document is longer than the routing prefix.
      HalfCharacter: a text holds something that is no character.
      NotAllPaths: documents are routed by likelihood, and a path is missing.
    """
    data = run.config.data
    recent = RecentPaths(run, release)
    sums, counts = [np.zeros(0)], [np.zeros(0, np.int64)]
    documents_by_path: Counter[int] = Counter()
    too_short = tokens_read = num_bytes = 0
    tokenizer = run.corpus.tokenizer()
    for chunk in _chunks(_documents(texts, data.max_document_bytes), CHUNK_DOCUMENTS):
        encoded = tokenizer.encode(chunk)
        tokens_read += sum(map(len, encoded))
        long = [tokens for tokens in encoded if len(tokens) > data.prefix_tokens]
        too_short += len(encoded) - len(long)
        if not long:
            continue
        prefixes = np.stack([tokens[: data.prefix_tokens] for tokens in long])
        paths = _paths_of(run, release, prefixes, path, rule, recent)
        windows = cut_windows(long, data.length, data.prefix_tokens, 1 if beginnings else None)
        num_bytes += predicted_bytes(tokenizer, windows.tokens, windows.lengths, data.prefix_tokens)
        for one in recent.held_first(np.unique(paths).tolist()):
            documents_by_path[one] += int((paths == one).sum())
            mine = paths[windows.documents] == one
            scored = score_documents(
                recent.log_likelihoods(one),
                windows.tokens[mine],
                windows.lengths[mine],
                prefix_tokens=data.prefix_tokens,
                batch_size=run.config.evaluation.batch_size,
            )
            sums.append(scored[0])
            counts.append(scored[1])
    tokens_scored = np.concatenate(counts)
    if not tokens_read:
        raise NoTexts
    if not tokens_scored.size:
        raise NothingToScore(documents=too_short)
    value, num_tokens = perplexity(np.concatenate(sums), tokens_scored), int(tokens_scored.sum())
    return {
        "perplexity": value,
        "bits_per_byte": bits_per_byte(value, num_tokens, num_bytes),
        "tokens": num_tokens,
        "bytes": num_bytes,
        "of_tokens": tokens_read,
        "windows": len(tokens_scored),
        "documents": documents_by_path.total(),
        "too_short": too_short,
        "paths": {str(one): number for one, number in sorted(documents_by_path.items())},
    }


def _paths_of(
    run: Run,
    release: Release,
    prefix: np.ndarray,
    path: int | None,
    rule: str | None,
    recent: RecentPaths,
) -> np.ndarray:
    if path is not None or not run.plan.arm(release.arm).is_routed or run.config.num_paths == 1:
        return np.full(len(prefix), path or 0, np.int32)
    lengths = np.full(len(prefix), prefix.shape[1], np.int32)
    return paths_of_prefixes(run, release, routing_by(run, rule), prefix, lengths, recent)


def _documents(texts: Iterable[str], max_bytes: int) -> Iterator[str]:
    """Cuts texts like `dipaco.data.reading`, so that a piece of blanks is none."""
    for text in texts:
        yield from (piece for piece in cut_text(text, max_bytes) if piece.strip())


def _chunks(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(texts)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk
