"""`reroute`: trains the router that picks a path every W tokens, and evaluates the last release.

DiPaCo (arXiv 2403.10616) section 2.4. The tasks `score` of the last release saved the
log-likelihood of every token under every path; those of one path are in memory at a time.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.config import MODULAR
from dipaco.control.facts import PartialSnapshot
from dipaco.control.tasks import Claim, Fact, StageDone
from dipaco.data.first_tokens import first_tokens
from dipaco.errors import Diverged
from dipaco.evaluation.rerouting import path_of_tokens, rerouted
from dipaco.inner.optimizer import adamw, learning_rates
from dipaco.inner.phase import run_phase
from dipaco.inner.state import fresh as fresh_state
from dipaco.inner.step import make_step
from dipaco.model.kernels import when_scoring
from dipaco.model.lm import hidden_states
from dipaco.routing import token_router
from dipaco.runs.run import Run
from dipaco.store.snapshots import load_snapshot, save_snapshot
from dipaco.store.tensors import save_tree
from dipaco.workers.callbacks import OnStep
from dipaco.workers.errors import RouterDiverged
from dipaco.workers.preemption import Preempted
from dipaco.workers.scoring import by_rule, saved_scores, scores_of_paths, validation

NUM_CHECKS = 40  # of the router on its hold-out during training


class _BestRouter(NamedTuple):
    """The router at the step of its lowest hold-out loss; at its last step if the hold-out has no
    targets.
    """

    params: Any
    loss: (
        np.ndarray
    )  # float32 scalar, mean nats per target of the hold-out; infinite: never measured
    step: np.ndarray  # int32 scalar


class _Rows(NamedTuple):
    """Documents to train on or to measure the loss on."""

    tokens: np.ndarray  # int32 [N, T]
    targets: np.ndarray  # int32 [N, T]
    is_target: np.ndarray  # bool [N, T]

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {name: values[rows] for name, values in self._asdict().items()}


def reroute(
    run: Run, claim: Claim, on_step: OnStep, should_stop: Callable[[], bool] = lambda: False
) -> list[Fact]:
    """Trains the router and evaluates it with each W of `reroute.every`.

    Raises:
      Preempted: `should_stop` returned True.
      RouterDiverged: its loss is not finite.
    """
    started = time.monotonic()
    config, arm = run.config, run.plan.arm(MODULAR)
    scores = functools.partial(_scores_by_path, run, arm.phases)
    kept, seconds = _trained(run, claim, scores, on_step, should_stop)

    valid = validation(run, MODULAR, arm.phases)
    documents = valid.documents
    path_N = by_rule(run, valid, scores_of_paths(run, valid, MODULAR, arm.phases).prefixes)
    tokens, lengths = first_tokens(run.tokens_of(documents), documents, config.data.length)
    choice_NT = _choices(run, kept.params, tokens)
    prefix_tokens = config.data.prefix_tokens
    rows = []
    for every in (*config.reroute.every, None):
        path_NT = path_of_tokens(path_N, choice_NT, every or config.data.length, prefix_tokens)
        result = rerouted(scores("values"), path_NT, lengths, prefix_tokens)
        rows.append({"every": every, **result._asdict()})
    return [
        StageDone(
            stage="reroute",
            artifacts={"within_router": save_tree(run.objects, "routers", kept.params)},
            summary={
                "rows": rows,
                "release": arm.phases,
                "step": int(kept.step),
                "hold_out_loss": float(kept.loss) if np.isfinite(kept.loss) else None,
            },
            seconds=seconds + time.monotonic() - started,
        )
    ]


def _scores_by_path(run: Run, phase: int, name: str) -> Iterator[np.ndarray]:
    """Saved scores of the last release, path by path."""
    for scores in saved_scores(run, MODULAR, phase):
        yield scores[name]


def _hidden_of(run: Run) -> token_router.HiddenOf:
    config = when_scoring(run.config.model)
    return lambda model, tokens_BT: hidden_states(config, model, tokens_BT)


def _trained(
    run: Run,
    claim: Claim,
    scores: Callable[[str], Iterator[np.ndarray]],
    on_step: OnStep,
    should_stop: Callable[[], bool],
) -> tuple[_BestRouter, float]:
    """Fine-tunes the base model on the router's documents, with AdamW as the paths. Also returns
    the seconds of the steps that an earlier worker took.
    """
    started = time.monotonic()
    config, settings = run.config, run.config.reroute
    rows = _rows(run, scores)
    random = np.random.default_rng(run.seed_for("reroute"))
    text_N = run.corpus.texts[run.corpus.documents("router")]
    learned, held_out = token_router.split(text_N, settings.hold_out, random)
    inner = dataclasses.replace(
        config.inner,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.steps // 20,
        batch_size=settings.batch_size,
        accumulation_steps=1,
    )
    params = token_router.fresh(run.base_parts(), config.model.d_model, config.num_paths)
    state = fresh_state(jax.tree.map(jnp.array, params), adamw(inner))
    kept = _BestRouter(params, np.asarray(math.inf, np.float32), np.asarray(0, np.int32))
    taken, losses, seconds = 0, (), 0.0
    if partial_snapshot := run.ledger.facts.partial_snapshot("", 0, 0):
        state, kept = load_snapshot(run.objects, partial_snapshot.receipt, (state, kept))
        state = jax.device_put(state)
        taken, losses, seconds = (
            partial_snapshot.step,
            partial_snapshot.losses,
            partial_snapshot.seconds,
        )

    def batches() -> Iterator[dict[str, np.ndarray]]:
        queue = np.zeros(0, np.int64)
        while True:
            while len(queue) < settings.batch_size:
                queue = np.append(queue, random.permutation(learned))
            now, queue = np.split(queue, [settings.batch_size])
            yield rows.batch(now)

    step: Any = make_step(functools.partial(token_router.loss, _hidden_of(run)), inner)
    measure = jax.jit(functools.partial(token_router.loss, _hidden_of(run)))
    coming = itertools.islice(batches(), taken, None)
    rates = learning_rates(inner, settings.steps, 0, settings.steps)
    between_checks = -(-settings.steps // NUM_CHECKS)
    while taken < settings.steps:
        count = min(between_checks - taken % between_checks, settings.steps - taken)
        try:
            result = run_phase(
                state,
                coming,
                rates[taken : taken + count],
                step,
                taken=taken,
                on_step=lambda _, loss: on_step(loss, settings.batch_size * config.data.length),
                should_stop=should_stop,
            )
        except Diverged as error:
            raise RouterDiverged(**error.values) from None
        state = result.state
        taken += len(result.losses)
        losses = (*losses, *result.losses.tolist())
        if len(result.losses) < count:
            name = run.layout.snapshot("reroute", 0, 0, claim.attempt)
            raise Preempted(
                PartialSnapshot(
                    receipt=save_snapshot(run.objects, name, (jax.device_get(state), kept)),
                    step=taken,
                    batches=run.ledger.facts.scores(MODULAR, run.plan.arm(MODULAR).phases)[
                        0
                    ].digest,
                    losses=losses,
                    seconds=seconds + time.monotonic() - started,
                )
            )
        if len(held_out):
            loss = _hold_out_loss(measure, state.parts, rows, held_out, settings.batch_size)
            if math.isnan(loss):
                raise RouterDiverged(step=taken, loss=loss)
            kept = _better(kept, state.parts, loss, taken)
    if math.isinf(kept.loss):
        kept = _BestRouter(jax.device_get(state.parts), kept.loss, np.asarray(taken, np.int32))
    return kept, seconds


def _rows(run: Run, scores: Callable[[str], Iterator[np.ndarray]]) -> _Rows:
    documents = run.corpus.documents("router")
    tokens, lengths = first_tokens(run.corpus, documents, run.config.data.length)
    target_NT = token_router.targets(scores("router_values"), lengths, run.config.reroute.window)
    index_T = np.arange(tokens.shape[1])
    # The router picks paths from the last token of the prefix on.
    is_routed_T = index_T >= run.config.data.prefix_tokens - 1
    return _Rows(tokens, target_NT, is_routed_T & (index_T + 1 < lengths[:, None]))


def _better(kept: _BestRouter, params: Any, loss: float, step: int) -> _BestRouter:
    """The router of lower loss; of equal losses the earlier one."""
    if not loss < kept.loss:
        return kept
    # Copied, since the next step takes over these buffers.
    return _BestRouter(
        jax.tree.map(np.array, params), np.asarray(loss, np.float32), np.asarray(step, np.int32)
    )


def _hold_out_loss(
    measure: Callable[..., Any], params: Any, rows: _Rows, held_out: np.ndarray, size: int
) -> float:
    """Mean nats per target of the documents held out; infinite if they have no targets."""
    nats, count = 0.0, 0
    for start in range(0, len(held_out), size):
        batch = rows.batch(np.resize(held_out[start : start + size], size))
        batch["is_target"] = batch["is_target"] & (np.arange(size) < len(held_out) - start)[:, None]
        batch_nats, batch_count = jax.device_get(measure(params, batch))
        nats, count = nats + float(batch_nats), count + int(batch_count)
    return nats / count if count else math.inf


def _choices(run: Run, params: Any, tokens_NT: np.ndarray) -> np.ndarray:
    """The path that the router picks after each token: int32 [N, T]."""

    @jax.jit
    def choose(params, tokens_BT):
        return jnp.argmax(token_router.path_logits(_hidden_of(run), params, tokens_BT), axis=-1)

    size, params = run.config.evaluation.batch_size, jax.device_put(params)
    choices = []
    for start in range(0, len(tokens_NT), size):
        rows = tokens_NT[start : start + size]
        padded = np.zeros((size, tokens_NT.shape[1]), np.int32)
        padded[: len(rows)] = rows
        choices.append(np.asarray(choose(params, padded), np.int32)[: len(rows)])
    return np.concatenate(choices)
