"""Staging: documents as text, read once from their sources and stored until they are tokens.

A source may be slow, or unavailable the second time, and the tokenizer is trained before the first
token is written. So documents are first written to files of a megabyte, in the order of the source,
with a few flat arrays about them. A document's domain, its split and whether it is kept are decided
here. Only the arrays grow with the corpus (22 bytes a document); they are in `documents.npz`, which
is written last.
"""

import array
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from dipaco.data.config import DataConfig
from dipaco.data.document import PIECE
from dipaco.data.errors import EmptyCorpus
from dipaco.data.sources import cut_text, open_source
from dipaco.data.splitmix import splitmix
from dipaco.files import write_arrays, write_whole

CHUNK_BYTES = 1 << 20
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

    def chunk_file(self, chunk: int) -> Path:
        return self.folder / f"text_{chunk:06d}.msgpack"

    def kept_in(self, chunk: int) -> np.ndarray:
        """[documents of the chunk] bool."""
        return self.is_kept[self.chunk_starts[chunk] : self.chunk_starts[chunk + 1]]

    def sample_of_train(self, num_bytes: int) -> Iterator[str]:
        """About `num_bytes` of train text from the whole corpus; by hash, so always the same."""
        chosen = self.is_kept & (self.splits == SPLITS.index("train"))
        share = num_bytes / max(1, int(self.num_bytes[chosen].sum(dtype=np.int64)))
        chosen &= fractions(self.hashes, seed=1) < share
        for chunk in range(self.num_chunks):
            low, high = self.chunk_starts[chunk], self.chunk_starts[chunk + 1]
            if chosen[low:high].any():
                texts = read_chunk(self.chunk_file(chunk))
                yield from (texts[i] for i in np.flatnonzero(chosen[low:high]))


def fractions(hashes: np.ndarray, seed: int) -> np.ndarray:
    """[N] uint64 -> [N] float64 in [0, 1), independent for each seed."""
    return (splitmix(hashes, seed) >> np.uint64(11)) * 2.0**-53


def read_chunk(file: Path) -> list[str]:
    return msgspec.msgpack.decode(file.read_bytes(), type=list[str])


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
    table = folder / "documents.npz"
    if not table.exists():
        _read_sources(config, folder, say, count)
    with np.load(table, allow_pickle=False) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    facts = msgspec.json.decode(columns.pop("facts").tobytes(), type=_Facts)
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


class _Facts(msgspec.Struct):
    domain_names: list[str]
    licences: dict[str, str]
    left_out: dict[str, str]
    bytes_over: dict[str, int]
    notes: list[str]


def _read_sources(
    config: DataConfig, folder: Path, say: Callable[[str], None], count: Callable[[int], None]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    facts = _Facts(domain_names=[], licences={}, left_out={}, bytes_over={}, notes=[])
    domain_numbers: dict[str, int] = {}
    domain_bytes: list[int] = []
    hashes, groups = array.array("Q"), array.array("Q")
    domains, sizes = array.array("H"), array.array("I")
    begins, ends = array.array("B"), array.array("B")
    chunk: list[str] = []
    chunk_bytes, chunk_starts = 0, [0]

    def close_chunk() -> None:
        nonlocal chunk, chunk_bytes
        file = folder / f"text_{len(chunk_starts) - 1:06d}.msgpack"
        write_whole(file, lambda stream: stream.write(msgspec.msgpack.encode(chunk)))
        chunk_starts.append(len(hashes))
        chunk, chunk_bytes = [], 0

    for url in config.sources:
        source = open_source(url, max_bytes_per_domain=config.max_bytes_per_domain, say=say)
        cap, bytes_over = source.max_bytes_per_domain, Counter[str]()
        for document in source.documents:
            if document.domain not in domain_numbers:
                domain_numbers[document.domain] = len(domain_bytes)
                domain_bytes.append(0)
            domain = domain_numbers[document.domain]
            # The split follows from the group, else from the whole text, so pieces stay together.
            group = document.text if document.group is None else document.group
            group_hash = xxhash.xxh3_64_intdigest(group.encode("utf-8", "replace"))
            pieces = cut_text(document.text, config.max_document_bytes)
            texts = [piece for piece in pieces if piece.strip()]
            for number, text in enumerate(texts):
                if cap is not None and domain_bytes[domain] >= cap:
                    rest = "".join(texts[number:])
                    bytes_over[document.domain] += len(rest.encode("utf-8", "replace"))
                    break
                data = text.encode("utf-8", "replace")  # a lone surrogate cannot be written
                text_hash = xxhash.xxh3_64_intdigest(data)
                hashes.append(text_hash)
                groups.append(text_hash if document.group == PIECE else group_hash)
                domains.append(domain)
                begins.append(document.begins and number == 0)
                ends.append(document.ends and number == len(texts) - 1)
                sizes.append(len(data))
                domain_bytes[domain] += len(data)
                chunk.append(data.decode())
                chunk_bytes += len(data)
                if chunk_bytes >= CHUNK_BYTES:
                    close_chunk()
                    count(sum(domain_bytes))
        facts.licences |= source.licences
        facts.left_out |= source.left_out
        facts.bytes_over = dict(Counter(facts.bytes_over) + bytes_over + Counter(source.bytes_over))
        facts.notes += source.notes
    if chunk:
        close_chunk()
    count(sum(domain_bytes))
    if not hashes:
        raise EmptyCorpus(sources=", ".join(f"`{url}`" for url in config.sources))

    facts.domain_names = list(domain_numbers)
    columns = {
        "chunk_starts": np.array(chunk_starts, dtype=np.int64),
        "domains": np.array(domains, dtype=np.uint16),
        "begins": np.array(begins, dtype=bool),
        "ends": np.array(ends, dtype=bool),
        "num_bytes": np.array(sizes, dtype=np.uint32),
        "hashes": np.array(hashes, dtype=np.uint64),
        "groups": np.array(groups, dtype=np.uint64),
        "facts": np.frombuffer(msgspec.json.encode(facts), dtype=np.uint8),
    }
    write_arrays(folder / "documents.npz", columns)


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
