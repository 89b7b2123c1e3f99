"""A document; and a source, a stream of documents with its licences and notes."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

PIECE = ""  # as a group: each piece of the document is a group of its own


class Document(NamedTuple):
    """A text, its domain, and its group, which stays in one split."""

    text: str
    domain: str
    group: str | None = None  # None = the document is its own group; or PIECE
    begins: bool = True  # it is the beginning of a text, not a later block of one
    ends: bool = True  # it is the end of one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A stream of documents, and facts about it.

    `left_out`, `bytes_over` and `notes` may grow while `documents` is read.
    """

    documents: Iterator[Document]
    licences: Mapping[str, str] = dataclasses.field(default_factory=dict)  # domain -> licence
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)  # domain -> why
    max_bytes_per_domain: int | None = None  # the corpus uses no more
    # Domain -> bytes beyond that, of documents that do not come.
    bytes_over: dict[str, int] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)  # what a reader should know
