"""Trains the router that picks a path every W tokens: the base model, with a head for the paths.

DiPaCo (arXiv 2403.10616) section 2.4. It learns from the router's documents, a part of which is
held out: the router is kept as it was where its loss on those was the lowest.
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
from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.planning.tasks import Claim
from dipaco.data.windows import first_tokens
from dipaco.errors import Diverged
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import learning_rates, make_optimizer
from dipaco.inner.phase import run_phase
from dipaco.inner.state import fresh as fresh_state
from dipaco.inner.step import make_step
from dipaco.model.kernels import when_scoring
from dipaco.model.lm import hidden_states
from dipaco.routing import token_router
from dipaco.routing.token_router import BATCH_SIZE
from dipaco.runs.run import Run
from dipaco.store.snapshots import load_snapshot, save_snapshot
from dipaco.workers.callbacks import OnPathStep
from dipaco.workers.errors import Preempted, RouterDiverged
from dipaco.workers.scoring import documents_for_router

NUM_CHECKS = 40  # measurements of the router on its hold-out during training
# Share of the router's documents, by whole texts. A few hundred documents are over-fitted within
# 200 steps, so the router with the lowest loss on held-out ones is kept. Not in the paper.
HOLD_OUT = 0.1


class BestRouter(NamedTuple):
    """The router at the step of its lowest hold-out loss, or at its last step if the hold-out has
    no targets.
    """

    params: Any
    # float32 scalar, mean nats per target of the hold-out. Infinite: never measured.
    loss: np.ndarray
    step: np.ndarray  # int32 scalar


class _Rows(NamedTuple):
    """Documents to train on or to measure the loss on."""

    tokens: np.ndarray  # int32 [N, T]
    targets: np.ndarray  # int32 [N, T]
    is_target: np.ndarray  # bool [N, T]

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {name: values[rows] for name, values in self._asdict().items()}


class _Progress(NamedTuple):
    """The router so far."""

    state: Any  # the inner optimiser's, with the parameters
    kept: BestRouter
    losses: tuple[float, ...] = ()  # one for each step
    seconds: float = 0.0  # time of earlier workers

    @property
    def taken(self) -> int:
        """Steps taken."""
        return len(self.losses)


def trained(
    run: Run,
    claim: Claim,
    scores: Callable[[str], Iterator[np.ndarray]],
    on_step: OnPathStep,
    should_stop: Callable[[], bool],
) -> tuple[BestRouter, float]:
    """Fine-tunes the base model on the router's documents, with the paths' optimiser. Also returns
    the seconds of the steps that an earlier worker took.

    Args:
      scores: name -> that release's saved scores, path by path.

    Raises:
      Preempted: `should_stop` returned True.
      RouterDiverged: its loss is not finite.
    """
    started, settings = time.monotonic(), run.config.reroute
    rows, inner = _rows(run, scores), _inner(run)
    random = np.random.default_rng(run.seed_for("reroute"))
    text_N = run.corpus.texts[documents_for_router(run)]
    learned, held_out = token_router.split(text_N, HOLD_OUT, random)
    progress = _begun(run, inner)
    loss_of = functools.partial(token_router.loss, hidden_of(run))
    step: Any = make_step(loss_of, inner)
    measure = jax.jit(loss_of)
    batches = _batches(rows, learned, BATCH_SIZE, random)
    coming = itertools.islice(batches, progress.taken, None)
    rates = learning_rates(inner, settings.steps, 0, settings.steps)
    between_checks = -(-settings.steps // NUM_CHECKS)
    while (taken := progress.taken) < settings.steps:
        count = min(between_checks - taken % between_checks, settings.steps - taken)
        try:
            result = run_phase(
                progress.state,
                coming,
                rates[taken : taken + count],
                step,
                taken=taken,
                on_step=lambda _, loss: on_step(loss, BATCH_SIZE * run.config.data.length),
                should_stop=should_stop,
            )
        except Diverged as error:
            raise RouterDiverged(**error.values) from None
        losses = (*progress.losses, *result.losses.tolist())
        progress = progress._replace(state=result.state, losses=losses)
        if len(result.losses) < count:
            raise Preempted(_snapshot(run, claim, progress, time.monotonic() - started))
        if len(held_out):
            progress = _checked(progress, measure, rows, held_out, BATCH_SIZE)
    kept = progress.kept
    if math.isinf(kept.loss):
        kept = BestRouter(
            jax.device_get(progress.state.parts), kept.loss, np.asarray(progress.taken, np.int32)
        )
    return kept, progress.seconds


def hidden_of(run: Run) -> token_router.HiddenOf:
    """Hidden states of a run's model, as the router reads them."""
    config = when_scoring(run.config.model)
    return lambda model, tokens_BT: hidden_states(config, model, tokens_BT)


