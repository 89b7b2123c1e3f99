"""Merging: what many slices have read, put together as if one task had read it all.

Only columns are merged; texts stay where they are. What depends on all of the text is decided here:
numbers of domains, which pieces are beyond their domain's bound, which text came first, and where
a chunk of a megabyte ends, at which token files may be cut.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dipaco.data.reading import Pieces, SourceFacts, added
from dipaco.data.staging import first_of_each
from dipaco.data.text_chunks import CHUNK_BYTES

COLUMNS = ("domains", "begins", "ends", "num_bytes", "hashes", "groups")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceTable:
    """What one slice has read, in its order."""

    columns: dict[str, np.ndarray]  # name of `COLUMNS` -> [n]
    source_starts: np.ndarray  # [sources + 1] int64
    sources: tuple[int, ...]  # their numbers in `data.sources`
    bounds: tuple[int | None, ...]  # `max_bytes_per_domain` of each
    facts: SourceFacts

    def arrays(self) -> dict[str, np.ndarray]:
        """As a file of arrays."""
        rest = _Rest(sources=self.sources, bounds=self.bounds, facts=self.facts)
        encoded = np.frombuffer(msgspec.json.encode(rest), dtype=np.uint8)
        return self.columns | {"source_starts": self.source_starts, "rest": encoded}


class _Rest(msgspec.Struct):
    sources: tuple[int, ...]
    bounds: tuple[int | None, ...]
    facts: SourceFacts


def table_of_pieces(pieces: Pieces, sources: Sequence[int]) -> SliceTable:
    """What was read of the sources with these numbers."""
    return SliceTable(
        columns=pieces.columns(),
        source_starts=np.array(pieces.source_starts, dtype=np.int64),
        sources=tuple(sources),
        bounds=tuple(pieces.bounds),
        facts=pieces.facts,
    )


def table_of_arrays(arrays: dict[str, np.ndarray]) -> SliceTable:
    """The inverse of `SliceTable.arrays`."""
    rest = msgspec.json.decode(arrays["rest"].tobytes(), type=_Rest)
    return SliceTable(
        columns={name: arrays[name] for name in COLUMNS},
        source_starts=arrays["source_starts"],
        sources=rest.sources,
        bounds=rest.bounds,
        facts=rest.facts,
    )


class Merged(NamedTuple):
    """All documents, as `staging` has them after one reading of everything."""

    columns: dict[str, np.ndarray]  # of the documents within their bounds
    chunk_starts: np.ndarray  # [chunks + 1] int64
    facts: SourceFacts
    is_within: list[np.ndarray]  # of each slice, bool [pieces it has read]: within the bound
    is_kept: list[np.ndarray]  # the same; and the first document with its text


def merge(tables: Sequence[SliceTable]) -> Merged:
    """Puts the tables of all slices together, in their order."""
    names = dict.fromkeys(name for table in tables for name in table.facts.domain_names)
    numbers = {name: number for number, name in enumerate(names)}
    columns = {
        name: np.concatenate([table.columns[name] for table in tables])
        for name in COLUMNS
        if name != "domains"
    }
    columns["domains"] = np.concatenate([_renumbered(table, numbers) for table in tables])
    is_within = _within_bounds(tables, columns, len(numbers))
    over = np.bincount(
        columns["domains"][~is_within],
        columns["num_bytes"][~is_within],
        minlength=len(numbers),
    )
    facts = SourceFacts(
        domain_names=list(numbers),
        licences={},
        left_out={},
        # The order of domains decides nothing: they are sorted by how much is over.
        bytes_over=added(
            *(table.facts.bytes_over for table in tables),
            {name: int(over[number]) for name, number in numbers.items()},
        ),
        notes=[note for table in tables for note in table.facts.notes],
    )
    for table in tables:
        facts.licences |= table.facts.licences
        facts.left_out |= table.facts.left_out
    columns = {name: values[is_within] for name, values in columns.items()}
    is_kept = np.zeros(len(is_within), dtype=bool)
    is_kept[is_within] = first_of_each(columns["hashes"])
    ends = np.cumsum([len(table.columns["hashes"]) for table in tables])[:-1]
    chunk_starts = _chunk_starts(columns)
    return Merged(columns, chunk_starts, facts, np.split(is_within, ends), np.split(is_kept, ends))


def _renumbered(table: SliceTable, numbers: dict[str, int]) -> np.ndarray:
    of = np.array([numbers[name] for name in table.facts.domain_names], dtype=np.uint16)
    domains = table.columns["domains"]
    return of[domains] if len(domains) else domains


def _within_bounds(
    tables: Sequence[SliceTable], columns: dict[str, np.ndarray], num_domains: int
) -> np.ndarray:
    """Bool [N]: the pieces that one reading of everything would keep. A piece is beyond the bound
    of its source if its domain has that many bytes already, of all sources so far.
    """
    is_within = np.ones(len(columns["hashes"]), dtype=bool)
    read = np.zeros(num_domains, dtype=np.int64)  # bytes of each domain
    for bound, members in _runs(tables):
        domains = columns["domains"][members]
        num_bytes = columns["num_bytes"][members].astype(np.int64)
        if bound is not None:
            order = np.argsort(domains, kind="stable")
            before = np.cumsum(num_bytes[order]) - num_bytes[order]
            starts = np.searchsorted(domains[order], np.arange(num_domains))
            base = np.append(before, 0)[np.minimum(starts, len(before))]
            so_far = before - base[domains[order]] + read[domains[order]]
            within = np.empty(len(order), dtype=bool)
            within[order] = so_far < bound
            is_within[members] = within
            domains, num_bytes = domains[within], num_bytes[within]
        read += np.bincount(domains, num_bytes, minlength=num_domains).astype(np.int64)
    return is_within


def _runs(tables: Sequence[SliceTable]) -> Iterator[tuple[int | None, slice]]:
    """The pieces of each source in each slice, in their order, and its bound."""
    place = 0
    for table in tables:
        starts = table.source_starts
        for bound, start, stop in zip(table.bounds, starts[:-1], starts[1:], strict=True):
            yield bound, slice(place + int(start), place + int(stop))
        place += int(starts[-1])


def _chunk_starts(columns: dict[str, np.ndarray]) -> np.ndarray:
    """A chunk ends with the piece with which it has a megabyte."""
    ends = np.cumsum(columns["num_bytes"], dtype=np.int64)
    starts, read = [0], 0
    while starts[-1] < len(ends):
        last = int(np.searchsorted(ends, read + CHUNK_BYTES))
        starts.append(min(last + 1, len(ends)))
        read = int(ends[starts[-1] - 1])
    return np.array(starts, dtype=np.int64)
