"""Packing: a plan of which pieces of which documents fill row k, made before any row is read.

Documents are concatenated in a shuffled order and cut every `row_length` tokens, so every row but
the last is full. A row may start and end inside a document. Each piece is its own segment, and
attention never crosses segments. The edge tokens of a document (`tokenizer.py`) count as its
tokens here: its start token is token -1, and its end token follows its last. The plan is four flat
arrays, 16 bytes a piece, and no token is read. With it, row k is found directly, and a position in
the data is one integer (`pipeline.py`).
"""

import dataclasses
from pathlib import Path

import numpy as np

from dipaco.data.errors import ShardDamaged
from dipaco.data.splits import splitmix
from dipaco.data.tokenizer import Edges, EdgeTokens
from dipaco.files import digest_of, write_arrays

NO_TOKEN = -1  # a saved plan has it instead of None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowPlan:
    """Rows of `row_length` tokens. Row k is made of pieces row_starts[k] to row_starts[k + 1]."""

    row_length: int
    edge_tokens: EdgeTokens = EdgeTokens()
    row_starts: np.ndarray  # [rows + 1] int64: the first piece of each row
    piece_document: np.ndarray  # [pieces] int64: document number in the corpus
    piece_start: np.ndarray  # [pieces] int32: first token of the piece in its document, -1 = start
    piece_length: np.ndarray  # [pieces] int32: tokens in the piece

    @property
    def num_rows(self) -> int:
        return len(self.row_starts) - 1

    @property
    def num_tokens(self) -> int:
        return int(self.piece_length.sum(dtype=np.int64))

    @property
    def documents(self) -> np.ndarray:
        """[n] int64, ascending: the documents with pieces in the plan."""
        return ascending(self.piece_document)

    def row(self, k: int) -> list[tuple[int, int, int]]:
        """Row k as a list of (document, start, length)."""
        pieces = slice(self.row_starts[k], self.row_starts[k + 1])
        columns = self.piece_document[pieces], self.piece_start[pieces], self.piece_length[pieces]
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def digest(self) -> str:
        """xxh3 of the whole plan."""
        return digest_of(self.row_length, *map(str, self.edge_tokens), *_arrays(self).values())


def plan_rows(
    lengths: np.ndarray,
    document_numbers: np.ndarray,
    row_length: int,
    seed: int,
    edges: Edges | None = None,
) -> RowPlan:
    """Plans rows over some documents of a corpus.

    Args:
      lengths: [documents of the corpus] tokens in each.
      document_numbers: [N] the documents to use, each once, in any order.
      edges: documents that have edge tokens. None = none.

    Returns:
      A plan with every token of every document once. All rows but the last are full.
    """
    documents = np.sort(np.asarray(document_numbers, dtype=np.int64))
    documents = documents[np.argsort(splitmix(documents, seed), kind="stable")]
    sizes = np.asarray(lengths[documents], dtype=np.int64)
    documents, sizes = documents[sizes > 0], sizes[sizes > 0]
    starts = np.zeros(len(documents), dtype=np.int64)  # number of each document's first token
    edge_tokens = EdgeTokens()
    if edges is not None:
        edge_tokens = edges.tokens
        if edge_tokens.start is not None:
            starts -= edges.begins_N[documents]
        if edge_tokens.end is not None:
            sizes = sizes + edges.ends_N[documents]
        sizes = sizes - starts
    ends = np.cumsum(sizes)
    num_tokens = int(ends[-1]) if len(ends) else 0
    begins = ends - sizes
    del sizes  # A terabyte has 300 million documents: each array of them is gigabytes.

    # A piece lies between two neighbouring cuts. A document or a row starts at a cut.
    row_cuts = np.arange(0, num_tokens, row_length, dtype=np.int64)
    cuts = ascending(np.concatenate([begins, row_cuts]))
    owner = np.searchsorted(ends, cuts, side="right")
    del ends
    begins -= starts
    del starts
    return RowPlan(
        row_length=row_length,
        edge_tokens=edge_tokens,
        row_starts=np.append(np.searchsorted(cuts, row_cuts), len(cuts)).astype(np.int64),
        piece_document=documents[owner],
        piece_start=(cuts - begins[owner]).astype(np.int32),
        piece_length=np.diff(cuts, append=num_tokens).astype(np.int32),
    )


def ascending(numbers: np.ndarray) -> np.ndarray:
    """Each of the numbers once, in ascending order. NumPy's `unique` hashes them, which takes seven
    times as long where they are ascending already, or a few such sequences one after another.
    """
    numbers = np.sort(numbers, kind="stable")
    is_first = np.ones(len(numbers), dtype=bool)
    is_first[1:] = numbers[1:] != numbers[:-1]
    return numbers[is_first]


def save_plan(plan: RowPlan, file: Path) -> None:
    """Writes a plan as one .npz file with its digest, whole or not at all."""
    arrays = _arrays(plan) | {
        "row_length": np.int64(plan.row_length),
        "edge_tokens": np.array([NO_TOKEN if t is None else t for t in plan.edge_tokens]),
        "digest": plan.digest(),
    }
    write_arrays(file, arrays)


def load_plan(file: Path) -> RowPlan:
    """Reads a plan written by `save_plan`.

    Raises:
      ShardDamaged: the file is missing, cut short, or not what was written.
    """
    try:
        # Opened here, because NumPy does not close a file that it cannot read.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            plan = RowPlan(
                row_length=int(arrays["row_length"]),
                edge_tokens=EdgeTokens(
                    *(None if t == NO_TOKEN else t for t in arrays["edge_tokens"].tolist())
                ),
                row_starts=arrays["row_starts"],
                piece_document=arrays["piece_document"],
                piece_start=arrays["piece_start"],
                piece_length=arrays["piece_length"],
            )
            expected = str(arrays["digest"])
    except Exception as error:  # zipfile, zlib and NumPy each have errors of their own
        raise ShardDamaged(file=file, problem=f"it cannot be read ({error})") from error
    if plan.digest() != expected:
        raise ShardDamaged(file=file, problem="its digest is not the recorded one")
    return plan


def _arrays(plan: RowPlan) -> dict[str, np.ndarray]:
    names = ("row_starts", "piece_document", "piece_start", "piece_length")
    return {name: getattr(plan, name) for name in names}