def _inner(run: Run) -> InnerSettings:
    settings = run.config.reroute
    return dataclasses.replace(
        run.config.inner,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.steps // 20,
        batch_size=BATCH_SIZE,
        accumulation_steps=1,
    )


def _begun(run: Run, inner: InnerSettings) -> _Progress:
    """The router where an earlier worker stopped, or at the start."""
    config = run.config
    params = token_router.fresh(run.base_parts(), config.model.d_model, config.num_paths)
    state = fresh_state(jax.tree.map(jnp.array, params), make_optimizer(inner))
    kept = BestRouter(params, np.asarray(math.inf, np.float32), np.asarray(0, np.int32))
    partial = run.ledger.facts.partial_snapshot("", 0, 0)
    if partial is None:
        return _Progress(state, kept)
    state, kept = load_snapshot(run.objects, partial.receipt, (state, kept))
    return _Progress(jax.device_put(state), kept, partial.losses, partial.seconds)


def _snapshot(run: Run, claim: Claim, progress: _Progress, seconds: float) -> PartialSnapshot:
    """A partial snapshot, from which the next worker goes on. `seconds` is this worker's time."""
    name = run.layout.snapshot("reroute", 0, 0, claim.attempt)
    tree = jax.device_get(progress.state), progress.kept
    scores = run.ledger.facts.scores(MODULAR, run.plan.arm(MODULAR).phases)
    return PartialSnapshot(
        receipt=save_snapshot(run.objects, name, tree),
        step=progress.taken,
        batches=scores[0].digest,
        losses=progress.losses,
        seconds=progress.seconds + seconds,
    )


def _batches(
    rows: _Rows, learned: np.ndarray, size: int, random: np.random.Generator
) -> Iterator[dict[str, np.ndarray]]:
    """Without end: all documents in one order after another."""
    queue = np.zeros(0, np.int64)
    while True:
        while len(queue) < size:
            queue = np.append(queue, random.permutation(learned))
        now, queue = np.split(queue, [size])
        yield rows.batch(now)


def _rows(run: Run, scores: Callable[[str], Iterator[np.ndarray]]) -> _Rows:
    documents = documents_for_router(run)
    tokens, lengths = first_tokens(run.corpus, documents, run.config.data.length)
    target_NT = token_router.targets(scores("router_values"), lengths, run.config.reroute.window)
    index_T = np.arange(tokens.shape[1])
    # The router picks paths from the last token of the prefix on.
    is_routed_T = index_T >= run.config.data.prefix_tokens - 1
    return _Rows(tokens, target_NT, is_routed_T & (index_T + 1 < lengths[:, None]))


def _checked(
    progress: _Progress,
    measure: Callable[..., Any],
    rows: _Rows,
    held_out: np.ndarray,
    size: int,
) -> _Progress:
    """Keeps the router of now if its hold-out loss is the lowest so far."""
    params, taken = progress.state.parts, progress.taken
    loss = _hold_out_loss(measure, params, rows, held_out, size)
    if math.isnan(loss):
        raise RouterDiverged(step=taken, loss=loss)
    if not loss < progress.kept.loss:
        return progress
    # Copied, since the next step takes over these buffers.
    kept = BestRouter(
        jax.tree.map(np.array, params), np.asarray(loss, np.float32), np.asarray(taken, np.int32)
    )
    return progress._replace(kept=kept)


def _hold_out_loss(
    measure: Callable[..., Any], params: Any, rows: _Rows, held_out: np.ndarray, size: int
) -> float:
    """Mean nats per target of the documents held out. Infinite if they have no targets."""
    nats, count = 0.0, 0
    for start in range(0, len(held_out), size):
        batch = rows.batch(np.resize(held_out[start : start + size], size))
        batch["is_target"] = batch["is_target"] & (np.arange(size) < len(held_out) - start)[:, None]
        batch_nats, batch_count = jax.device_get(measure(params, batch))
        nats, count = nats + float(batch_nats), count + int(batch_count)
    return nats / count if count else math.inf
