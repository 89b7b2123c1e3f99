"""Reading a slice of the sources: documents, cut into pieces, hashed, counted by domain.

A piece is what a corpus calls a document: a text, or a part of a long one. Their texts are written
to one file, UTF-8 without a gap. A table has columns about them.

The bound of a domain (`data.max_bytes_per_domain`) counts what this slice has read, so a slice
leaves out only what one reading of everything would leave out too. The merge applies the bound
again, to all slices together (`merging.py`).
"""

import array
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import xxhash

from dipaco.data.config import DataConfig
from dipaco.data.document import PIECE, BadRows, Document, Source, cut_text, domain_name, printable
from dipaco.data.slices import SourcePart
from dipaco.data.sources import open_source

BYTES_BETWEEN_REPORTS = 1 << 20
NO_BOUND = -1
COLUMNS = ("domains", "begins", "ends", "num_bytes", "hashes", "groups")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareProgress:
    """Progress of a stage: `fetch`, `read`, `tokenizer`, `tokens` or `corpus`."""

    stage: str
    done: int = 0  # measured in `unit`
    total: int | None = None  # None = not known
    unit: str = ""  # "bytes", or empty for a message alone
    message: str = ""


OnProgress = Callable[[PrepareProgress], None]


class SourceFacts(msgspec.Struct):
    """Facts about sources beside their documents."""

    domain_names: list[str] = msgspec.field(default_factory=list)
    licences: dict[str, str] = msgspec.field(default_factory=dict)
    left_out: dict[str, str] = msgspec.field(default_factory=dict)  # domain -> reason
    bytes_over: dict[str, int] = msgspec.field(default_factory=dict)  # domain -> beyond its bound
    notes: list[str] = msgspec.field(default_factory=list)
    bad_rows: dict[str, BadRows] = msgspec.field(default_factory=dict)  # URL -> its own

    def add(self, other: "SourceFacts | Source") -> None:
        """Adds everything but the names of domains."""
        self.licences |= other.licences
        self.left_out |= other.left_out
        self.bytes_over = dict(Counter(self.bytes_over) + Counter(other.bytes_over))
        self.notes += map(printable, other.notes)
        for url, bad_rows in other.bad_rows.items():
            self.bad_rows[url] = self.bad_rows.get(url, BadRows()).plus(bad_rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceTable:
    """Columns about the n pieces of a slice, in the order of reading."""

    columns: dict[str, np.ndarray]  # name of `COLUMNS` -> [n]
    source_starts: np.ndarray  # [sources + 1] int64: the first piece of each source
    bounds: np.ndarray  # [sources] int64: `max_bytes_per_domain` of each, or `NO_BOUND`
    facts: SourceFacts

    @property
    def num_pieces(self) -> int:
        return int(self.source_starts[-1])

    def arrays(self) -> dict[str, np.ndarray]:
        """The table as named arrays, for a file."""
        facts = np.frombuffer(msgspec.json.encode(self.facts), dtype=np.uint8)
        rest = {"source_starts": self.source_starts, "bounds": self.bounds, "facts": facts}
        return self.columns | rest


def table_of_arrays(arrays: dict[str, np.ndarray]) -> SliceTable:
    """The inverse of `SliceTable.arrays`."""
    return SliceTable(
        columns={name: arrays[name] for name in COLUMNS},
        source_starts=arrays["source_starts"],
        bounds=arrays["bounds"],
        facts=msgspec.json.decode(arrays["facts"].tobytes(), type=SourceFacts),
    )


def read_slice(
    config: DataConfig, parts: Sequence[SourcePart], texts: Path, progress: OnProgress
) -> SliceTable:
    """Reads parts of sources. Writes their texts to the file `texts`.

    Raises:
      BadSource, BinaryText, BadRecord, MissingColumn, ExtraMissing.
    """
    with texts.open("wb") as stream:
        reader = _Reader(config, stream, progress)
        for part in parts:
            source = open_source(
                config.sources[part.source],
                max_bytes_per_domain=config.max_bytes_per_domain,
                say=lambda message: progress(PrepareProgress(stage="fetch", message=message)),
                part=part,
                skip_bad_rows=config.bad_rows == "skip",
            )
            reader.read(source)
        return reader.table()


class _Reader:
    """Columns that grow while sources are read."""

    def __init__(self, config: DataConfig, texts: BinaryIO, progress: OnProgress):
        self._most_bytes, self._texts, self._progress = config.max_document_bytes, texts, progress
        self._hashes, self._groups = array.array("Q"), array.array("Q")
        self._domains, self._sizes = array.array("I"), array.array("I")
        self._begins, self._ends = array.array("B"), array.array("B")
        self._source_starts, self._bounds = [0], list[int]()
        self._domain_numbers: dict[str, int] = {}
        self._domain_bytes: list[int] = []
        self._facts = SourceFacts()
        self._num_bytes = self._reported_bytes = 0

    def read(self, source: Source) -> None:
        """Reads a source to its end."""
        bound = source.max_bytes_per_domain
        for document in source.documents:
            self._read_document(document, bound)
        self._facts.add(source)
        self._source_starts.append(len(self._hashes))
        self._bounds.append(NO_BOUND if bound is None else bound)

    def _read_document(self, document: Document, bound: int | None) -> None:
        name = domain_name(document.domain)
        domain = self._domain_numbers.setdefault(name, len(self._domain_bytes))
        if domain == len(self._domain_bytes):
            self._domain_bytes.append(0)
        # The split follows from the group, else from the whole text, so pieces stay together.
        group = document.text if document.group is None else document.group
        group_hash = xxhash.xxh3_64_intdigest(group.encode("utf-8", "replace"))
        pieces = [piece for piece in cut_text(document.text, self._most_bytes) if piece.strip()]
        for number, text in enumerate(pieces):
            if bound is not None and self._domain_bytes[domain] >= bound:
                rest = len("".join(pieces[number:]).encode())
                over = self._facts.bytes_over
                over[name] = over.get(name, 0) + rest
                break
            data = text.encode()
            text_hash = xxhash.xxh3_64_intdigest(data)
            self._hashes.append(text_hash)
            self._groups.append(text_hash if document.group == PIECE else group_hash)
            self._domains.append(domain)
            self._begins.append(document.begins and number == 0)
            self._ends.append(document.ends and number == len(pieces) - 1)
            self._sizes.append(len(data))
            self._domain_bytes[domain] += len(data)
            self._write(data)

    def _write(self, data: bytes) -> None:
        self._texts.write(data)
        self._num_bytes += len(data)
        if self._num_bytes - self._reported_bytes >= BYTES_BETWEEN_REPORTS:
            self._report()

    def _report(self) -> None:
        self._reported_bytes = self._num_bytes
        self._progress(PrepareProgress(stage="read", done=self._num_bytes, unit="bytes"))

    def table(self) -> SliceTable:
        self._report()
        self._facts.domain_names = list(self._domain_numbers)
        return SliceTable(
            columns={
                "domains": np.array(self._domains, dtype=np.uint32),
                "begins": np.array(self._begins, dtype=bool),
                "ends": np.array(self._ends, dtype=bool),
                "num_bytes": np.array(self._sizes, dtype=np.uint32),
                "hashes": np.array(self._hashes, dtype=np.uint64),
                "groups": np.array(self._groups, dtype=np.uint64),
            },
            source_starts=np.array(self._source_starts, dtype=np.int64),
            bounds=np.array(self._bounds, dtype=np.int64),
            facts=self._facts,
        )
