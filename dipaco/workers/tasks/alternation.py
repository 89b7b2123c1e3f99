"""An alternation: the paths score documents, and these are divided among the paths again.

`label` scores documents under one path as it is at the start of a phase. `route` then fits the
router of features to the best path of each document (DiPaCo section 2.4). Where documents are
routed by likelihood, the router stays and the paths themselves choose.
"""

import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from dipaco.config import MODULAR
from dipaco.control.planning.summaries import Alternated, Routed
from dipaco.control.planning.tasks import Claim, Fact, PathLabelled
from dipaco.data.pack import load_plan
from dipaco.data.shards import Shard
from dipaco.data.windows import first_tokens
from dipaco.routing.calibration import is_near
from dipaco.routing.config import LIKELIHOOD
from dipaco.routing.discriminative import calibrated, fit_classifier
from dipaco.routing.labels import best_paths
from dipaco.routing.likelihood import balanced, balancing_nats
from dipaco.routing.router import Router
from dipaco.runs.routing import FeaturesOf, fitted_router, prefix_log_likelihoods
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.fetching import bring_modules
from dipaco.workers.scoring import score_under_path


def label_path(run: Run, claim: Claim) -> list[Fact]:
    """Scores documents under a path as it is at the start of a phase.

    Each path has its own task, so that a lost worker costs one path. Labels take P forward passes
    of each document. Likelihood takes one of its first tokens for each path of its shortlist.
    """
    started = time.monotonic()
    task = claim.task
    modules = run.plan.arm(task.arm).topology.modules_of(task.path)
    bring_modules(run, task.arm, modules, task.phase)
    parts = run.parts_at(task.arm, task.path, task.phase)
    if run.config.routing.rule == LIKELIHOOD:
        scores = _prefix_scores(run, parts, task.path)
    else:
        documents = run.corpus.documents("router")
        sums, _ = score_under_path(run, parts, run.corpus, documents)
        scores = {"documents": documents, "sums": sums}
    return [
        PathLabelled(
            arm=task.arm,
            path=task.path,
            phase=task.phase,
            scores=save_tree(run.objects, "scores", scores),
            seconds=time.monotonic() - started,
        )
    ]


def _prefix_scores(run: Run, parts: object, path: int) -> dict[str, np.ndarray]:
    """Nats of the first tokens of the documents in whose shortlist the path is, by split, in the
    order of the shortlists.
    """
    scores = {}
    for split, shortlist_Nn in _shortlists(run).items():
        mine = (shortlist_Nn == path).any(axis=1)
        documents = run.corpus.documents(split)[mine]
        prefix = first_tokens(run.corpus, documents, run.config.data.prefix_tokens)
        scores[split] = prefix_log_likelihoods(run, parts, *prefix)
    return scores


def _shortlists(run: Run) -> dict[str, np.ndarray]:
    """Split -> int32 [N, n], the paths that are compared for each document, the router's first
    first. The first routing saved them.
    """
    return load_tree(run.objects, run.stage("route").artifacts["shortlists"])


class Alternation(NamedTuple):
    """The router after an alternation, and the paths of the router's N documents."""

    router: Router
    # The saved labels: `documents` int64 [N], the best path of each as `paths` [N], and `prices`.
    labels: dict[str, np.ndarray]
    before_N: np.ndarray  # the router before assigns them
    uncalibrated_N: np.ndarray  # before prices bound the documents of each path
    calibrated_N: np.ndarray
    # The paths of each training document. None: the router decides.
    choices_NK: np.ndarray | None = None

    def summary(self, routed: Routed, moved: float) -> Alternated:
        """The summary of its routing, and what changed. `moved` is the share of documents that
        went to another path.
        """
        label_N, num_paths = self.labels["paths"], len(routed.documents)

        def documents_of(path_N: np.ndarray) -> list[int]:
            return np.bincount(path_N, minlength=num_paths).tolist()

        return Alternated(
            **msgspec.structs.asdict(routed),
            labels=documents_of(label_N),
            before_calibration=documents_of(self.uncalibrated_N),
            after_calibration=documents_of(self.calibrated_N),
            agreement=float((self.before_N == label_N).mean()),
            agreement_after=float((self.calibrated_N == label_N).mean()),
            moved=moved,
        )


