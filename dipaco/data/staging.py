"""Staging: documents as text, read once from their sources and stored until they are tokens.

A source may be slow, or unavailable the second time, and the tokenizer is trained before the first
token is written. So documents are first written to files of a megabyte, in the order of the source,
with a few flat arrays about them. A document's domain, its split and whether it is kept are decided
here. Only the arrays grow with the corpus (22 bytes a document); they are in `documents.npz`, which
is written last.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from dipaco.data.config import DataConfig
from dipaco.data.errors import EmptyCorpus
from dipaco.data.reading import Pieces, SourceFacts
from dipaco.data.sources import open_source
from dipaco.data.splitmix import splitmix
from dipaco.data.text_chunks import ChunkWriter, chunk_file, read_chunk
from dipaco.files import write_arrays

DOCUMENTS = "documents.npz"
HASHES_AT_ONCE = 1 << 20
SPLITS = ("train", "valid", "router", "short")  # by code; short = too short for valid or router


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staged:
    """Staged documents. Chunk c holds documents chunk_starts[c] to chunk_starts[c + 1]."""

    folder: Path
    chunk_starts: np.ndarray  # [chunks + 1] int64
    domains: np.ndarray  # [N] uint16: number in `domain_names`
    splits: np.ndarray  # [N] uint8: number in `SPLITS`
    begins: np.ndarray  # [N] bool: the beginning of a text
    ends: np.ndarray  # [N] bool: the end of one
    num_bytes: np.ndarray  # [N] uint32 of UTF-8
    hashes: np.ndarray  # [N] uint64 of the text
    is_kept: np.ndarray  # [N] bool: the first document with its text
    num_groups: int
    domain_names: tuple[str, ...]
    licences: dict[str, str]
    left_out: dict[str, str]  # domain -> why it is missing
    bytes_over: dict[str, int]  # domain -> what it has beyond the bound of its source
    notes: tuple[str, ...]

    @property
    def num_chunks(self) -> int:
        return len(self.chunk_starts) - 1

    def kept_in(self, chunk: int) -> np.ndarray:
        """[documents of the chunk] bool."""
        return self.is_kept[self.chunk_starts[chunk] : self.chunk_starts[chunk + 1]]

    def in_sample(self, num_bytes: int) -> np.ndarray:
        """[N] bool: documents of about `num_bytes` of train text, from the whole corpus; by hash,
        so always the same.
        """
        chosen = self.is_kept & (self.splits == SPLITS.index("train"))
        share = num_bytes / max(1, int(self.num_bytes[chosen].sum(dtype=np.int64)))
        return chosen & (fractions(self.hashes, seed=1) < share)

    def sample_of_train(self, num_bytes: int) -> Iterator[str]:
        """The texts that `in_sample` chooses."""
        chosen = self.in_sample(num_bytes)
        for chunk in range(self.num_chunks):
            low, high = self.chunk_starts[chunk], self.chunk_starts[chunk + 1]
            if chosen[low:high].any():
                texts = read_chunk(chunk_file(self.folder, chunk))
                yield from (texts[i] for i in np.flatnonzero(chosen[low:high]))


def fractions(hashes: np.ndarray, seed: int) -> np.ndarray:
    """[N] uint64 -> [N] float64 in [0, 1), independent for each seed."""
    return (splitmix(hashes, seed) >> np.uint64(11)) * 2.0**-53


def stage_documents(
    config: DataConfig,
    folder: Path,
    say: Callable[[str], None],
    count: Callable[[int], None],
) -> Staged:
    """Reads all sources into `folder`, unless they are there already.

    Args:
      config: sources, caps and fractions.
      folder: for these settings only; files of an interrupted reading are overwritten.
      say: called with a sentence before what takes time.
      count: called with the bytes read so far.

    Raises:
      EmptyCorpus: there was no text at all.
    """
    if not (folder / DOCUMENTS).exists():
        _read_sources(config, folder, say, count)
    return open_staged(config, folder / DOCUMENTS, folder)


def open_staged(config: DataConfig, table: Path, folder: Path) -> Staged:
    """The documents of a table (`table_of`), read with these settings; `folder` is for them."""
    with np.load(table, allow_pickle=False) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    facts = msgspec.json.decode(columns.pop("facts").tobytes(), type=SourceFacts)
    groups = columns.pop("groups")
    return Staged(
        folder=folder,
        is_kept=first_of_each(columns["hashes"]),
        splits=_splits(groups, config),
        num_groups=len(np.unique(groups)),
        domain_names=tuple(facts.domain_names),
        licences=facts.licences,
        left_out=facts.left_out,
        bytes_over=facts.bytes_over,
        notes=tuple(facts.notes),
        **columns,
    )


def _read_sources(
    config: DataConfig, folder: Path, say: Callable[[str], None], count: Callable[[int], None]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pieces, chunks = Pieces(), ChunkWriter(folder)

    def keep(data: bytes) -> None:
        if chunks.add(data.decode(), len(data)):
            count(pieces.num_bytes)

    for url in config.sources:
        source = open_source(url, max_bytes_per_domain=config.max_bytes_per_domain, say=say)
        pieces.read(source, config, keep)
    chunks.close()
    count(pieces.num_bytes)
    if not pieces.hashes:
        raise EmptyCorpus(sources=", ".join(f"`{url}`" for url in config.sources))
    columns = pieces.columns()
    starts = np.cumsum([0, *chunks.lengths], dtype=np.int64)
    write_arrays(folder / DOCUMENTS, table_of(columns, pieces.facts, starts))


def table_of(
    columns: dict[str, np.ndarray], facts: SourceFacts, chunk_starts: np.ndarray
) -> dict[str, np.ndarray]:
    """What `open_staged` reads: columns about all documents, and facts about their sources."""
    encoded = np.frombuffer(msgspec.json.encode(facts), dtype=np.uint8)
    return columns | {"chunk_starts": chunk_starts, "facts": encoded}


def _splits(groups: np.ndarray, config: DataConfig) -> np.ndarray:
    fraction = fractions(groups, seed=0)
    splits = np.full(len(groups), SPLITS.index("train"), dtype=np.uint8)
    splits[fraction < config.valid_fraction + config.router_fraction] = SPLITS.index("router")
    splits[fraction < config.valid_fraction] = SPLITS.index("valid")
    return splits


def first_of_each(hashes: np.ndarray) -> np.ndarray:
    """[N] uint64 -> [N] bool: is it the first of its value? In parts by value, to bound memory."""
    is_first = np.zeros(len(hashes), dtype=bool)
    parts = 1 + len(hashes) // HASHES_AT_ONCE
    part_of = hashes % np.uint64(parts) if parts > 1 else np.zeros(len(hashes), dtype=np.uint8)
    for part in range(parts):
        members = np.flatnonzero(part_of == part)
        _, firsts = np.unique(hashes[members], return_index=True)  # the first of equal values
        is_first[members[firsts]] = True
    return is_first


def staging_name(settings: dict[str, object]) -> str:
    """The folder for these settings, so that staged text of other settings is never used."""
    return hashlib.sha256(msgspec.json.encode(settings, order="sorted")).hexdigest()[:16]
