"""The bootstrap over test texts: is a difference more than the choice of text?

Two rows of a seed are scored on the same documents, which are pieces of texts. Texts are drawn with
replacement, as many as there are and the same for all rows and seeds, each with all of its pieces.
Each drawing gives every run a perplexity, and a pair of rows a difference. The interval holds 95 %
of the differences. It covers the choice of text *for the same trained models*, and not the choice
of training seed (`pairing.py`).

Pieces of a text are hard or easy together, and the split never parts them: drawn one by one they
give intervals that are too narrow. On the quickstart's text, 441 pieces of 153 texts,
intervals over texts are 1.4 to 2.8 times as wide. Texts that a source groups are still drawn one by
one.

Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, sections 8 and 13.3
(percentile interval), Davison and Hinkley, Bootstrap Methods, 1997, section 3.8 (whole clusters),
and Koehn, EMNLP 2004 (pairs).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dipaco.evaluation.gap import LEAST_TEXTS, by_text, drawings
from dipaco.sweeps.pairing import CONFIDENCE
from dipaco.workers.scoring import DocumentScores

DRAWINGS = 1000
Spread = tuple[float, float]  # lower and upper end of a 95 % interval


class Drawn(NamedTuple):
    """The perplexity of a run on every drawing of texts."""

    documents: bytes  # identity of the documents that were drawn from, and of their texts
    num_texts: int
    perplexities: np.ndarray  # float64 [DRAWINGS]


def drawn(scores: DocumentScores) -> Drawn:
    """Perplexities on drawings of texts. Runs on the same documents have the same drawings."""
    sum_T, count_T = (by_text(each, scores.texts) for each in (scores.sums, scores.counts))
    times_DT = _drawings(len(sum_T))
    with np.errstate(divide="ignore", invalid="ignore"):  # a drawing without a token is left out
        value_D = np.exp(-(times_DT @ sum_T) / (times_DT @ count_T))
    return Drawn(scores.documents.tobytes() + scores.texts.tobytes(), len(sum_T), value_D)


def interval_over_texts(
    before: Mapping[int, Drawn], after: Mapping[int, Drawn], seeds: Sequence[int]
) -> Spread | None:
    """The 95 % interval of `after - before`, the mean over seeds.

    Args:
      before, after: seed -> run.

    Returns:
      The ends of the interval. None if a seed has not both runs, if they were not scored on the
      same documents, or if the documents are of too few texts.
    """
    if not seeds or not all(seed in run for run in (before, after) for seed in seeds):
        return None
    runs = [run[seed] for run in (before, after) for seed in seeds]
    if any(run.documents != runs[0].documents for run in runs) or runs[0].num_texts < LEAST_TEXTS:
        return None
    difference_D = np.mean(
        [after[seed].perplexities - before[seed].perplexities for seed in seeds], axis=0
    )
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(difference_D, (tail, 100 - tail))
    return float(low), float(high)


# float64 [DRAWINGS, T] of T texts. Rows of a sweep ask for the same again.
_drawings = functools.lru_cache(maxsize=4)(functools.partial(drawings, draws=DRAWINGS))
