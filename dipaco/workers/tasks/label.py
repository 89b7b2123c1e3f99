"""`label`: log-likelihoods of documents under one path, for an alternation.

Of the router's documents, to which a router of features is fitted (DiPaCo section 2.4). Where
documents are routed by likelihood, of the first tokens of all documents that a path may train on.
"""

import time

import numpy as np

from dipaco.control.planning.tasks import (
    Claim,
    Fact,
    PathLabelled,
)
from dipaco.data.windows import first_tokens
from dipaco.routing.config import LIKELIHOOD
from dipaco.runs.routing import prefix_log_likelihoods
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.fetching import bring_modules
from dipaco.workers.scoring import score_under_path


def label_path(run: Run, claim: Claim) -> list[Fact]:
    """Scores documents under a path as it is at the start of a phase.

    One task per path, so that a lost worker costs one path: labels take P forward passes of each
    document; by likelihood, one of its first tokens for each path of its shortlist.
    """
    started = time.monotonic()
    task = claim.task
    modules = run.plan.arm(task.arm).topology.modules_of(task.path)
    bring_modules(run, task.arm, modules, task.phase)
    parts = run.parts_at(task.arm, task.path, task.phase)
    if run.config.routing.rule == LIKELIHOOD:
        scores = _of_prefixes(run, parts, task.path)
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


def _of_prefixes(run: Run, parts: object, path: int) -> dict[str, np.ndarray]:
    """Nats of the first tokens of the documents in whose shortlist the path is, by split, in the
    order of the shortlists.
    """
    shortlists = load_tree(run.objects, run.stage("route").artifacts["shortlists"])
    scores = {}
    for split, shortlist_Nn in shortlists.items():
        mine = (shortlist_Nn == path).any(axis=1)
        documents = run.corpus.documents(split)[mine]
        prefix = first_tokens(run.corpus, documents, run.config.data.prefix_tokens)
        scores[split] = prefix_log_likelihoods(run, parts, *prefix)
    return scores
