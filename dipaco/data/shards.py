"""A shard: the documents of one path, and the rows planned over them.

Follows DiPaCo section 2.4: one shard a path. A shard is document numbers and a row plan, some bytes
a document. Shards may share documents (overlap, section 2.4.4), and no text is copied.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from dipaco.data.corpus import Corpus
from dipaco.data.errors import EmptyShard
from dipaco.data.pack import RowPlan, ascending, plan_rows
from dipaco.data.splits import splitmix

DOCUMENTS_AT_ONCE = 4096
HOLD_OUT_SEED = 0x686F6C64  # independent of the run's seed, so that runs of several seeds compare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """Documents and rows that one path trains on."""

    path: int
    documents: np.ndarray  # [n] int64, ascending
    plan: RowPlan


def build_shard(
    corpus: Corpus, path: int, document_numbers: np.ndarray, row_length: int, seed: int
) -> Shard:
    """Plans the rows of one path.

    Raises:
      EmptyShard: there are no documents, or too few tokens for a single prediction.
    """
    documents = ascending(np.asarray(document_numbers, dtype=np.int64))
    num_tokens = int(corpus.lengths[documents].sum(dtype=np.int64))
    plan = plan_rows(corpus.lengths, documents, row_length, seed, corpus.edges)
    if not (plan.piece_length > 1).any():
        raise EmptyShard(path=path, documents=len(documents), tokens=num_tokens)
    return Shard(path=path, documents=documents, plan=plan)


def hold_out(
    corpus: Corpus, document_numbers: np.ndarray, share: float, shortest: int
) -> tuple[np.ndarray, np.ndarray]:
    """Divides a shard: (documents to train on, documents held out), each ascending.

    Whether a document is held out depends on its text alone: it is the same in all shards, of all
    paths and phases, and no piece of a text trains a path where another one is held out. Two kinds
    of shard are exceptions, and there other shards, and the base model, may train on what is held
    out. One that would hold out none holds out the text that comes first by lot. One of few long
    texts, where a single drawn text would be more than twice the share, holds out pieces up to the
    share and trains on the rest, also of texts that others hold out whole. The order of texts and
    pieces is the same in all shards.

    Args:
      shortest: number of tokens. Shorter documents of a text that is held out whole are in neither
        part, as they could not be scored.
    """
    documents = ascending(np.asarray(document_numbers, dtype=np.int64))
    if not share:
        return documents, documents[:0]
    text_N = corpus.texts[documents]
    lot_N = splitmix(text_N, HOLD_OUT_SEED).astype(np.float64) / 2.0**64
    is_long_N = corpus.lengths[documents] >= shortest
    is_drawn_N = lot_N < share
    order = np.flatnonzero(is_long_N)
    order = order[lot_N[order].argsort(kind="stable")]
    if len(order):
        is_drawn_N |= text_N == text_N[order[0]]
        count = max(min(round(share * len(order)), len(documents) - 1), 1)
        _, sizes = np.unique(text_N[order][is_drawn_N[order]], return_counts=True)
        if sizes.max() > 2 * count or is_drawn_N.all():
            is_drawn_N[:] = False
            is_drawn_N[order[:count]] = True
    return documents[~is_drawn_N], documents[is_drawn_N & is_long_N]


def token_counts(corpus: Corpus, plan: RowPlan, vocab_size: int) -> np.ndarray:
    """int64 [vocab_size]: how often each token occurs in what a plan trains on, edges included."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    documents = plan.documents
    start, end = plan.edge_tokens
    if start is not None:
        counts[start] += (plan.piece_start < 0).sum()
    if end is not None:
        last = plan.piece_start + plan.piece_length
        counts[end] += (last > corpus.lengths[plan.piece_document]).sum()
    for start in range(0, len(documents), DOCUMENTS_AT_ONCE):
        tokens = corpus.tokens(documents[start : start + DOCUMENTS_AT_ONCE])
        counts += np.bincount(np.concatenate(tokens), minlength=vocab_size)
    return counts


def domain_table(corpus: Corpus, shards: Sequence[Shard]) -> np.ndarray:
    """[paths, domains] int64: how many documents of each domain are in each shard."""
    domains = len(corpus.domain_names)
    counts = [np.bincount(corpus.domains[shard.documents], minlength=domains) for shard in shards]
    return np.array(counts, dtype=np.int64).reshape(len(shards), domains)
