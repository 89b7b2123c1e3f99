"""`reroute`: trains the router that picks a path every W tokens, and evaluates the last release.

DiPaCo (arXiv 2403.10616) section 2.4. The tasks `score` of the last release saved the
log-likelihood of every token under every path. One path's are in memory at a time.
"""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.config import MODULAR
from dipaco.control.planning.summaries import Rerouted, ReroutedEvery
from dipaco.control.planning.tasks import Claim, Fact, StageDone
from dipaco.data.windows import first_tokens
from dipaco.evaluation.rerouting import path_of_tokens, rerouted
from dipaco.routing import token_router
from dipaco.runs.run import Run
from dipaco.store.tensors import save_tree
from dipaco.workers.callbacks import OnPathStep
from dipaco.workers.scoring import held_documents, routed_paths, saved_scores
from dipaco.workers.tasks.token_router_training import hidden_of, trained


def reroute(
    run: Run, claim: Claim, on_step: OnPathStep, should_stop: Callable[[], bool] = lambda: False
) -> list[Fact]:
    """Trains the router and evaluates it with each W of `reroute.every`.

    Raises:
      Preempted: `should_stop` returned True.
      RouterDiverged: its loss is not finite.
    """
    started = time.monotonic()
    config, arm = run.config, run.plan.arm(MODULAR)
    scores = functools.partial(_scores_by_path, run, arm.phases)
    kept, seconds = trained(run, claim, scores, on_step, should_stop)

    held = held_documents(run, MODULAR, arm.phases)
    documents = held.documents
    path_N = routed_paths(run, held, MODULAR, arm.phases)
    tokens, lengths = first_tokens(run.tokens_of(documents), documents, config.data.length)
    choice_NT = _choices(run, kept.params, tokens)
    prefix_tokens = config.data.prefix_tokens
    rows = []
    for every in (*config.reroute.every, None):
        path_NT = path_of_tokens(path_N, choice_NT, every or config.data.length, prefix_tokens)
        test, tune = (
            rerouted(
                (value_NT[is_in_N] for value_NT in scores("values")),
                path_NT[is_in_N],
                lengths[is_in_N],
                prefix_tokens,
            )
            for is_in_N in (held.is_test, ~held.is_test)
        )
        of_tune = tune.perplexity
        rows.append(ReroutedEvery(every=every, tune_perplexity=of_tune, **test._asdict()))
    return [
        StageDone(
            stage="reroute",
            artifacts={"within_router": save_tree(run.objects, "routers", kept.params)},
            summary=Rerouted(
                rows=rows,
                release=arm.phases,
                step=int(kept.step),
                hold_out_loss=float(kept.loss) if np.isfinite(kept.loss) else None,
            ).as_json(),
            seconds=seconds + time.monotonic() - started,
        )
    ]


def _scores_by_path(run: Run, phase: int, name: str) -> Iterator[np.ndarray]:
    """Saved scores of the last release, path by path."""
    for scores in saved_scores(run, MODULAR, phase):
        yield scores[name]


def _choices(run: Run, params: Any, tokens_NT: np.ndarray) -> np.ndarray:
    """The path that the router picks after each token: int32 [N, T]."""

    @jax.jit
    def choose(params, tokens_BT):
        return jnp.argmax(token_router.path_logits(hidden_of(run), params, tokens_BT), axis=-1)

    size, params = run.config.evaluation.batch_size, jax.device_put(params)
    choices = []
    for start in range(0, len(tokens_NT), size):
        rows = tokens_NT[start : start + size]
        padded = np.zeros((size, tokens_NT.shape[1]), np.int32)
        padded[: len(rows)] = rows
        choices.append(np.asarray(choose(params, padded), np.int32)[: len(rows)])
    return np.concatenate(choices)
