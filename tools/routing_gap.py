"""Compares routing by features, routing by likelihood and mixed paths on the same finished modules.

    python tools/routing_gap.py runs/quickstart
    python tools/routing_gap.py runs/quickstart --shortlists 2,4 --priors 0,2,4
    python tools/routing_gap.py runs/quickstart --test
    python tools/routing_gap.py runs/quickstart --first-tokens 32,48,64
    python tools/routing_gap.py runs/sweep/rows/NAME/*

Reads the scores of every tune document under the last release's paths
(`evaluation.best_path`, `evaluation.ensembles`) and runs no model. It computes perplexity by
features, by likelihood for every shortlist and prior, under the best path, and as ensembles for
every temperature. Each with its share of the gap from features to the best path and its 95 %
interval, a bootstrap over texts (paired: all rows are of the same documents, which are pieces of
texts). Fewer than ten texts, as of one domain, have no interval.

With `--test`, the prior of each shortlist and the temperature of each ensemble are the best ones on
tune documents, and everything that is shown is of test documents.

With `--first-tokens` it shows the effect of longer beginnings instead: documents go by the
likelihood of so many of their first tokens (features and shortlists stay as they are), and all
rows, the best path too, are of the tokens after the longest of them.

Several runs of one sweep, as a row's seeds, are shown as one: their documents together, perplexity
as the geometric mean, and intervals over texts, each of which is drawn in all runs or in none.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from support.command_line import parser_of

from dipaco.config import MODULAR
from dipaco.errors import DipacoError
from dipaco.evaluation.ensembles import Mixture, RenewedMixture, best_of, log_posterior, mixed
from dipaco.evaluation.gap import in_words, share_of_gap
from dipaco.evaluation.perplexity import is_scored, perplexity
from dipaco.routing.config import RANDOM
from dipaco.routing.likelihood import likeliest, prefix_scores
from dipaco.runs.opening import reading
from dipaco.runs.routing import features_of
from dipaco.runs.run import Run
from dipaco.workers.scoring import held_documents, saved_scores, scores_of_paths

ENSEMBLES = ("ensemble of 2", "ensemble", "ensemble, renewed")


class Scores(NamedTuple):
    """Scores of N held documents under the paths of a finished run."""

    order_NP: np.ndarray  # paths by features, the best first
    prefix_NP: np.ndarray
    sum_NP: np.ndarray
    count_N: np.ndarray
    text_N: np.ndarray  # a number for the text that each is a piece of
    is_test_N: np.ndarray  # else it is of tune
    mixed_sums: dict[str, dict[float, np.ndarray]]  # ensemble -> temperature -> [N]
    value_NPT: np.ndarray | None = None  # every token from `prefix_tokens` on, if kept


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="DIR", help="folders of finished runs"
    )
    parser.add_argument("--shortlists", default="2,4,8,16,32", type=counts, metavar="N,N")
    parser.add_argument("--priors", default="0,1,2,4", type=numbers, metavar="NATS,NATS")
    parser.add_argument("--temperatures", default="1,2,4,8", type=numbers, metavar="T,T")
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--first-tokens", default=[], type=counts, metavar="N,N")
    options = parser.parse_args()
    try:
        scores, prefix_tokens = read(options)
    except (DipacoError, Unfit) as error:
        parser.error(str(error))
    paths = scores.sum_NP.shape[1]
    sizes = [*(size for size in options.shortlists if size < paths), paths]
    shown: list[str] = []
    for number in options.first_tokens:
        after = after_first_tokens(scores, prefix_tokens, number, options.first_tokens[-1])
        lines = table(after, sizes, options.priors, is_test=options.test)
        by = f"Likelihood by the first {number} tokens, features and shortlists by those of the run"
        shown += [f"{by}:", "", *lines, ""]
    if not options.first_tokens:
        shown = table(scores, sizes, options.priors, is_test=options.test)
    print("\n".join(shown))


def numbers(text: str) -> list[float]:
    """`0,2.5`, in ascending order."""
    return sorted(float(each) for each in text.split(",") if each)


def counts(text: str) -> list[int]:
    """`8,16`, each 1 or more, in ascending order."""
    found = sorted(int(each) for each in text.split(",") if each)
    if found and found[0] < 1:
        raise ValueError
    return found


class Unfit(Exception):
    """A run cannot be shown, or not beside the others, for the reason given."""


def read(options: argparse.Namespace) -> tuple[Scores, int]:
    """The scores of all runs, and the tokens that no perplexity counts.

    Raises:
      Unfit, DipacoError: a run lacks these scores.
    """
    of_runs, first = [], None
    for folder in options.runs:
        with reading(folder) as run:
            data, evaluation = run.config.data, run.config.evaluation
            if not (evaluation.best_path and evaluation.ensembles):
                raise Unfit(f"{folder} keeps no scores: it needs `evaluation.ensembles=true`")
            if run.config.routing.kind == RANDOM:
                raise Unfit(f"{folder} deals documents out at random: no router to compare")
            if (asked := options.first_tokens) and not (
                data.prefix_tokens <= asked[0] <= asked[-1] < data.length
            ):
                told = f"{data.prefix_tokens} to {data.length - 1}"
                raise Unfit(f"{folder} keeps what is said of tokens {told}")
            first = first or run.config
            if data != first.data:
                raise Unfit(f"{folder} and {options.runs[0]} differ in `data`")
            scores = scores_of(run, options.temperatures, keep_tokens=bool(options.first_tokens))
            of_runs.append(scores)
            if not are_alike(scores, of_runs[0]):
                what = "other documents, or another number of paths"
                raise Unfit(f"{folder} has {what} than {options.runs[0]}")
    assert first is not None
    return together(of_runs), first.data.prefix_tokens


def are_alike(one: Scores, other: Scores) -> bool:
    """True if both have the same documents and as many paths."""
    same = (
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("count_N", "text_N", "is_test_N")
    )
    return one.sum_NP.shape == other.sum_NP.shape and all(same)


def together(of_runs: Sequence[Scores]) -> Scores:
    """The documents of all runs, one run after another. Texts have the same numbers in each."""
    first = of_runs[0]
    if len(of_runs) == 1:
        return first
    arrays = {
        name: np.concatenate([getattr(scores, name) for scores in of_runs])
        for name in Scores._fields
        if isinstance(getattr(first, name), np.ndarray)
    }
    mixed_sums = {
        name: {
            t: np.concatenate([scores.mixed_sums[name][t] for scores in of_runs])
            for t in by_temperature
        }
        for name, by_temperature in first.mixed_sums.items()
    }
    return first._replace(**arrays, mixed_sums=mixed_sums)


def after_first_tokens(scores: Scores, prefix_tokens: int, number: int, longest: int) -> Scores:
    """The same documents by their first `number` tokens, of which the first `prefix_tokens` are
    what was compared, and scored from token `longest` on. Without ensembles, and without documents
    that end before.
    """
    value_NPT = scores.value_NPT
    assert value_NPT is not None
    is_kept_N = scores.count_N > longest - prefix_tokens
    more_NP = value_NPT[:, :, prefix_tokens:number].sum(axis=2, dtype=np.float64)
    return Scores(
        order_NP=scores.order_NP[is_kept_N],
        prefix_NP=(scores.prefix_NP + more_NP)[is_kept_N],
        sum_NP=value_NPT[is_kept_N, :, longest:].sum(axis=2, dtype=np.float64),
        count_N=scores.count_N[is_kept_N] - (longest - prefix_tokens),
        text_N=scores.text_N[is_kept_N],
        is_test_N=scores.is_test_N[is_kept_N],
        mixed_sums={},
    )


def scores_of(run: Run, temperatures: list[float], *, keep_tokens: bool = False) -> Scores:
    """Reads the scores of the last release, also token by token if `keep_tokens`."""
    phase = run.plan.arm(MODULAR).phases
    held = held_documents(run, MODULAR, phase)
    said = scores_of_paths(run, held, MODULAR, phase)
    router = run.router_of(run.routing_of(MODULAR, phase))
    order_NP = router.assign(features_of(run, run.corpus, held.documents), router.num_paths)
    score_NP = prefix_scores(said.prefixes.T, order_NP, run.config.routing.prior_nats)
    mixtures = {
        (name, t): mixture
        for t in temperatures
        for name, mixture in zip(
            ENSEMBLES,
            (
                Mixture(log_posterior(best_of(score_NP, 2), t)),
                Mixture(log_posterior(score_NP, t)),
                RenewedMixture(score_NP, t),
            ),
            strict=True,
        )
    }
    values = (each["values"] for each in saved_scores(run, MODULAR, phase))
    where = is_scored(said.counts, run.config.data.length, run.config.data.prefix_tokens)
    mixed_sums: dict[str, dict[float, np.ndarray]] = {name: {} for name in ENSEMBLES}
    for (name, t), sum_N in zip(mixtures, mixed(mixtures.values(), values, where), strict=True):
        mixed_sums[name][t] = sum_N
    return Scores(
        order_NP=order_NP,
        prefix_NP=said.prefixes.T,
        sum_NP=said.sums.T,
        count_N=said.counts,
        text_N=run.corpus.texts[held.documents],
        is_test_N=held.is_test,
        mixed_sums=mixed_sums,
        value_NPT=np.stack([each["values"] for each in saved_scores(run, MODULAR, phase)], axis=1)
        if keep_tokens
        else None,
    )


def table(scores: Scores, sizes: list[int], priors: list[float], *, is_test: bool) -> list[str]:
    """Markdown, a line for each way and setting on tune documents, or for each way with its best
    setting there on test documents.
    """
    is_shown_N = scores.is_test_N == is_test
    everyone = np.arange(len(scores.count_N))
    ways: list[tuple[str, dict[str, np.ndarray]]] = []  # row -> setting -> [N]
    for size in sizes:
        shortlist = scores.order_NP[:, :size]
        by_prior = {
            f"prior {prior:g}": scores.sum_NP[
                everyone, likeliest(prefix_scores(scores.prefix_NP, shortlist, prior), shortlist)
            ]
            for prior in priors
        }
        ways.append((f"likelihood, shortlist of {size}", by_prior))
    for name, by_temperature in scores.mixed_sums.items():
        ways.append((name, {f"temperature {t:g}": sum_N for t, sum_N in by_temperature.items()}))

    count_N, text_N = scores.count_N[is_shown_N], scores.text_N[is_shown_N]
    before_N = scores.sum_NP[everyone, scores.order_NP[:, 0]]
    best_N = scores.sum_NP.max(axis=1)
    lines = [
        f"{is_shown_N.sum()} of {len(is_shown_N)} documents, of {len(np.unique(text_N))} texts, "
        f"{scores.sum_NP.shape[1]} paths",
        "",
        "| way | setting | perplexity | share of the gap |",
        "| :-- | :-- | --: | --: |",
        f"| features | | {perplexity(before_N[is_shown_N], count_N):.2f} | |",
    ]
    for name, by_setting in ways:
        if is_test:
            best = max(by_setting, key=lambda each: by_setting[each][~is_shown_N].sum())
            by_setting = {best: by_setting[best]}
        for setting, sum_N in by_setting.items():
            share = share_of_gap(
                before_N[is_shown_N], sum_N[is_shown_N], best_N[is_shown_N], count_N, text_N
            )
            value = perplexity(sum_N[is_shown_N], count_N)
            lines.append(f"| {name} | {setting} | {value:.2f} | {in_words(share)} |")
    lines.append(f"| best path | | {perplexity(best_N[is_shown_N], count_N):.2f} | 100 % |")
    return lines


if __name__ == "__main__":
    main()
