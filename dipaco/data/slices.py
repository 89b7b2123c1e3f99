"""Slices: parts of the sources, each of which one task reads (`data.slices`).

Files stand one after another, in the order of reading, as one long line of bytes. It is cut into
slices of equal length. JSON lines are cut inside a file, between two lines, and so are the
documents of `toy:`. Any other file is read whole, in the slice that it begins in, and so is a
source that is no file. Slices in order give the documents of the sources in order, however many
there are.
"""

import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dipaco.data.config import DataConfig
from dipaco.data.source_url import COMPRESSED, SUFFIXES, SourceUrl, files_of, parse_url
from dipaco.data.toy import num_bytes_of
from dipaco.files import digest_of


class FilePart(NamedTuple):
    """A file, or the lines of it that begin in a range of its bytes."""

    file: Path
    start: int = 0
    stop: int | None = None  # None = to its end


class SourcePart(NamedTuple):
    """The part of one source that a slice reads."""

    source: int  # number in `data.sources`
    is_first: bool  # this slice says what concerns the whole source
    files: tuple[FilePart, ...] = ()
    share: "DocumentRange | None" = None  # documents of `toy:`. None = all


class DocumentRange(NamedTuple):
    """A range of something that is cut."""

    start: int
    stop: int
    length: int  # the whole thing's

    def of(self, number: int) -> range:
        """The same range of `number` things. Ranges that meet still meet."""
        return range(self.start * number // self.length, self.stop * number // self.length)


class Listing(NamedTuple):
    """The files of all sources, as one machine sees them."""

    digest: str  # identifies names and sizes
    files: int
    num_bytes: int


class _Unit(NamedTuple):
    """A file, or a source that is none."""

    source: int
    file: Path | None
    num_bytes: int
    is_divisible: bool


def cut_into_slices(config: DataConfig, count: int) -> tuple[list[tuple[SourcePart, ...]], Listing]:
    """The parts that each of `count` slices reads, and the files that they were cut from.

    Raises:
      BadSource: no file matches.
    """
    units = list(_units(config))
    total = sum(unit.num_bytes for unit in units)
    bounds = [total * number // count for number in range(count + 1)]
    slices: list[list[SourcePart]] = [[] for _ in range(count)]
    begun = set[int]()
    place = 0
    for unit in units:
        if unit.is_divisible and unit.num_bytes:
            first = bisect.bisect_right(bounds, place) - 1
            last = bisect.bisect_left(bounds, place + unit.num_bytes) - 1
            ranges = {
                number: (
                    max(bounds[number] - place, 0),
                    min(bounds[number + 1] - place, unit.num_bytes),
                )
                for number in range(first, last + 1)
                if bounds[number] < bounds[number + 1]
            }
        else:
            ranges = {min(bisect.bisect_right(bounds, place) - 1, count - 1): (0, unit.num_bytes)}
        for number, (start, stop) in ranges.items():
            _append(slices[number], unit, start, stop, is_first=unit.source not in begun)
            begun.add(unit.source)
        place += unit.num_bytes
    of = [text for u in units for text in (f"{u.source} {u.file}", str(u.num_bytes))]
    listing = Listing(digest_of(*of), sum(u.file is not None for u in units), total)
    return [tuple(parts) for parts in slices], listing


def _append(parts: list[SourcePart], unit: _Unit, start: int, stop: int, *, is_first: bool) -> None:
    if unit.file is None:
        share = DocumentRange(start, stop, unit.num_bytes) if unit.num_bytes else None
        parts.append(SourcePart(unit.source, is_first, share=share))
        return
    file = FilePart(unit.file, start, stop if stop < unit.num_bytes else None)
    if parts and parts[-1].source == unit.source:
        parts[-1] = parts[-1]._replace(files=(*parts[-1].files, file))
    else:
        parts.append(SourcePart(unit.source, is_first, (file,)))


def _units(config: DataConfig) -> Iterator[_Unit]:
    for number, url in enumerate(config.sources):
        source = parse_url(url)
        if source.kind in SUFFIXES:
            for file in files_of(source):
                is_divisible = source.kind == "jsonl" and file.suffix not in COMPRESSED
                yield _Unit(number, file, file.stat().st_size, is_divisible)
        else:
            is_toy = source.kind == "toy"
            yield _Unit(number, None, _toy_bytes(source) if is_toy else 0, is_toy)


def _toy_bytes(source: SourceUrl) -> int:
    options = {name: int(value) for name, value in source.options.items() if value.isdecimal()}
    return num_bytes_of(options.get("documents"), options.get("words"))
