"""Routing of text: which path each document trained, and how it was predicted.

It is read on request from the shards and scores that routing and evaluation saved.
"""

import json
import re
import time
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

# Limit of a table. In a larger corpus the page asks for single documents.
MOST_DOCUMENTS = 1_000_000
BEGINNING_CHARACTERS = 72
BEGINNING_TOKENS = 40
MOST_BEGINNINGS = 6000  # limit of a table
SEARCH_SECONDS = 5.0
SEARCH_BATCH = 256
MOST_FOUND = 20
NO_PATH = -1


class Texts:
    """The documents of a routed run. Raises `NotAvailable` if it has not been routed."""

    def __init__(self, run: Run):
        run.stage("route")  # before that there may be no corpus either
        self._run, self._corpus = run, run.corpus
        stages = [stage for stage in run.ledger.facts.stages() if stage.stage == "route"]
        self._routings = sorted(stages, key=lambda stage: stage.phase)
        self._paths = [self._paths_of(routing) for routing in self._routings]
        self._scores = list(self._losses())

    def table(self) -> dict[str, Any] | None:
        """All documents, in columns. None if there are too many."""
        corpus, count = self._corpus, len(self._corpus.lengths)
        if count > MOST_DOCUMENTS:
            return None
        chosen = self._with_beginnings()
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
                "texts": [text[:BEGINNING_CHARACTERS] for text in self._texts(chosen, True)],
            },
        }

    def fate(self, number: int) -> dict[str, Any] | None:
        """One document, or None if there is none with this number."""
        corpus = self._corpus
        if not 0 <= number < len(corpus.lengths):
            return None
        (text,) = self._texts(np.array([number]), False)
        return {
            "document": number,
            "domain": corpus.domain_names[int(corpus.domains[number])],
            "split": SPLITS[int(corpus.splits[number])],
            "tokens": int(corpus.lengths[number]),
            "text": text[:4000],
            "routings": [
                {
                    "phase": stage.phase,
                    "paths": [int(path) for path in paths[:, number] if path != NO_PATH],
                }
                for stage, paths in zip(self._routings, self._paths, strict=True)
            ],
            "losses": [
                {"phase": phase, "loss": float(losses[at])}
                for phase, documents, losses in self._scores
                for at in np.flatnonzero(documents == number)
            ],
        }

    def find(self, words: str) -> dict[str, Any]:
        """Documents that contain the given words, ignoring case: the first ones that are found
        within `SEARCH_SECONDS`.
        """
        until, found, looked = time.monotonic() + SEARCH_SECONDS, [], 0
        sought = re.compile(re.escape(words), re.IGNORECASE)
        everything = np.arange(len(self._corpus.lengths))
        for start in range(0, len(everything), SEARCH_BATCH):
            batch = everything[start : start + SEARCH_BATCH]
            for number, text in zip(batch, self._texts(batch, False), strict=True):
                if (at := sought.search(text)) is not None:
                    before = max(0, at.start() - 30)
                    piece = text[before : at.start() + BEGINNING_CHARACTERS]
                    found.append({"document": int(number), "text": piece})
            looked = start + len(batch)
            if len(found) >= MOST_FOUND or time.monotonic() > until:
                break
        return {"found": found[:MOST_FOUND], "looked": looked, "documents": len(everything)}

    def _texts(self, documents: np.ndarray, beginning: bool) -> list[str]:
        tokenizer = self._corpus.tokenizer()
        most = BEGINNING_TOKENS if beginning else None
        return [tokenizer.decode(tokens[:most]) for tokens in self._corpus.tokens(documents)]

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
