"""AdamW as in DiPaCo section 4, or Muon on the blocks' matrices and AdamW on the rest: clipping,
decoupled weight decay, warm-up and cosine.

The learning rate is an argument of each step, not part of the optimiser. So the base model, the
paths and the dense baselines, which differ only in the length of their schedule, share one compiled
program.
"""

import math
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
import optax

from dipaco.errors import BadSetting
from dipaco.inner.config import InnerSettings
from dipaco.model.config import is_block

EPSILON = 1e-8  # added to AdamW's denominator, against division by zero
MUON_MOMENTUM = 0.95  # share of Muon's sum of gradients that a step keeps
# Root mean square of the values of Muon's directions, about AdamW's. One learning rate then
# serves both (Moonlight, arXiv 2502.16982, section 2.2).
MUON_SIZE = 0.2
BLOCK = 256  # learning rates computed in one call


def make_optimizer(
    settings: InnerSettings, *, is_clipped: bool = False
) -> optax.GradientTransformation:
    """Turns gradients into *directions*. A step is `parameters - learning_rate * direction`. Parts
    are `part name -> parameters`, whole models or modules.

    Args:
      is_clipped: True for gradients that are clipped before.
    """
    clip = () if is_clipped else (optax.clip_by_global_norm(settings.clip_norm),)
    adam = optax.scale_by_adam(b1=settings.beta1, b2=settings.beta2, eps=EPSILON)
    of_kinds: dict[Hashable, optax.GradientTransformation] = {"adamw": adam, "muon": _muon()}
    decay = optax.add_decayed_weights(
        settings.weight_decay,
        mask=lambda parts: jax.tree.map(lambda leaf: leaf.ndim > 1, parts),
    )
    is_muon = settings.optimizer == "muon"
    return optax.chain(*clip, optax.partition(of_kinds, _kinds) if is_muon else adam, decay)


def _muon() -> optax.GradientTransformation:
    """A Nesterov sum of gradients whose singular values are then brought close to one (Jordan et
    al., 2024). Beside the parameters it keeps that sum alone.
    """
    # Without momentum of its own, optax's transformation is five steps of Newton and Schulz.
    newton_schulz = optax.contrib.scale_by_muon(
        beta=0.0,
        nesterov=False,
        weight_dimension_numbers=lambda sums: jax.tree.map(
            lambda _: optax.contrib.MuonDimensionNumbers(), sums
        ),
    )

    def orthogonal(sums: Any, _: Any = None) -> Any:
        directions, _ = newton_schulz.update(sums, newton_schulz.init(sums))
        return jax.tree.map(lambda leaf: MUON_SIZE * math.sqrt(max(leaf.shape)) * leaf, directions)

    return optax.chain(optax.trace(MUON_MOMENTUM, nesterov=True), optax.stateless(orthogonal))


def _kinds(parts: Any) -> Any:
    """`muon` for the matrices of blocks, `adamw` for vectors, embedding and head."""

    def kind(path: Any, leaf: Any) -> str:
        in_block = any(is_block(getattr(key, "key", "")) for key in path)
        return "muon" if in_block and leaf.ndim == 2 else "adamw"

    return jax.tree_util.tree_map_with_path(kind, parts)


def learning_rates(settings: InnerSettings, total_steps: int, start: int, count: int) -> np.ndarray:
    """Rates of the inner steps `start`, ..., `start + count - 1` of a schedule of `total_steps`.

    Step s uses the schedule's value at s + 1, so that the first step is not taken at rate zero.

    Returns:
      float32 [count].

    Raises:
      BadSetting: the warm-up is not shorter than the schedule.
    """
    if count == 0:
        return np.zeros(0, np.float32)
    if settings.warmup_steps >= total_steps:
        raise BadSetting(
            name="inner.warmup_steps",
            value=settings.warmup_steps,
            expected=f"fewer than the {total_steps} steps of this path",
            hint=" Train longer, or warm up for fewer steps.",
        )
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=settings.learning_rate,
        warmup_steps=settings.warmup_steps,
        decay_steps=total_steps,
        end_value=settings.learning_rate * settings.end_fraction,
    )
    # Always in blocks of one size: the last bit of a rate depends on how many are computed in one
    # call, and a preempted phase may resume with a single step left.
    blocks = range(start // BLOCK, (start + count - 1) // BLOCK + 1)
    steps = [np.arange(block * BLOCK, (block + 1) * BLOCK) + 1 for block in blocks]
    rates = np.concatenate([np.asarray(jax.vmap(schedule)(each), np.float32) for each in steps])
    return rates[start % BLOCK :][:count]
