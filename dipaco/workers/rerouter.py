"""`reroute`: the router for every few tokens is trained, and the last release evaluated with it.

DiPaCo (arXiv 2403.10616) section 2.4. What every path says of every token, of the router's
documents and of those that are validated on, was kept when the last release was scored. Scores of
one path are in memory at a time.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.config import MODULAR
from dipaco.control.ledger import Partway
from dipaco.control.tasks import Claim, Fact, StageDone
from dipaco.data.first_tokens import first_tokens
from dipaco.evaluation.rerouting import path_of_tokens, rerouted
from dipaco.inner.optimizer import adamw, learning_rates
from dipaco.inner.phase import run_phase
from dipaco.inner.state import fresh as fresh_state
from dipaco.inner.step import make_step
from dipaco.model.lm import hidden_states
from dipaco.routing import within
from dipaco.runs.run import Run
from dipaco.store.snapshots import load_snapshot, save_snapshot
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.evaluator import validation
from dipaco.workers.trainer import StoppedPartway

OnStep = Callable[[float, int], None]  # (loss, tokens of the step)


def reroute(
    run: Run, claim: Claim, on_step: OnStep, should_stop: Callable[[], bool] = lambda: False
) -> list[Fact]:
    """Trains the router and evaluates it with each W.

    Raises:
      StoppedPartway: `should_stop` said so.
      Diverged: the router's loss is no number.
    """
    started = time.monotonic()
    config, arm = run.config, run.plan.arm(MODULAR)
    scores = functools.partial(_of_each_path, run, arm.phases)
    params, seconds = _trained(run, claim, scores, on_step, should_stop)

    documents, path_N = validation(run, MODULAR, arm.phases)
    tokens, lengths = first_tokens(run.tokens_of(documents), documents, config.data.length)
    choice_NT = _choices(run, params, tokens)
    prefix_tokens = config.data.prefix_tokens
    rows = []
    for every in (*config.reroute.every, None):
        path_NT = path_of_tokens(path_N, choice_NT, every or config.data.length, prefix_tokens)
        result = rerouted(scores("values"), path_NT, lengths, prefix_tokens)
        rows.append({"every": every, **result._asdict()})
    return [
        StageDone(
            stage="reroute",
            artifacts={"within_router": save_tree(run.objects, "routers", params)},
            summary={"rows": rows, "release": arm.phases},
            seconds=seconds + time.monotonic() - started,
        )
    ]


def _of_each_path(run: Run, phase: int, name: str) -> Iterator[np.ndarray]:
    """What was kept of every path of the last release, one after the other."""
    for receipt in run.ledger.scores(MODULAR, phase):
        yield load_tree(run.objects, receipt)[name]


def _hidden_of(run: Run) -> within.HiddenOf:
    return lambda model, tokens_BT: hidden_states(run.config.model, model, tokens_BT)


def _trained(
    run: Run,
    claim: Claim,
    scores: Callable[[str], Iterator[np.ndarray]],
    on_step: OnStep,
    should_stop: Callable[[], bool],
) -> tuple[dict[str, Any], float]:
    """Fine-tunes the base model on the router's documents, with AdamW as the paths. Also the
    seconds that somebody else took for the steps before these.
    """
    started = time.monotonic()
    config, settings = run.config, run.config.reroute
    documents = run.corpus.documents("router")
    tokens, lengths = first_tokens(run.corpus, documents, config.data.length)
    target_NT = within.targets(scores("router_values"), lengths, settings.window)
    index_T = np.arange(tokens.shape[1])
    # From the last token of the prefix on: before it, nobody is asked.
    is_asked_NT = (index_T >= config.data.prefix_tokens - 1) & (index_T + 1 < lengths[:, None])
    inner = dataclasses.replace(
        config.inner,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.steps // 20,
        batch_size=settings.batch_size,
        accumulation_steps=1,
    )
    params = within.fresh(run.base_parts(), config.model.d_model, config.num_paths)
    state = fresh_state(jax.tree.map(jnp.array, params), adamw(inner))
    taken, losses, seconds = 0, (), 0.0
    if partway := run.ledger.partway("", 0, 0):
        state = jax.device_put(load_snapshot(run.objects, partway.receipt, state))
        taken, losses, seconds = partway.step, partway.losses, partway.seconds
    random = np.random.default_rng(run.seed_for("reroute"))

    def batches() -> Iterator[dict[str, np.ndarray]]:
        queue = np.zeros(0, np.int64)
        while True:
            while len(queue) < settings.batch_size:
                queue = np.append(queue, random.permutation(len(documents)))
            rows, queue = np.split(queue, [settings.batch_size])
            batch = {"tokens": tokens, "targets": target_NT, "is_target": is_asked_NT}
            yield {name: values[rows] for name, values in batch.items()}

    step: Any = make_step(functools.partial(within.loss, _hidden_of(run)), inner)
    result = run_phase(
        state,
        itertools.islice(batches(), taken, None),
        learning_rates(inner, settings.steps, taken, settings.steps - taken),
        step,
        on_step=lambda _, loss: on_step(loss, settings.batch_size * config.data.length),
        should_stop=should_stop,
    )
    losses = (*losses, *result.losses.tolist())
    if len(losses) < settings.steps:
        name = run.layout.snapshot("reroute", 0, 0, claim.attempt)
        raise StoppedPartway(
            Partway(
                receipt=save_snapshot(run.objects, name, jax.device_get(result.state)),
                step=len(losses),
                batches=run.ledger.scores(MODULAR, run.plan.arm(MODULAR).phases)[0].digest,
                losses=losses,
                seconds=seconds + time.monotonic() - started,
            )
        )
    return jax.device_get(result.state.parts), seconds


def _choices(run: Run, params: Any, tokens_NT: np.ndarray) -> np.ndarray:
    """Whom the router would have go on after each token: int32 [N, T]."""

    @jax.jit
    def choose(params, tokens_BT):
        return jnp.argmax(within.path_logits(_hidden_of(run), params, tokens_BT), axis=-1)

    size, params = run.config.evaluation.batch_size, jax.device_put(params)
    choices = []
    for start in range(0, len(tokens_NT), size):
        rows = tokens_NT[start : start + size]
        padded = np.zeros((size, tokens_NT.shape[1]), np.int32)
        padded[: len(rows)] = rows
        choices.append(np.asarray(choose(params, padded), np.int32)[: len(rows)])
    return np.concatenate(choices)
