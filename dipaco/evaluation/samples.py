"""Prompts that one path continues, all of one length, a few at a time: to be read by people.

Not how a server decodes (`serving/decoding`): every prompt has the same length and takes the same
number of steps, so prompt and text are one program, which every path of a run uses. A draw depends
on the seed, the number of the prompt and the step, and on no other prompt.

Axes: N prompts, B of them at once, T tokens of a prompt, S steps, V tokens of the vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.model.cache import empty_cache
from dipaco.model.config import ModelConfig, block_names
from dipaco.model.inference import extend, logits, prepare
from dipaco.model.spec import Parts

ROWS_AT_ONCE = 4  # a step of four takes hardly longer than one of one


def continue_prompts(
    config: ModelConfig,
    parts: Parts,
    prompt_NT: np.ndarray,
    numbers: Sequence[int],
    *,
    steps: int,
    temperature: float,
    seed: int,
) -> np.ndarray:
    """The tokens that a path draws after each prompt. Tokens after an end token are to be left out.

    Args:
      parts: the parameters of one path, as trained. They must fit on one device.
      numbers: of the prompts, N. Draws of a prompt depend on its number alone.
      steps: tokens to make. Prompt and new tokens together are at most `config.max_length`.
      temperature: divides logits before a draw. 0 takes the likeliest token.

    Returns:
      int32 [N, S].
    """
    device = jax.local_devices()[0]
    prepared = jax.device_put(prepare(config, parts), device)
    made = [np.zeros((0, steps), np.int32)]
    for start in range(0, len(prompt_NT), ROWS_AT_ONCE):
        rows = np.arange(start, start + ROWS_AT_ONCE).clip(max=len(prompt_NT) - 1)
        number_B = np.asarray(numbers, np.uint32)[rows]
        token_BS = _continue(
            config,
            steps,
            temperature > 0,
            prepared,
            jax.device_put(prompt_NT[rows], device),
            jax.device_put(number_B, device),
            np.uint32(seed),
            np.float32(temperature or 1),
        )
        made.append(np.asarray(token_BS)[: len(prompt_NT) - start])
    return np.concatenate(made)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _continue(
    config: ModelConfig,
    steps: int,
    is_drawn: bool,
    prepared: Any,
    prompt_BT: jax.Array,
    number_B: jax.Array,
    seed: jax.Array,
    temperature: jax.Array,
) -> jax.Array:
    batch, length = prompt_BT.shape
    keys_B = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(number_B)
    cache = empty_cache(config, batch, length + steps)
    blocks = {name: cache[name] for name in block_names(config)}
    start_B = jnp.zeros(batch, jnp.int32)
    x_DN, blocks = extend(config, prepared, prompt_BT, start_B, blocks)
    last_DB = x_DN.reshape(-1, batch, length)[:, :, -1]

    def step(carry, number):
        last_DB, blocks = carry
        logit_BV = logits(config, prepared, last_DB)
        if is_drawn:
            key_B = jax.vmap(lambda key: jax.random.fold_in(key, number))(keys_B)
            noise_BV = jax.vmap(lambda key: jax.random.gumbel(key, logit_BV.shape[1:]))(key_B)
            logit_BV = logit_BV / temperature + noise_BV
        token_B = jnp.argmax(logit_BV, axis=1).astype(jnp.int32)
        x_DN, blocks = extend(config, prepared, token_B[:, None], start_B + length + number, blocks)
        return (x_DN, blocks), token_B

    _, token_SB = jax.lax.scan(step, (last_DB, blocks), jnp.arange(steps, dtype=jnp.int32))
    return token_SB.T
