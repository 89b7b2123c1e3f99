"""What SCAFFOLD's control variates bring to finished runs: each is trained once more with them, in
one process, on its own base model, shards and steps.

    dipaco ablate configs/ablations/outer_step.py --run runs/outer_step --only "plain 10x50"
    python tools/scaffold.py runs/outer_step/rows/plain_10x50/0

Source: SCAFFOLD (arXiv 1910.06378), option II, in units of AdamW's directions. Path i adds c - c_i
to the direction of every inner step. c_i is how far it moved by itself in the phase before, for a
unit of rate: (before - after) / (sum of rates) - (c - c_i). c is the mean of c_i over the paths of
its module, rows of the vocabulary by holders where the run averages them so. In the first phase
both are 0. Nothing more is sent, since c follows from the last outer step; a path keeps c_i, as
large as itself.

The table has the perplexity of the run's last modules and of those made with control variates, by
the router and with the best path of each document. A run of ten phases takes as long as one worker
needed for it. Refused are runs whose paths do not all train through every phase on one shard, and
runs that leave absent rows at rest, which a control variate would move.
"""

import argparse
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from support.training_again import first_modules, take_steps

from dipaco.algorithm import variants
from dipaco.config import MODULAR
from dipaco.errors import DipacoError
from dipaco.evaluation.perplexity import best_path, routed
from dipaco.inner.optimizer import learning_rates
from dipaco.inner.state import PathState
from dipaco.outer.gradient import WeightedMean, path_weights
from dipaco.outer.vocabulary import counts_of, has_rows, row_shares
from dipaco.routing.config import LIKELIHOOD
from dipaco.runs.opening import reading
from dipaco.runs.run import Run
from dipaco.topology import assemble, dissect
from dipaco.workers.row_plans import batches_for
from dipaco.workers.scoring import score_under_path, validation


class Perplexities(NamedTuple):
    """Of all paths together, on the validation documents."""

    routed: float
    best_path: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="DIR", help="folders of finished runs"
    )
    options = parser.parse_args()
    print("| run | perplexity | with SCAFFOLD | | best path | with SCAFFOLD | |")
    print("| :-- | --: | --: | --: | --: | --: | --: |", flush=True)
    for folder in options.runs:
        try:
            with reading(folder) as run:
                if why := why_not(run):
                    parser.error(f"{folder}: {why}")
                own = score(run, last_modules(run))
                *_, modules = train(run)
                print(row(str(folder), own, score(run, modules)), flush=True)
        except DipacoError as error:
            parser.error(str(error))


def row(name: str, own: Perplexities, other: Perplexities) -> str:
    """A line of the table: differences in percent."""
    cells = [
        cell
        for before, after in zip(own, other, strict=True)
        for cell in (f"{before:.2f}", f"{after:.2f}", f"{100 * (after / before - 1):+.1f} %")
    ]
    return "| " + " | ".join([name, *cells]) + " |"


def why_not(run: Run) -> str:
    """Why a run cannot be trained with control variates; nothing if it can."""
    arm, config = run.plan.arm(MODULAR), run.config
    if config.inner.freeze_absent_tokens:
        return "inner.freeze_absent_tokens is on"
    everyone = list(range(arm.topology.num_paths))
    if any(list(arm.paths_in(phase)) != everyone for phase in range(arm.phases)):
        return "some paths sit phases out; all must train in every phase"
    differs = {
        "alternations": arm.alternations,
        "routing by likelihood": config.routing.rule == LIKELIHOOD,
        "a quorum": arm.has_quorum,
        "late modules": arm.delay,
        "averaging at every step": config.outer.synchronous,
        f"contributions in {config.outer.codec!r}": config.outer.codec != "none",
    }
    has = [what for what, is_on in differs.items() if is_on]
    return f"it has {has[0]}, which this tool has not" if has else ""


