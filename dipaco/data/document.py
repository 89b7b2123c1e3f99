"""A document, its pieces, and a source: a stream of documents with its licences and notes."""

import dataclasses
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import xxhash

JOINERS = "\u200c\u200d"  # letters of some languages, and emoji, are joined or kept apart by them
MOST_LETTERS = 64  # of a domain's name
PIECE = ""  # a value of `group`: each piece of the document is its own group


class Document(NamedTuple):
    """A text, its domain, and its group, which stays in one split."""

    text: str
    domain: str
    group: str | None = None  # None = the document is its own group
    begins: bool = True  # it is the beginning of a text, not a later block of one
    ends: bool = True  # it is the end of one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A stream of documents, and facts about it.

    `left_out`, `bytes_over`, `bad_rows` and `notes` may grow while `documents` is read.
    """

    documents: Iterator[Document]
    licences: Mapping[str, str] = dataclasses.field(default_factory=dict)  # domain -> licence
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)  # domain -> why
    max_bytes_per_domain: int | None = None  # the corpus uses no more
    # Domain -> bytes beyond that, of documents that do not come.
    bytes_over: dict[str, int] = dataclasses.field(default_factory=dict)
    bad_rows: Mapping[str, "BadRows"] = dataclasses.field(default_factory=dict)  # URL -> its own
    notes: list[str] = dataclasses.field(default_factory=list)  # sentences for a person


def printable(name: str) -> str:
    r"""A name that a terminal, a page and a table show as one piece. What would steer them (line
    ends, escape sequences, directions of writing) and bytes that are not UTF-8 become `\x1b`.
    """
    if name.isprintable():
        return name
    return "".join(
        letter
        if letter.isprintable() or letter in JOINERS or unicodedata.category(letter) == "Zs"
        else letter.encode("unicode_escape").decode()
        for letter in name
    )


def domain_name(given: str) -> str:
    """A domain's name as it is counted and shown: one printable piece that can be seen, of at most
    `MOST_LETTERS`. Two long names that begin alike stay two.
    """
    name = printable(given)
    if len(name) > MOST_LETTERS:
        name = f"{name[: MOST_LETTERS - 10]}… {xxhash.xxh3_64_hexdigest(name.encode())[:8]}"
    return name if name.strip(JOINERS).strip() else "(blank)"


@dataclasses.dataclass(kw_only=True)
class BadRows:
    """The rows of a source that cannot be read: refused, or left out and counted. Of `text:`, files
    are counted.
    """

    are_skipped: bool = False
    of: int = 0  # rows so far, good and bad
    count: int = 0  # bad ones
    first: str = ""  # place of the first, and what is wrong with it
    files: int = 0  # whole files with rows, all of them bad
    first_file: str = ""

    def add(self, file: object, place: object, problem: object) -> None:
        self.count += 1
        self.first = self.first or printable(f"{file}, {place}: {problem}")

    def plus(self, other: "BadRows") -> "BadRows":
        return BadRows(
            are_skipped=other.are_skipped,
            of=self.of + other.of,
            count=self.count + other.count,
            first=self.first or other.first,
            files=self.files + other.files,
            first_file=self.first_file or other.first_file,
        )


def cut_text(text: str, max_bytes: int) -> Iterator[str]:
    """Cuts a long text at the end of a paragraph, else of a line, else of a word.

    No character is lost. Pieces have at most `max_bytes` bytes of UTF-8, and more than half of that
    where there is such an end.
    """
    data = text.encode("utf-8", "surrogatepass")
    start = 0
    while len(data) - start > max_bytes:
        end = last_end(data, start + max_bytes // 2, start + max_bytes)
        yield data[start:end].decode("utf-8", "surrogatepass")
        start = end
    yield data[start:].decode("utf-8", "surrogatepass")


def last_end(data: bytes, low: int, high: int) -> int:
    """The place of the last good cut of UTF-8 in a range of bytes."""
    for mark in (b"\n\n", b"\n", b" "):
        place = data.rfind(mark, low, high)
        if place >= 0:
            return place + len(mark)
    for back in range(4):
        if data[high - back] & 0xC0 != 0x80:  # not inside a character
            return high - back
    return high  # not UTF-8: `decode` raises and says where
