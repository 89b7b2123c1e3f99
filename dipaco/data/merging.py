"""Merging: the tables of all slices, put together as if one reading had made them.

Only columns are merged. Texts stay in the files of their slices. Everything that depends on all of
the text is decided here: the numbers of domains, the pieces beyond their domain's bound, the first
document with each text, the split of each document, and the places where files of tokens may be
cut, which is where a megabyte of text is full.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from dipaco.data.config import DataConfig
from dipaco.data.encode import TextPlaces, chunk_starts
from dipaco.data.errors import EmptyCorpus, NoGoodRow
from dipaco.data.pack import ascending
from dipaco.data.reading import COLUMNS, NO_BOUND, SliceTable, SourceFacts
from dipaco.data.splits import SPLITS, first_of_each, fractions, splits_of_groups

MOST_DOMAINS = 1 << 16  # Their numbers are two bytes, and each has results of its own.
OTHERS = "(others)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Documents:
    """All N documents within the bounds of their domains, in the order of the sources."""

    domains: np.ndarray  # [N] uint16: number in `facts.domain_names`
    splits: np.ndarray  # [N] uint8: number in `SPLITS`
    begins: np.ndarray  # [N] bool: the document is the beginning of a text
    ends: np.ndarray  # [N] bool: it is the end of one
    num_bytes: np.ndarray  # [N] uint32 of UTF-8
    hashes: np.ndarray  # [N] uint64 of the text
    is_kept: np.ndarray  # [N] bool: it is the first document with its text
    text_starts: np.ndarray  # [N] int64: the first byte of its text in the file of its slice
    slice_starts: np.ndarray  # [slices + 1] int64: the first document of each slice
    chunk_starts: np.ndarray  # [chunks + 1] int64: the first document of each megabyte
    num_groups: int
    facts: SourceFacts

    def in_sample(self, num_bytes: int) -> np.ndarray:
        """[N] bool: documents of about `num_bytes` of train text, from the whole corpus. They are
        chosen by hash, so always the same.
        """
        chosen = self.is_kept & (self.splits == SPLITS.index("train"))
        share = num_bytes / max(1, int(self.num_bytes[chosen].sum(dtype=np.int64)))
        return chosen & (fractions(self.hashes, seed=1) < share)

    def texts(self, number: int, chosen: np.ndarray) -> TextPlaces:
        """Places of the chosen texts, bool [N], that are in slice `number`."""
        here = slice(self.slice_starts[number], self.slice_starts[number + 1])
        return TextPlaces(self.text_starts[here][chosen[here]], self.num_bytes[here][chosen[here]])


def merge(config: DataConfig, tables: Sequence[SliceTable]) -> Documents:
    """Puts the tables of all slices together, in their order.

    Raises:
      EmptyCorpus: there is no text at all.
      NoGoodRow.
    """
    names = dict.fromkeys(name for table in tables for name in table.facts.domain_names)
    numbers = {name: number for number, name in enumerate(names)}
    read = {name: np.concatenate([table.columns[name] for table in tables]) for name in COLUMNS}
    read["domains"] = np.concatenate([_renumbered(table, numbers) for table in tables])
    is_within = _within_bounds(tables, read, len(numbers))
    facts = _facts(tables, numbers, read["domains"][~is_within], read["num_bytes"][~is_within])
    if not is_within.any():
        raise EmptyCorpus(sources=", ".join(f"`{url}`" for url in config.sources))
    columns = {name: values[is_within] for name, values in read.items()}
    columns["domains"] = _counted_alone(columns["domains"], facts)
    groups = columns.pop("groups")
    piece_starts = np.cumsum([0, *(table.num_pieces for table in tables)])
    return Documents(
        **columns,
        splits=splits_of_groups(groups, config.held_fraction, config.router_fraction),
        is_kept=first_of_each(columns["hashes"]),
        text_starts=np.concatenate([_text_starts(table) for table in tables])[is_within],
        slice_starts=np.append(0, np.cumsum(is_within))[piece_starts],
        chunk_starts=chunk_starts(columns["num_bytes"]),
        num_groups=len(ascending(groups)),
        facts=facts,
    )


def _facts(
    tables: Sequence[SliceTable],
    numbers: dict[str, int],
    domains_over: np.ndarray,
    num_bytes_over: np.ndarray,
) -> SourceFacts:
    """The facts of all slices, and the bytes that are over the bounds only for all together."""
    over = np.bincount(domains_over, num_bytes_over, minlength=len(numbers)).astype(np.int64)
    facts = SourceFacts(domain_names=list(numbers))
    for table in tables:
        facts.add(table.facts)
    for url, bad in facts.bad_rows.items():
        if bad.count == bad.of > 0:
            raise NoGoodRow(count=f"{bad.count:,}", source=url, first=bad.first)
    facts.add(SourceFacts(bytes_over=dict(zip(numbers, over.tolist(), strict=True))))
    return facts


def _renumbered(table: SliceTable, numbers: dict[str, int]) -> np.ndarray:
    number_of = np.array([numbers[name] for name in table.facts.domain_names], dtype=np.uint32)
    domains = table.columns["domains"]
    return number_of[domains] if len(domains) else domains


def _counted_alone(domain_N: np.ndarray, facts: SourceFacts) -> np.ndarray:
    """uint16 [N]: numbers of domains. Of too many, those with the fewest documents become one."""
    names = facts.domain_names
    if len(names) <= MOST_DOMAINS:
        return domain_N.astype(np.uint16)
    order = np.argsort(-np.bincount(domain_N, minlength=len(names)), kind="stable")
    alone = np.sort(order[: MOST_DOMAINS - 1])
    number_of = np.full(len(names), MOST_DOMAINS - 1, np.uint16)
    number_of[alone] = np.arange(len(alone))
    facts.domain_names = [*(names[domain] for domain in alone.tolist()), OTHERS]
    facts.notes.append(
        f"The text has {len(names):,} domains, which are kinds of text that results are counted "
        f"for. Those with the fewest documents are one, `{OTHERS}`. A column of fewer values: "
        "`?domain=COLUMN` behind the source."
    )
    return number_of[domain_N]


def _text_starts(table: SliceTable) -> np.ndarray:
    num_bytes = table.columns["num_bytes"].astype(np.int64)
    return np.cumsum(num_bytes) - num_bytes


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
        if bound != NO_BOUND:
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


def _runs(tables: Sequence[SliceTable]) -> Iterator[tuple[int, slice]]:
    """The pieces of each source in each slice, in their order, and its bound."""
    place = 0
    for table in tables:
        starts = table.source_starts.tolist()
        for bound, start, stop in zip(table.bounds.tolist(), starts[:-1], starts[1:], strict=True):
            yield bound, slice(place + start, place + stop)
        place += starts[-1]
