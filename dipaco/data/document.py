"""A document, and a stream of documents with what is to be said about it."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

PIECE = ""


class Document(NamedTuple):
    """A text, the domain it is counted under, and the group that stays in one split."""

    text: str
    domain: str
    group: str | None = None  # None = the document itself; PIECE = each piece it is cut into


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A stream of documents and what is to be said about it.

    `left_out` and `notes` may still grow while `documents` is being read.
    """

    documents: Iterator[Document]
    licences: Mapping[str, str] = dataclasses.field(default_factory=dict)  # domain -> licence
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)  # domain -> why
    notes: list[str] = dataclasses.field(default_factory=list)  # what a reader should know
