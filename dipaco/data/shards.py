"""A shard: the documents of one path, and the rows planned over them.

Follows DiPaCo section 2.4: one shard a path. Here it is document numbers and a plan, some bytes a
document; two shards may share documents (overlap, section 2.4.4) and nothing is copied.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from dipaco.data.corpus import Corpus
from dipaco.data.pack import RowPlan, plan_rows
from dipaco.errors import EmptyShard


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """What one path trains on."""

    path: int
    documents: np.ndarray  # [n] int64, rising
    plan: RowPlan


def build_shard(
    corpus: Corpus, path: int, document_numbers: np.ndarray, row_length: int, seed: int
) -> Shard:
    """Plans the rows of one path.

    Raises:
      EmptyShard: there are no documents, or too few tokens for a single prediction.
    """
    documents = np.unique(np.asarray(document_numbers, dtype=np.int64))
    num_tokens = int(corpus.lengths[documents].sum(dtype=np.int64))
    plan = plan_rows(corpus.lengths, documents, row_length, seed)
    if not (plan.piece_length > 1).any():
        raise EmptyShard(path=path, documents=len(documents), tokens=num_tokens)
    return Shard(path=path, documents=documents, plan=plan)


def domain_table(corpus: Corpus, shards: Sequence[Shard]) -> np.ndarray:
    """[paths, domains] int64: how many documents of each domain are in each shard."""
    domains = len(corpus.domain_names)
    counts = [np.bincount(corpus.domains[shard.documents], minlength=domains) for shard in shards]
    return np.array(counts, dtype=np.int64).reshape(len(shards), domains)
