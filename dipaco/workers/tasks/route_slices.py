"""Features for `route` by many tasks (`data.slices`): each computes those of a slice of documents.

Documents are those that fit the router, those that train and those that are evaluated, in this
order, cut at whole batches, so that every batch is the one that a single task would compute: its
bits are the same. `route` then reads what it would have computed. It computes itself what it is to
make again: features are deleted after the last routing.
"""

import time

import numpy as np

from dipaco.control.tasks import Claim, Fact, SliceDone
from dipaco.data.staging import SPLITS
from dipaco.receipt import Receipt
from dipaco.runs.routing import BATCH_DOCUMENTS, FeaturesOf, features_of
from dipaco.runs.run import Run
from dipaco.store.tensors import map_tree, save_tree

STEP = "features"
ORDER = ("router", "train", "valid")


def slice_of_features(run: Run, claim: Claim) -> list[Fact]:
    """Computes the features of one slice of the documents."""
    started, number = time.monotonic(), claim.task.slice
    made, documents = {}, _documents(run)
    for split, (start, stop) in _ranges(documents, run.plan.feature_slices)[number].items():
        made[split] = features_of(run, run.corpus, documents[split][start:stop])
    return [
        SliceDone(
            stage="route",
            step=STEP,
            slice=number,
            artifacts={"features": save_tree(run.objects, STEP, made)},
            summary={"documents": sum(map(len, made.values()))},
            seconds=time.monotonic() - started,
        )
    ]


def features_for(run: Run, phase: int) -> FeaturesOf:
    """What the routing of a phase reads features with: the recorded ones if slices have made them
    for it, else a computation.
    """
    facts, count = run.ledger.facts, run.plan.feature_slices
    is_routed = any(each.stage == "route" and each.phase == phase for each in facts.stages())
    if count == 1 or is_routed or facts.num_slices("route", STEP) < count:
        return features_of
    return _Recorded(run).read


def superseded_features(run: Run) -> list[str]:
    """Names of features that no routing will read: the last one is recorded."""
    last = max(run.config.routing.alternations, default=0)
    if not any(each.stage == "route" and each.phase == last for each in run.ledger.facts.stages()):
        return []
    return [fact.artifacts["features"].name for fact in run.ledger.facts.slices("route", STEP)]


def validation_documents(run: Run) -> np.ndarray:
    """The documents of validation that are scored."""
    valid, most = run.corpus.documents("valid"), run.config.evaluation.max_documents
    if most is None or len(valid) <= most:
        return valid
    # The same documents for every seed of the run, so that seeds can be compared.
    return np.sort(np.random.default_rng(0).permutation(valid)[:most])


class _Recorded:
    """Features that slices have made."""

    def __init__(self, run: Run):
        self._run, self._documents = run, _documents(run)
        self._ranges = _ranges(self._documents, run.plan.feature_slices)
        self._receipts: list[Receipt] = [
            fact.artifacts["features"] for fact in run.ledger.facts.slices("route", STEP)
        ]

    def read(self, run: Run, corpus: object, documents: np.ndarray) -> np.ndarray:
        """float32 [N, D] of documents of one split of the run's corpus, by number."""
        assert run is self._run
        assert corpus is run.corpus
        split = SPLITS[run.corpus.splits[documents[0]]]
        places = np.searchsorted(self._documents[split], documents)
        found: list[np.ndarray] = []
        for ranges, receipt in zip(self._ranges, self._receipts, strict=True):
            start, stop = ranges.get(split, (0, 0))
            here = places[(places >= start) & (places < stop)]
            if len(here):
                found.append(map_tree(run.objects, receipt)[split][here - start])
        return np.concatenate(found)


def _documents(run: Run) -> dict[str, np.ndarray]:
    of = {split: run.corpus.documents(split) for split in ORDER}
    return of | {"valid": validation_documents(run)}


def _ranges(documents: dict[str, np.ndarray], count: int) -> list[dict[str, tuple[int, int]]]:
    """For each of `count` slices, which of the documents of each split are its own."""
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
