"""Reading: documents of sources, cut into pieces, hashed, counted against their domain's bound.

The same loop reads everything in one task and a slice of it in one of many (`slices.py`). The bound
of a domain counts what was read of it here, so a slice drops only what the whole would drop too;
the merge applies the bound again (`merging.py`).
"""

import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import xxhash

from dipaco.data.config import DataConfig
from dipaco.data.document import PIECE, Source
from dipaco.data.sources import cut_text


class SourceFacts(msgspec.Struct):
    """What is known of sources beside their documents."""

    domain_names: list[str]
    licences: dict[str, str]
    left_out: dict[str, str]
    bytes_over: dict[str, int]
    notes: list[str]


class Pieces:
    """Columns about the pieces of documents that were read, in their order; the text is elsewhere.

    A piece is what a corpus calls a document: a text, or a part of a long one.
    """

    def __init__(self):
        self.facts = SourceFacts(domain_names=[], licences={}, left_out={}, bytes_over={}, notes=[])
        self.hashes, self.groups = array.array("Q"), array.array("Q")
        self.domains, self.sizes = array.array("H"), array.array("I")
        self.begins, self.ends = array.array("B"), array.array("B")
        self.source_starts = [0]  # [sources + 1]: which pieces are of which source
        self.bounds: list[int | None] = []  # of each source, `max_bytes_per_domain`
        self._domain_numbers: dict[str, int] = {}
        self._domain_bytes: list[int] = []

    @property
    def num_bytes(self) -> int:
        return sum(self._domain_bytes)

    def read(self, source: Source, config: DataConfig, keep: Callable[[bytes], object]) -> None:
        """Reads a source to its end.

        Args:
          source: the next one.
          config: how long a piece is.
          keep: called with the UTF-8 text of each piece.
        """
        cap, bytes_over = source.max_bytes_per_domain, Counter[str]()
        domain_numbers, domain_bytes = self._domain_numbers, self._domain_bytes
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
                    bytes_over[document.domain] += len(rest.encode())
                    break
                data = text.encode()
                text_hash = xxhash.xxh3_64_intdigest(data)
                self.hashes.append(text_hash)
                self.groups.append(text_hash if document.group == PIECE else group_hash)
                self.domains.append(domain)
                self.begins.append(document.begins and number == 0)
                self.ends.append(document.ends and number == len(texts) - 1)
                self.sizes.append(len(data))
                domain_bytes[domain] += len(data)
                keep(data)
        facts = self.facts
        facts.domain_names = list(domain_numbers)
        facts.licences |= source.licences
        facts.left_out |= source.left_out
        facts.bytes_over = added(facts.bytes_over, bytes_over, source.bytes_over)
        facts.notes += source.notes
        self.source_starts.append(len(self.hashes))
        self.bounds.append(cap)

    def columns(self) -> dict[str, np.ndarray]:
        """One entry a piece."""
        return {
            "domains": np.array(self.domains, dtype=np.uint16),
            "begins": np.array(self.begins, dtype=bool),
            "ends": np.array(self.ends, dtype=bool),
            "num_bytes": np.array(self.sizes, dtype=np.uint32),
            "hashes": np.array(self.hashes, dtype=np.uint64),
            "groups": np.array(self.groups, dtype=np.uint64),
        }


def added(*counts: "dict[str, int] | Iterable[Any]") -> dict[str, int]:
    """Sums by name, in the order in which names come first; without those of nothing."""
    total = Counter[str]()
    for each in counts:
        total = total + Counter(each)
    return dict(total)
