"""The bootstrap over validation documents: is a difference more than the choice of text?

Two rows of a seed are scored on the same documents. Documents are drawn with replacement, as many
as there are and the same for all rows and seeds; each drawing gives every run a perplexity, and a
pair of rows a difference. The interval holds 95 % of them. It says what other text would give *of
the same trained models*; what another seed of training would give, it does not say (`pairing.py`).

Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, sections 8 and 13.3
(percentile interval); paired over documents as in Koehn, EMNLP 2004.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dipaco.evaluation.gap import drawings
from dipaco.sweeps.pairing import CONFIDENCE
from dipaco.workers.scoring import DocumentScores

DRAWINGS = 1000
Spread = tuple[float, float]  # lower and upper end of a 95 % interval


class Drawn(NamedTuple):
    """The perplexity of a run on every drawing of documents."""

    documents: bytes  # that were drawn from
    perplexities: np.ndarray  # float64 [DRAWINGS]


def drawn(scores: DocumentScores) -> Drawn:
    """Perplexities on drawings of documents; runs on the same documents have the same drawings."""
    times_DN = _drawings(len(scores.documents))
    with np.errstate(divide="ignore", invalid="ignore"):  # a drawing without a token is left out
        value_D = np.exp(-(times_DN @ scores.sums) / (times_DN @ scores.counts))
    return Drawn(scores.documents.tobytes(), value_D)


def interval_over_documents(
    before: Mapping[int, Drawn], after: Mapping[int, Drawn]
) -> Spread | None:
    """The 95 % interval of `after - before`, the mean over the seeds that both have.

    Args:
      before, after: seed -> run.

    Returns:
      Its ends; None if no seed has both, or they were not scored on the same documents.
    """
    seeds = sorted(before.keys() & after.keys())
    runs = [run[seed] for run in (before, after) for seed in seeds]
    if not runs or any(run.documents != runs[0].documents for run in runs):
        return None
    difference_D = np.mean(
        [after[seed].perplexities - before[seed].perplexities for seed in seeds], axis=0
    )
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(difference_D, (tail, 100 - tail))
    return float(low), float(high)


# float64 [DRAWINGS, N] of N documents; rows of a sweep ask for the same again
_drawings = functools.lru_cache(maxsize=4)(functools.partial(drawings, draws=DRAWINGS))
