"""One inner step: gradients of a batch, worked through in pieces if asked, then its optimiser.

The same code runs on one device and on many: where the state and the batch were put decides, and
XLA follows.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dipaco.inner.absent import freeze_absent, rows_of
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.state import PathState
from dipaco.model.config import ModelConfig
from dipaco.model.lm import training_loss
from dipaco.model.loss import LogitsLoss, next_token_loss

# `tokens`, `segments`, `positions`, each int32 [B, T]. `absent.PRESENT` too if rows are frozen.
Batch = Mapping[str, Any]
LossFn = Callable[
    [Any, Batch], tuple[jax.Array, jax.Array]
]  # parts, batch -> (summed loss, targets)


class StepMetrics(NamedTuple):
    """Metrics of one step: scalars that are still on the device."""

    loss: jax.Array  # mean negative log-likelihood per target, nats
    gradient_norm: jax.Array  # before clipping
    targets: jax.Array  # predicted tokens in the batch


def path_loss(
    model: ModelConfig,
    settings: InnerSettings,
    rows_sharding: jax.sharding.NamedSharding | None = None,
    rule: LogitsLoss | None = None,
) -> LossFn:
    """The training loss of every path, with arguments as in `training_loss`. A user's `rule` takes
    the place of the negative log-likelihood.
    """

    def loss(parts: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return training_loss(
            model,
            parts,
            batch["tokens"],
            batch["segments"],
            batch["positions"],
            rematerialise=settings.rematerialise,
            loss_chunks=settings.loss_chunks,
            rows_sharding=rows_sharding,
            rule=rule or next_token_loss,
        )

    return loss


def make_step(
    loss_fn: LossFn, settings: InnerSettings, state_shardings: PathState | None = None
) -> Callable[[PathState, Batch, jax.Array], tuple[PathState, StepMetrics]]:
    """Compiles `step(state, batch, learning_rate) -> (state, metrics)`. The state passed in is
    donated.

    With `accumulation_steps` = A the batch is cut into A equal pieces whose summed losses and
    gradients are added. The result equals the whole batch's up to rounding, and takes the memory of
    one piece. `state_shardings` are the places of the old state on a mesh, and of the new one.
    """
    optimizer, mean_gradient = make_optimizer(settings), gradient_function(loss_fn, settings)

    def step(state: PathState, batch: Batch, learning_rate: jax.Array):
        gradient, metrics = mean_gradient(state.parts, batch)
        freeze = functools.partial(freeze_absent, batch=batch)
        return descend(optimizer, state, gradient, learning_rate, freeze), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(state_shardings, None))


def gradient_function(
    loss_fn: LossFn, settings: InnerSettings
) -> Callable[[Any, Batch], tuple[Any, StepMetrics]]:
    """(parts, batch) -> (gradient of the mean loss per target, metrics). Not compiled."""
    pieces, gradient_of = settings.accumulation_steps, summed_gradient(loss_fn)

    def accumulated_gradient(parts, batch):
        if pieces == 1:
            return gradient_of(parts, batch)
        # Rows are dealt out in turn, so that each piece stays spread over all devices of the data
        # axis.
        dealt = jax.tree.map(
            lambda leaf: jnp.swapaxes(leaf.reshape(-1, pieces, *leaf.shape[1:]), 0, 1),
            rows_of(batch),
        )

        def add(total, piece):
            return jax.tree.map(jnp.add, total, gradient_of(parts, {**batch, **piece})), None

        zero = jax.tree.map(jnp.zeros_like, parts), jnp.zeros(()), jnp.zeros(())
        return jax.lax.scan(add, zero, dealt)[0]

    def mean_gradient(parts, batch):
        gradient, loss_sum, targets = accumulated_gradient(parts, batch)
        # A batch without any target (rows of one token) must not divide by zero.
        scale = 1.0 / jnp.maximum(targets, 1.0)
        gradient = jax.tree.map(lambda leaf: leaf * scale, gradient)
        gradient = freeze_absent(gradient, batch)
        return gradient, StepMetrics(loss_sum * scale, optax.tree.norm(gradient), targets)

    return mean_gradient


def make_gradient(
    loss_fn: LossFn,
) -> Callable[[Any, Batch], tuple[Any, jax.Array, jax.Array]]:
    """Compiles `gradient(parts, batch) -> (gradient of the summed loss, summed loss, targets)`:
    what one of several machines does for a step that they take together.
    """
    return jax.jit(summed_gradient(loss_fn))


def summed_gradient(loss_fn: LossFn) -> Callable[[Any, Batch], tuple[Any, jax.Array, jax.Array]]:
    def gradient(parts, batch):
        (loss_sum, targets), gradient = jax.value_and_grad(loss_fn, has_aux=True)(parts, batch)
        return gradient, loss_sum, targets

    return gradient


def make_update(
    settings: InnerSettings,
) -> Callable[[PathState, Any, jax.Array], PathState]:
    """Compiles `update(state, mean gradient per target, learning_rate) -> state`: the rest of that
    step. The state passed in stays as it was.
    """
    optimizer = make_optimizer(settings)
    return jax.jit(lambda state, gradient, rate: descend(optimizer, state, gradient, rate))


def descend(
    optimizer: optax.GradientTransformation,
    state: PathState,
    gradient: Any,
    rate: jax.Array,
    freeze: Callable[[Any], Any] = lambda updates: updates,
) -> PathState:
    direction, optimizer_state = optimizer.update(gradient, state.optimizer, state.parts)
    updates = freeze(jax.tree.map(lambda leaf: -rate * leaf, direction))
    parts = optax.apply_updates(state.parts, updates)
    return PathState(parts, optimizer_state, state.step + 1)
