"""`score`: log-likelihoods of validation documents under one path of a release.

A document is scored under the path it was routed to; where it is routed by likelihood, under each
path of its shortlist. At the end of the run, where the row of the best path per document is wanted,
it is scored under every path.
"""

import time

from dipaco.control.planning.tasks import (
    Claim,
    Fact,
    PathScored,
)
from dipaco.runs.run import Run
from dipaco.store.tensors import save_tree
from dipaco.workers.fetching import bring_release
from dipaco.workers.scoring import (
    compares_paths,
    score_tokens_under_path,
    score_under_path,
    scored_documents,
    scores_every_path,
    validation,
)


def score_path(run: Run, claim: Claim) -> list[Fact]:
    """Scores one path of a release."""
    started = time.monotonic()
    task = claim.task
    release = run.ledger.facts.release(task.arm, task.phase)
    config, valid = run.config, validation(run, task.arm, task.phase)
    corpus = run.tokens_of(valid.documents)
    mine = scored_documents(run, valid, task.arm, task.phase, task.path)
    documents = valid.documents[mine]
    bring_release(run, release, task.path)
    parts = run.path_of(release, task.path)
    scores = {"documents": documents}
    if compares_paths(run, task.arm, task.phase):
        of_tokens = score_tokens_under_path(run, parts, corpus, documents)
        scores |= {"sums": of_tokens.sums, "counts": of_tokens.counts}
        scores["prefixes"] = of_tokens.prefixes
        if scores_every_path(run, task.arm, task.phase):
            if config.evaluation.ensembles or config.reroute.every:
                scores["values"] = of_tokens.values
            if config.reroute.every:
                for_router = run.corpus.documents("router")
                of_tokens = score_tokens_under_path(run, parts, run.corpus, for_router)
                scores["router_values"] = of_tokens.values
    else:
        sums, counts = score_under_path(run, parts, corpus, documents)
        scores |= {"sums": sums, "counts": counts}
    return [
        PathScored(
            arm=task.arm,
            path=task.path,
            phase=task.phase,
            scores=save_tree(run.objects, "scores", scores),
            seconds=time.monotonic() - started,
        )
    ]
