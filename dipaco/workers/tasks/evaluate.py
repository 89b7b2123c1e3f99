"""`evaluate`: the perplexity of a release, from the scores of all its paths."""

import math
import time

import numpy as np

from dipaco.control.tasks import (
    Claim,
    Evaluated,
    Fact,
)
from dipaco.evaluation.perplexity import (
    best_path,
    perplexity,
    routed,
)
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree
from dipaco.workers.errors import ArmDiverged
from dipaco.workers.scoring import scores_every_path, validation


def evaluate_release(run: Run, claim: Claim) -> list[Fact]:
    """Computes the perplexity of a release from the scores of its paths.

    Raises:
      ArmDiverged: it is not finite.
    """
    started = time.monotonic()
    arm, phase = claim.task.arm, claim.task.phase
    documents, paths = validation(run, arm, phase)
    scores = [load_tree(run.objects, receipt) for receipt in run.ledger.facts.scores(arm, phase)]
    best = None
    if scores_every_path(run, arm, phase):
        sums = np.stack([score["sums"] for score in scores])
        counts = scores[0]["counts"]
        value, best = routed(sums, counts, paths), best_path(sums, counts)
    else:
        sums = np.concatenate([score["sums"] for score in scores])
        counts = np.concatenate([score["counts"] for score in scores])
        value = perplexity(sums, counts)
    if not math.isfinite(value):
        raise ArmDiverged(arm=arm, phase=phase, perplexity=value)
    return [
        Evaluated(
            arm=arm,
            phase=phase,
            perplexity=value,
            best_path_perplexity=best,
            documents=len(documents),
            tokens=int(counts.sum()),
            seconds=time.monotonic() - started,
        )
    ]
