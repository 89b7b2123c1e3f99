"""`label`: log-likelihoods of the router's documents under one path, for an alternation.

DiPaCo section 2.4.
"""

import time

from dipaco.control.tasks import (
    Claim,
    Fact,
    PathLabelled,
)
from dipaco.runs.run import Run
from dipaco.store.tensors import save_tree
from dipaco.workers.scoring import score_under_path


def label_path(run: Run, claim: Claim) -> list[Fact]:
    """Scores the router's documents under a path as it is at the start of a phase.

    One task per path, so that a lost worker costs one path: labels take P forward passes of each
    document.
    """
    started = time.monotonic()
    task, documents = claim.task, run.corpus.documents("router")
    sums, _ = score_under_path(
        run, run.parts_at(task.arm, task.path, task.phase), run.corpus, documents
    )
    return [
        PathLabelled(
            arm=task.arm,
            path=task.path,
            phase=task.phase,
            scores=save_tree(run.objects, "scores", {"documents": documents, "sums": sums}),
            seconds=time.monotonic() - started,
        )
    ]
