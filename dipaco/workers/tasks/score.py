"""`score`: log-likelihoods of validation documents under one path of a release.

A document is scored under the path it was routed to. At the end of the run, where the row of the
best path per document is wanted, it is scored under every path.
"""

import time

from dipaco.control.tasks import (
    Claim,
    Fact,
    PathScored,
)
from dipaco.evaluation.perplexity import (
    score_tokens,
)
from dipaco.runs.run import Run
from dipaco.store.tensors import save_tree
from dipaco.workers.scoring import score_under_path, scores_every_path, validation


def score_path(run: Run, claim: Claim) -> list[Fact]:
    """Scores one path of a release."""
    started = time.monotonic()
    task = claim.task
    release = run.ledger.facts.release(task.arm, task.phase)
    documents, paths = validation(run, task.arm, task.phase)
    corpus = run.tokens_of(documents)
    if not scores_every_path(run, task.arm, task.phase):
        documents = documents[paths == task.path]
    parts = run.path_of(release, task.path)
    scores = {"documents": documents}
    if run.config.reroute.every and scores_every_path(run, task.arm, task.phase):
        of_tokens = score_under_path(run, parts, corpus, documents, score_tokens)
        sums, counts, scores["values"] = of_tokens
        for_router = run.corpus.documents("router")
        of_tokens = score_under_path(run, parts, run.corpus, for_router, score_tokens)
        scores["router_values"] = of_tokens[2]
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
