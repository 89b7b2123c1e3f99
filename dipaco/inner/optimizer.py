"""AdamW as in DiPaCo section 4: clipping, decoupled weight decay, warm-up and cosine.

The learning rate is an argument of each step, not part of the optimiser. So the base model, the
paths and the dense baselines, which differ only in the length of their schedule, share one compiled
program.
"""

import jax
import numpy as np
import optax

from dipaco.errors import BadSetting
from dipaco.inner.config import InnerSettings

EPSILON = 1e-8  # added to AdamW's denominator, against division by zero
BLOCK = 256  # learning rates computed in one call


def adamw(settings: InnerSettings) -> optax.GradientTransformation:
    """Turns gradients into *directions*. A step is `parameters - learning_rate * direction`."""
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), *_after_clipping(settings))


def adamw_of_clipped(settings: InnerSettings) -> optax.GradientTransformation:
    """`adamw` for gradients that are already clipped."""
    return optax.chain(*_after_clipping(settings))


def _after_clipping(settings: InnerSettings) -> tuple[optax.GradientTransformation, ...]:
    return (
        optax.scale_by_adam(b1=settings.beta1, b2=settings.beta2, eps=EPSILON),
        optax.add_decayed_weights(
            settings.weight_decay,
            mask=lambda parts: jax.tree.map(lambda leaf: leaf.ndim > 1, parts),
        ),
    )


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
