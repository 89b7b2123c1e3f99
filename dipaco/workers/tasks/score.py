"""`score` and `check`: log-likelihoods of documents under one path.

`check` scores what the path's shard holds out, for early stopping (DiPaCo section 2.7). `score`
scores held documents under a path of a release. A document is scored under the path it was
routed to, and if it is routed by likelihood, under each path of its shortlist. At the end of the
run it is scored under every path, if the row of the best path per document is wanted.
"""

import time

from dipaco.control.planning.tasks import Claim, Fact, PathChecked, PathScored
from dipaco.inner.early_stopping import Best, best_so_far
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.fetching import bring_modules, bring_release
from dipaco.workers.scoring import (
    compares_paths,
    documents_for_router,
    held_documents,
    score_tokens_under_path,
    score_under_path,
    scored_documents,
    scores_every_path,
)


def score_path(run: Run, claim: Claim) -> list[Fact]:
    """Scores one path of a release."""
    started = time.monotonic()
    task = claim.task
    release = run.ledger.facts.release(task.arm, task.phase)
    config, held = run.config, held_documents(run, task.arm, task.phase)
    corpus = run.tokens_of(held.documents)
    mine = scored_documents(run, held, task.arm, task.phase, task.path)
    documents = held.documents[mine]
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
                for_router = documents_for_router(run)
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


def check_path(run: Run, claim: Claim) -> list[Fact]:
    """Loss of a path on the hold-out of its shard, and the phase at which it was lowest so far."""
    started = time.monotonic()
    arm, path, phase = run.plan.arm(claim.task.arm), claim.task.path, claim.task.phase
    held_out = load_tree(run.objects, run.routing_of(arm.name, phase).artifacts["held_out"])
    documents = held_out[f"{path:06d}"]
    bring_modules(run, arm.name, arm.topology.modules_of(path), phase)
    parts = run.parts_at(arm.name, path, phase)
    sums, counts = score_under_path(run, parts, run.tokens_of(documents), documents)
    loss = -float(sums.sum()) / int(counts.sum())
    before = None
    if phase > arm.routed_at(phase):
        at = run.ledger.facts.checks(arm.name, phase - 1)[path].best_phase
        before = Best(at, run.ledger.facts.checks(arm.name, at)[path].loss)
    return [
        PathChecked(
            arm=arm.name,
            path=path,
            phase=phase,
            loss=loss,
            best_phase=best_so_far(before, phase, loss).phase,
            seconds=time.monotonic() - started,
        )
    ]
