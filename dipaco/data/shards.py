"""A shard: the documents of one path, and the rows planned over them.

Follows DiPaCo section 2.4: one shard a path. Here it is document numbers and a plan, some bytes a
document; two shards may share documents (overlap, section 2.4.4) and nothing is copied.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dipaco.data.corpus import Corpus
from dipaco.data.files import digest_of
from dipaco.data.pack import RowPlan, load_plan, plan_rows, save_plan
from dipaco.errors import EmptyShard


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """What one path trains on."""

    path: int
    documents: np.ndarray  # [n] int64, rising
    plan: RowPlan

    def digest(self) -> str:
        """xxh3 of the documents and their rows."""
        return digest_of(self.path, self.documents, self.plan.digest())


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


def save_shards(folder: Path, shards: Sequence[Shard]) -> None:
    """Writes one file a path: `FOLDER/path_0003.npz`."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in shards:
        save_plan(shard.plan, _file(folder, shard.path))


def load_shard(folder: Path, path: int) -> Shard:
    """Reads one path's shard.

    Raises:
      ShardDamaged: the file is missing or not what was written.
    """
    plan = load_plan(_file(folder, path))
    return Shard(path=path, documents=np.unique(plan.piece_document), plan=plan)


def domain_table(corpus: Corpus, shards: Sequence[Shard]) -> np.ndarray:
    """[paths, domains] int64: how many documents of each domain are in each shard."""
    domains = len(corpus.domain_names)
    counts = [np.bincount(corpus.domains[shard.documents], minlength=domains) for shard in shards]
    return np.array(counts, dtype=np.int64).reshape(len(shards), domains)


def _file(folder: Path, path: int) -> Path:
    return folder / f"path_{path:04d}.npz"
