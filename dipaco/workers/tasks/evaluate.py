"""`evaluate`: the perplexity of a release on tune and on test, from the scores of all its paths.

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
    is_scored,
    perplexity,
    routed,
    wrong_path,
)
from dipaco.evaluation.tables import BEST_PATH, WRONG_PATH
from dipaco.routing.config import FEATURES, LIKELIHOOD, RANDOM
from dipaco.runs.run import Run
from dipaco.workers.errors import ArmDiverged
from dipaco.workers.scoring import (
    Held,
    ScoresOfPaths,
    by_likelihood,
    by_rule,
    compares_paths,
    held_documents,
    saved_scores,
    scores_every_path,
    scores_of_paths,
)


def evaluate_release(run: Run, claim: Claim) -> list[Fact]:
    """Computes the perplexity of a release from the scores of its paths.

    Raises:
      ArmDiverged: it is not finite.
    """
    started = time.monotonic()
    arm, phase = claim.task.arm, claim.task.phase
    held = held_documents(run, arm, phase)
    if compares_paths(run, arm, phase):
        scores = scores_of_paths(run, held, arm, phase)
        counts_N, sums = scores.counts, _sums_of_rows(run, held, arm, phase, scores)
        is_test_N = held.is_test
    else:
        saved = list(saved_scores(run, arm, phase))
        documents_N, sum_N, counts_N = (
            np.concatenate([score[name] for score in saved])
            for name in ("documents", "sums", "counts")
        )
        is_test_N, sums = np.isin(documents_N, held.documents[held.is_test]), {"": sum_N}
    test, tune = (
        {name: perplexity(sum_N[is_in_N], counts_N[is_in_N]) for name, sum_N in sums.items()}
        for is_in_N in (is_test_N, ~is_test_N)
    )
    value = test.pop("")
    if not math.isfinite(value):
        raise ArmDiverged(arm=arm, phase=phase, perplexity=value)
    return [
        Evaluated(
            arm=arm,
            phase=phase,
            perplexity=value,
            best_path_perplexity=test.pop(BEST_PATH, None),
            other_rows=test,
            tune_rows=tune,
            documents=int(is_test_N.sum()),
            tokens=int(counts_N[is_test_N].sum()),
            seconds=time.monotonic() - started,
        )
    ]


def _sums_of_rows(
    run: Run, held: Held, arm: str, phase: int, scores: ScoresOfPaths
) -> dict[str, np.ndarray]:
    """Row of the arm -> float64 [N], the log-likelihood of each document. The arm's own has no
    name.
    """
    path_N = by_rule(run, held, scores.prefixes)
    rows = {"": routed(scores.sums, path_N)}
    if not scores_every_path(run, arm, phase):
        return rows
    rows[BEST_PATH] = scores.sums.max(axis=0)  # in hindsight: a bound for every router
    if run.config.num_paths == 1:
        return rows
    rows |= _by_the_other_rule(run, held, scores)
    rows[WRONG_PATH] = wrong_path(scores.sums, path_N)
    if run.config.evaluation.ensembles:
        rows |= _ensembles(run, held, arm, phase, scores)
    return rows


def _by_the_other_rule(run: Run, held: Held, scores: ScoresOfPaths) -> dict[str, np.ndarray]:
    """The row of the rule that `routing.rule` is not, on the same modules."""
    if run.config.routing.rule == LIKELIHOOD:
        is_drawn = run.config.routing.kind == RANDOM
        other, path_N = RANDOM if is_drawn else FEATURES, held.paths
    else:
        other, path_N = LIKELIHOOD, by_likelihood(run, held, scores.prefixes)
    return {f"by_{other}": routed(scores.sums, path_N)}


def _ensembles(
    run: Run, held: Held, arm: str, phase: int, scores: ScoresOfPaths
) -> dict[str, np.ndarray]:
    """Rows of mixtures: the two best paths and all by the posterior of the prefix, and all by a
    posterior that is renewed at every token.
    """
    config = run.config
    score_NP = scores.prefixes.T.copy()
    score_NP[np.arange(len(score_NP)), held.paths] += config.routing.prior_nats
    mixtures = {
        "ensemble_2": Mixture(log_posterior(best_of(score_NP, 2), TEMPERATURE)),
        "ensemble": Mixture(log_posterior(score_NP, TEMPERATURE)),
        "ensemble_renewed": RenewedMixture(score_NP, TEMPERATURE),
    }
    values = (score["values"] for score in saved_scores(run, arm, phase))
    where = is_scored(scores.counts, config.data.length, config.data.prefix_tokens)
    return dict(zip(mixtures, mixed(mixtures.values(), values, where), strict=True))
