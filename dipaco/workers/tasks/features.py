"""Features for `route`, in slices (`data.slices`): a task computes them for a slice of the
documents.

Documents that fit the router come first, then training documents, then held documents. They are
cut at whole batches, so every batch, and the bits of its features, are the same for any number
of slices. Features are deleted after the last routing. A routing that is made again after that
computes them itself.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dipaco.control.planning.tasks import Claim, Fact, SliceDone
from dipaco.data.splits import HELD, SPLITS
from dipaco.runs.routing import BATCH_DOCUMENTS, CHUNK_DOCUMENTS, FeaturesOf, features_of
from dipaco.runs.run import Run

STEP = "features"
ORDER = ("router", "train", *HELD)


def slice_of_features(run: Run, claim: Claim) -> list[Fact]:
    """Computes the features of one slice of the documents. None where the router needs none: a row
    of a sweep may have the tasks of another row.
    """
    started, number = time.monotonic(), claim.task.slice
    artifacts, num_documents = {}, 0
    if run.plan.feature_slices:
        documents = _documents(run)
        chunks = list(_chunks(documents, _ranges(documents, run.plan.feature_slices)[number]))

        def write(file: Path) -> None:
            with file.open("wb") as stream:
                for chunk in chunks:
                    stream.write(features_of(run, run.corpus, chunk).tobytes())

        artifacts = {"features": run.objects.write(STEP, "float32", write)}
        num_documents = sum(map(len, chunks))
    return [
        SliceDone(
            stage="route",
            step=STEP,
            slice=number,
            artifacts=artifacts,
            summary={"documents": num_documents},
            seconds=time.monotonic() - started,
        )
    ]


def features_for(run: Run, phase: int) -> FeaturesOf:
    """A function that gives the routing of a phase its features: reads the recorded ones if slices
    have made them for it, else computes them.
    """
    facts, count = run.ledger.facts, run.plan.feature_slices
    is_routed = phase in {routing.phase for routing in facts.routings()}
    if is_routed or not count or facts.num_slices("route", STEP) < count:
        return features_of
    return _Recorded(run).read


def superseded_features(run: Run) -> list[str]:
    """Names of features that no routing will read: the last one is recorded."""
    last = max(run.config.routing.alternations, default=0)
    if last not in {routing.phase for routing in run.ledger.facts.routings()}:
        return []
    slices = run.ledger.facts.slices("route", STEP)
    return [receipt.name for fact in slices for receipt in fact.artifacts.values()]


def scored_of(run: Run, split: str) -> np.ndarray:
    """The documents of `tune` or `test` that are scored."""
    documents, most = run.corpus.documents(split), run.config.evaluation.max_documents
    if most is None or len(documents) <= most:
        return documents
    # The same documents for every seed of the run, so that seeds can be compared.
    return np.sort(np.random.default_rng(0).permutation(documents)[:most])


class _Recorded:
    """Features that slices have made."""

    def __init__(self, run: Run):
        self._run, self._documents = run, _documents(run)
        self._ranges = _ranges(self._documents, run.plan.feature_slices)
        self._slices = run.ledger.facts.slices("route", STEP)
        self._opened: dict[int, dict[str, np.ndarray]] = {}

    def read(self, run: Run, corpus: object, documents: np.ndarray) -> np.ndarray:
        """float32 [N, D] of documents of one split of the run's corpus, by number."""
        assert run is self._run
        assert corpus is run.corpus
        split = SPLITS[run.corpus.splits[documents[0]]]
        places = np.searchsorted(self._documents[split], documents)
        found: list[np.ndarray] = []
        for number, ranges in enumerate(self._ranges):
            start, stop = ranges.get(split, (0, 0))
            here = places[(places >= start) & (places < stop)]
            if len(here):
                found.append(self._features(number)[split][here - start])
        return np.concatenate(found)

    def _features(self, number: int) -> dict[str, np.ndarray]:
        """Split -> float32 [n, D] of its documents in a slice. It is opened once, as that checks
        every byte.
        """
        if number not in self._opened:
            self._opened[number] = self._open(number)
        return self._opened[number]

    def _open(self, number: int) -> dict[str, np.ndarray]:
        sizes = {split: stop - start for split, (start, stop) in self._ranges[number].items()}
        pages = self._run.objects.pages(self._slices[number].artifacts["features"])
        features_ND = np.frombuffer(pages, np.float32).reshape(sum(sizes.values()), -1)
        parts = np.split(features_ND, np.cumsum([*sizes.values()])[:-1])
        return dict(zip(sizes, parts, strict=True))


def _documents(run: Run) -> dict[str, np.ndarray]:
    of = {split: run.corpus.documents(split) for split in ORDER}
    return of | {split: scored_of(run, split) for split in HELD}


def _chunks(
    documents: dict[str, np.ndarray], ranges: dict[str, tuple[int, int]]
) -> Iterator[np.ndarray]:
    """The documents in some ranges of their splits, as many as fit into memory at once."""
    for split, (start, stop) in ranges.items():
        for first in range(start, stop, CHUNK_DOCUMENTS):
            yield documents[split][first : min(first + CHUNK_DOCUMENTS, stop)]


def _ranges(documents: dict[str, np.ndarray], count: int) -> list[dict[str, tuple[int, int]]]:
    """For each of `count` slices, the range of the documents of each split that are its own."""
    batches = {split: -(-len(of) // BATCH_DOCUMENTS) for split, of in documents.items()}
    total = sum(batches.values())
    ranges = []
    for number in range(count):
        first, last = total * number // count, total * (number + 1) // count
        mine, place = {}, 0
        for split, of in batches.items():
            start, stop = max(first - place, 0), min(last - place, of)
            if start < stop:
                end = min(stop * BATCH_DOCUMENTS, len(documents[split]))
                mine[split] = (start * BATCH_DOCUMENTS, end)
            place += of
        ranges.append(mine)
    return ranges