def train(run: Run, *, has_control_variates: bool = True) -> Iterator[variants.Modules]:
    """All modules after each outer step; without control variates, the run's bit for bit."""
    arm, inner = run.plan.arm(MODULAR), run.config.inner
    topology, routing = arm.topology, run.routing_of(MODULAR, 0)
    documents = run.shards_of(routing).documents
    by_holders = run.config.outer.vocabulary_rows == "holders"
    counts_PV = run.token_counts(routing) if by_holders else None
    moved: dict[int, variants.Modules] = {}  # c_i of each path, by module
    means: variants.Modules = {}  # c of each module
    means_of_phase = 0

    def train_path(path: int, phase: int, parts: Any, optimizer: Any) -> Any:
        nonlocal means, means_of_phase
        if phase > means_of_phase:  # the first path of a phase: all paths have ended the one before
            means, means_of_phase = mean_of(moved), phase
        through = topology.modules_of(path)
        correction = jax.tree.map(np.zeros_like, parts)
        if phase > 0 and has_control_variates:
            own = assemble(moved[path], through)
            correction = jax.tree.map(np.subtract, assemble(means, through), own)
        first = arm.steps_before(phase)
        rates = learning_rates(inner, arm.total_steps, first, arm.steps_in(phase))
        batches = batches_for(run, arm, path, phase)
        before = jax.tree.map(np.asarray, parts)
        state = run.programs.place(parts, optimizer, first)

        def correct(state: PathState, rate: Any) -> PathState:
            if phase == 0 or not has_control_variates:
                return state
            return state._replace(parts=corrected(state.parts, correction, rate))

        following = map(batches.at, itertools.count(first))
        after, optimizer = take_steps(run, state, rates, following, correct)
        moved[path] = dissect(by_itself(before, after, correction, rates), topology, path)
        return after, optimizer

    def mean_of(moved: dict[int, variants.Modules]) -> variants.Modules:
        result = {}
        for module in topology.modules:
            paths, mean = topology.paths_through(module), WeightedMean()
            alpha_P = path_weights(
                [documents[path] for path in paths],
                by_documents=run.config.outer.weigh_by_documents,
            )
            share_PV: Any = [None] * len(paths)
            if counts_PV is not None and has_rows(moved[paths[0]][module]):
                counts = counts_of(counts_PV, paths)
                share_PV = row_shares(counts, alpha_P).astype(np.float32)
            for path, alpha, share_V in zip(paths, alpha_P, share_PV, strict=True):
                mean.add(moved[path][module], alpha, share_V)
            result[module] = mean.take()
        return result

    return variants.train(
        arm,
        first_modules(run),
        train_path,
        lambda phase, modules: variants.Shards(documents, counts_PV),
        outer=run.config.outer,
        outer_rule=run.rule("outer_step"),
    )


@functools.partial(jax.jit, donate_argnums=0)
def corrected(parts: Any, correction: Any, rate: Any) -> Any:
    """What an inner step makes of a path, with c - c_i added to its direction."""
    return jax.tree.map(lambda leaf, each: leaf - rate * each, parts, correction)


def by_itself(before: Any, after: Any, correction: Any, rates: np.ndarray) -> Any:
    """c_i: the mean direction of a phase for a unit of rate, without the correction."""
    unit = np.float32(1 / rates.sum(dtype=np.float64))
    return jax.tree.map(lambda a, b, c: (a - b) * unit - c, before, after, correction)


def last_modules(run: Run) -> variants.Modules:
    """The modules of the run's last release."""
    arm = run.plan.arm(MODULAR)
    return {m: run.parameters(MODULAR, m, arm.phases) for m in arm.topology.modules}


def score(run: Run, modules: variants.Modules) -> Perplexities:
    """Every validation document under every path."""
    arm = run.plan.arm(MODULAR)
    valid = validation(run, MODULAR, arm.phases)
    tokens_of, sums = run.tokens_of(valid.documents), []
    for path in range(arm.topology.num_paths):
        parts = assemble(modules, arm.topology.modules_of(path))
        sum_N, count_N = score_under_path(run, parts, tokens_of, valid.documents)
        sums.append(sum_N)
    sum_PN = np.stack(sums)
    return Perplexities(routed(sum_PN, count_N, valid.paths), best_path(sum_PN, count_N))


if __name__ == "__main__":
    main()
