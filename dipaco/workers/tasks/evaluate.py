"""`evaluate`: the perplexity of a release, from the scores of all its paths.

Of the last release also what it would be by the other rule of routing, with the best path of each
document, and as a mixture of several paths: all from the same scores.
"""

import math
import time

import numpy as np

from dipaco.control.planning.tasks import (
    Claim,
    Evaluated,
    Fact,
)
from dipaco.evaluation.ensembles import (
    TEMPERATURE,
    Mixture,
    RenewedMixture,
    best_of,
    log_posterior,
    mixed,
)
from dipaco.evaluation.perplexity import (
    best_path,
    is_scored,
    perplexity,
    routed,
    wrong_path,
)
from dipaco.evaluation.tables import WRONG_PATH
from dipaco.routing.config import FEATURES, LIKELIHOOD, RANDOM
from dipaco.runs.run import Run
from dipaco.workers.errors import ArmDiverged
from dipaco.workers.scoring import (
    ScoresOfPaths,
    Validation,
    by_likelihood,
    by_rule,
    compares_paths,
    saved_scores,
    scores_every_path,
    scores_of_paths,
    validation,
)


def evaluate_release(run: Run, claim: Claim) -> list[Fact]:
    """Computes the perplexity of a release from the scores of its paths.

    Raises:
      ArmDiverged: it is not finite.
    """
    started = time.monotonic()
    arm, phase = claim.task.arm, claim.task.phase
    valid = validation(run, arm, phase)
    best, others = None, {}
    if compares_paths(run, arm, phase):
        scores = scores_of_paths(run, valid, arm, phase)
        counts = scores.counts
        paths = by_rule(run, valid, scores.prefixes)
        value = routed(scores.sums, counts, paths)
        if scores_every_path(run, arm, phase):
            best = best_path(scores.sums, counts)
            others = _by_the_other_rule(run, valid, scores)
            if run.config.num_paths > 1:
                others[WRONG_PATH] = wrong_path(scores.sums, counts, paths)
            if run.config.evaluation.ensembles and run.config.num_paths > 1:
                others |= _ensembles(run, valid, arm, phase, scores)
    else:
        saved = list(saved_scores(run, arm, phase))
        counts = np.concatenate([score["counts"] for score in saved])
        value = perplexity(np.concatenate([score["sums"] for score in saved]), counts)
    if not math.isfinite(value):
        raise ArmDiverged(arm=arm, phase=phase, perplexity=value)
    return [
        Evaluated(
            arm=arm,
            phase=phase,
            perplexity=value,
            best_path_perplexity=best,
            other_rows=others,
            documents=len(valid.documents),
            tokens=int(counts.sum()),
            seconds=time.monotonic() - started,
        )
    ]


def _by_the_other_rule(run: Run, valid: Validation, scores: ScoresOfPaths) -> dict[str, float]:
    """The row of the rule that `routing.rule` is not, on the same modules."""
    if run.config.num_paths == 1:
        return {}
    if run.config.routing.rule == LIKELIHOOD:
        is_drawn = run.config.routing.kind == RANDOM
        other, paths = RANDOM if is_drawn else FEATURES, valid.paths
    else:
        other, paths = LIKELIHOOD, by_likelihood(run, valid, scores.prefixes)
    return {f"by_{other}": routed(scores.sums, scores.counts, paths)}


def _ensembles(
    run: Run, valid: Validation, arm: str, phase: int, scores: ScoresOfPaths
) -> dict[str, float]:
    """Rows of mixtures: the two best paths and all by the posterior of the prefix, and all by a
    posterior that is renewed at every token.
    """
    config = run.config
    score_NP = scores.prefixes.T.copy()
    score_NP[np.arange(len(score_NP)), valid.paths] += config.routing.prior_nats
    mixtures = {
        "ensemble_2": Mixture(log_posterior(best_of(score_NP, 2), TEMPERATURE)),
        "ensemble": Mixture(log_posterior(score_NP, TEMPERATURE)),
        "ensemble_renewed": RenewedMixture(score_NP, TEMPERATURE),
    }
    values = (score["values"] for score in saved_scores(run, arm, phase))
    where = is_scored(scores.counts, config.data.length, config.data.prefix_tokens)
    sums = mixed(mixtures.values(), values, where)
    return {
        name: perplexity(sum_N, scores.counts) for name, sum_N in zip(mixtures, sums, strict=True)
    }