def alternation(run: Run, phase: int, features_of: FeaturesOf) -> Alternation:
    """Divides the router's documents among the paths by the labels of a phase."""
    before = run.router_of(run.routing_of(MODULAR, phase - 1))
    if run.config.routing.rule == LIKELIHOOD:
        return _by_likelihood(run, phase, before)
    return _by_features(run, phase, before, features_of)


def _by_features(run: Run, phase: int, before: Router, features_of: FeaturesOf) -> Alternation:
    """Fits the router to the labels. One that already assigns every document to its best path stays
    as it is.
    """
    config, documents = run.config, run.corpus.documents("router")
    scores = (
        load_tree(run.objects, receipt) for receipt in run.ledger.facts.labels(MODULAR, phase)
    )
    label_N = best_paths(score["sums"] for score in scores)
    features_ND = features_of(run, run.corpus, documents)
    before_N = before.assign(features_ND)[:, 0]
    share = config.routing.target_share
    counts_P = np.bincount(before_N, minlength=config.num_paths)
    classifier = router = before
    is_right = bool((before_N == label_N).all())
    if not (is_right and (share is None or is_near(counts_P, np.array(share)))):
        if run.router_functions is not None:
            classifier = router = fitted_router(run, features_ND, label_N)
        else:
            classifier = fit_classifier(config.routing, features_ND, label_N, config.num_paths)
            router = calibrated(classifier, config.routing, features_ND, label_N)
    return Alternation(
        router=router,
        labels={"documents": documents, "paths": label_N},
        before_N=before_N,
        uncalibrated_N=classifier.assign(features_ND)[:, 0],
        calibrated_N=router.assign(features_ND)[:, 0],
    )


def _by_likelihood(run: Run, phase: int, router: Router) -> Alternation:
    """Divides the documents by what the paths say of their first tokens, balanced by prices that
    are fitted to the router's documents. The router stays, since it makes the shortlists.
    """
    config, routing = run.config, run.config.routing
    shortlists = _shortlists(run)
    scores = {split: np.zeros(each.shape) for split, each in shortlists.items()}
    for path, receipt in enumerate(run.ledger.facts.labels(MODULAR, phase)):
        for split, prefix_M in load_tree(run.objects, receipt).items():
            scores[split][shortlists[split] == path] = prefix_M
    for score_Nn in scores.values():
        score_Nn[:, 0] += routing.prior_nats
    price_P = balancing_nats(
        scores["router"],
        shortlists["router"],
        floor=routing.floor,
        capacity=routing.capacity,
    )

    def paths(split: str, price_P: np.ndarray, num_choices: int = 1) -> np.ndarray:
        return balanced(scores[split], shortlists[split], price_P, num_choices)

    documents, label_N = run.corpus.documents("router"), paths("router", np.zeros(config.num_paths))
    return Alternation(
        router=router,
        labels={"documents": documents, "paths": label_N[:, 0], "prices": price_P},
        before_N=shortlists["router"][:, 0],
        uncalibrated_N=label_N[:, 0],
        calibrated_N=paths("router", price_P)[:, 0],
        choices_NK=paths("train", price_P, routing.overlap),
    )


def share_moved(run: Run, phase: int, shards: list[Shard]) -> float:
    """The share of the documents that went to another path at an alternation."""
    plans = run.shards_of(run.routing_of(MODULAR, phase - 1)).plans
    stayed = sum(
        len(np.intersect1d(load_plan(Path(run.objects.file(plan))).documents, shard.plan.documents))
        for plan, shard in zip(plans, shards, strict=True)
    )
    return 1 - stayed / sum(len(shard.plan.documents) for shard in shards)
