"""Routing of text: which path each document trained, and how it was predicted.

It is read on request from the shards and scores that routing and evaluation saved.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import StageDone
from dipaco.dashboard.columns import packed
from dipaco.data.pack import load_plan
from dipaco.data.splits import SPLITS
from dipaco.errors import DipacoError
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree

MOST_DOCUMENTS = 1_000_000  # a larger corpus has no table
BEGINNING_CHARACTERS = 160
BEGINNING_TOKENS = 40
MOST_BEGINNINGS = 6000  # limit of a table
NO_PATH = -1


class Texts:
    """The documents of a routed run. Raises `NotAvailable` if it has not been routed."""

    def __init__(self, run: Run):
        run.stage("route")  # before that there may be no corpus either
        self._run, self._corpus = run, run.corpus
        self._routings = run.ledger.facts.routings()
        self._paths = [self._paths_of(routing) for routing in self._routings]
        self._scores = list(self._losses())

    def table(self) -> dict[str, Any] | None:
        """All documents, in columns. None if there are too many."""
        corpus, count = self._corpus, len(self._corpus.lengths)
        if count > MOST_DOCUMENTS:
            return None
        chosen, tokenizer = self._with_beginnings(), corpus.tokenizer()
        begins = (tokens[:BEGINNING_TOKENS] for tokens in corpus.tokens(chosen))
        return {
            "domains": list(corpus.domain_names),
            "splits": list(SPLITS),
            "domain": packed(corpus.domains, "u2"),
            "split": packed(corpus.splits, "u1"),
            "tokens": packed(corpus.lengths, "i4"),
            "routings": [
                {"phase": stage.phase, "paths": packed(paths, "i2")}
                for stage, paths in zip(self._routings, self._paths, strict=True)
            ],
            "scores": [
                {
                    "phase": phase,
                    "documents": packed(documents, "i4"),
                    "losses": packed(losses, "f4"),
                }
                for phase, documents, losses in self._scores
            ],
            "beginnings": {
                "documents": packed(chosen, "i4"),
                "texts": [tokenizer.decode(each)[:BEGINNING_CHARACTERS] for each in begins],
            },
        }

    def _with_beginnings(self) -> np.ndarray:
        """Documents whose first words are in the table: scored ones first, then others evenly."""
        everything = np.arange(len(self._corpus.lengths))
        if len(everything) <= MOST_BEGINNINGS:
            return everything
        test = self._corpus.documents("test")[: MOST_BEGINNINGS // 2]
        others = np.setdiff1d(everything, test)
        stride = max(1, -(-len(others) // (MOST_BEGINNINGS - len(test))))
        return np.sort(np.concatenate([test, others[::stride]]))

    def _paths_of(self, routing: StageDone) -> np.ndarray:
        """[K, N] the paths that each document trains, or is scored under; -1 = none."""
        count = len(self._corpus.lengths)
        paths = np.full((max(1, self._run.config.routing.overlap), count), NO_PATH, np.int16)
        for path, documents in enumerate(self._shards(routing)):
            free = (paths[:, documents] == NO_PATH).argmax(axis=0)
            paths[free, documents] = path
        held = load_tree(self._run.objects, routing.artifacts["held"])
        paths[0, held["documents"]] = held["paths"]
        return paths

    def _shards(self, routing: StageDone) -> Iterator[np.ndarray]:
        for receipt in self._run.shards_of(routing).plans:
            yield load_plan(Path(self._run.objects.file(Receipt(*receipt)))).documents

    def _losses(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(phase, documents, nats per token) of every evaluation whose scores are still here."""
        from dipaco.workers.scoring import document_scores

        for each in self._run.ledger.facts.evaluations():
            if each.arm != MODULAR:
                continue
            try:
                scores = document_scores(self._run, MODULAR, each.phase)
            except (DipacoError, OSError):
                continue  # its scores were deleted
            yield each.phase, scores.documents, scores.sums / np.maximum(scores.counts, 1)


def to_json(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()
