"""Prefill and step: a prompt goes in at once, then one token at a time comes out.

Compiled programs have fixed shapes, so prompts are padded to a *bucket* of tokens and caches hold
a bucket of slots: whatever their lengths, a few programs serve all prompts. Tokens are fetched a
little late, so the device is given its next step before the host has read the last one.
"""

import collections
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.errors import ContextTooLong
from dipaco.model.cache import Cache, empty_cache
from dipaco.model.config import ModelConfig
from dipaco.model.lm import forward
from dipaco.model.spec import Parts
from dipaco.serving.sampling import SamplingSettings, sample

SMALLEST_BUCKET = 32  # tokens; below that, padding costs less than another compilation
STEPS_AHEAD = 2  # steps given to the device before the oldest token is fetched


def generate(
    config: ModelConfig,
    parts: Parts,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: SamplingSettings,
    seed: int,
    slots: int | None = None,
) -> Iterator[int]:
    """The tokens that follow a prompt, each as soon as it is there.

    Ends after `max_new_tokens`, or earlier when prompt and continuation fill the context. The same
    seed gives the same tokens, whatever the number of slots.

    Args:
      config: sizes.
      parts: the parameters of one path.
      prompt_ids: at least one token.
      max_new_tokens: how many to make at most.
      sampling: how they are drawn.
      seed: of the draws.
      slots: tokens that the cache has room for; None = the bucket that fits.

    Raises:
      ContextTooLong: the prompt is empty or fills the context, or it does not fit the slots
        together with its continuation. Raised by the call itself, before a token is asked for.
    """
    room = config.max_length - len(prompt_ids)
    if not len(prompt_ids) or room < 1:
        remedy = "Give at least one token, and leave room for one more."
        _refuse(prompt_ids, "the context (`max_length`)", config.max_length, remedy)
    num_new = min(max_new_tokens, room)
    if num_new < 1:
        return iter(())
    fitting = bucket(len(prompt_ids) + num_new, config.max_length)
    slots = fitting if slots is None else slots
    if slots < max(len(prompt_ids) + num_new, bucket(len(prompt_ids), config.max_length)):
        _refuse(prompt_ids, f"the cache, with {num_new} to come,", slots, f"Give {fitting} slots.")
    return _stream(config, parts, prompt_ids, num_new, sampling, seed, slots)


def bucket(num_tokens: int, max_length: int) -> int:
    """The next power of two, at least `SMALLEST_BUCKET` and at most the context."""
    return min(max(SMALLEST_BUCKET, 1 << (num_tokens - 1).bit_length()), max_length)


def _stream(config, parts, prompt_ids, num_new, sampling, seed, slots):
    padded_BT = np.zeros((1, bucket(len(prompt_ids), config.max_length)), np.int32)
    padded_BT[0, : len(prompt_ids)] = prompt_ids
    lengths_B = np.array([len(prompt_ids)], np.int32)
    keys_B = jax.random.key(seed)[None]
    settings = _per_row(sampling)

    logits_BV, cache = prefill(config, parts, padded_BT, lengths_B, slots)
    token_B = draw(logits_BV, keys_B, lengths_B, settings)
    ahead = collections.deque([token_B])
    for _ in range(num_new - 1):
        token_B, cache = step(config, parts, token_B, cache, keys_B, settings)
        ahead.append(token_B)
        if len(ahead) > STEPS_AHEAD:
            yield int(ahead.popleft()[0])
    while ahead:
        yield int(ahead.popleft()[0])


@functools.partial(jax.jit, static_argnames=("config", "slots"))
def prefill(
    config: ModelConfig, parts: Parts, tokens_BT: jax.Array, lengths_B: jax.Array, slots: int
) -> tuple[jax.Array, Cache]:
    """Logits [B, V] after the last token of each prompt, and a cache that holds the prompts.

    `tokens_BT` is padded behind the `lengths_B` tokens of each row; `slots` is at least its T.
    """
    is_token_BT = jnp.arange(tokens_BT.shape[1])[None, :] < lengths_B[:, None]
    cache = empty_cache(config, tokens_BT.shape[0], slots)
    logits_BTV, cache = forward(
        config, parts, tokens_BT, segments=is_token_BT.astype(jnp.int32), cache=cache
    )
    last_B11 = (lengths_B - 1)[:, None, None]
    return jnp.take_along_axis(logits_BTV, last_B11, axis=1)[:, 0], cache


# The cache is donated: the step writes into it, and the one that was given must not be used again.
@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("cache",))
def step(
    config: ModelConfig,
    parts: Parts,
    token_B: jax.Array,
    cache: Cache,
    keys_B: jax.Array,
    settings: Any,
) -> tuple[jax.Array, Cache]:
    """The token after `token_B` in each row, and the cache with `token_B` in it."""
    logits_BTV, cache = forward(config, parts, token_B[:, None], cache=cache)
    return draw(logits_BTV[:, 0], keys_B, cache["length"], settings), cache


@jax.jit
def draw(logits_BV: jax.Array, keys_B: jax.Array, lengths_B: jax.Array, settings: Any) -> jax.Array:
    """A token for each row, int32 [B].

    The key is a row's own, folded with its length: a row draws the same alone and in company.
    """
    keys_B = jax.vmap(jax.random.fold_in)(keys_B, lengths_B)
    return jax.vmap(sample)(logits_BV, keys_B, *settings)


def _per_row(sampling: SamplingSettings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The settings of one row, as the arrays [B] that `step` takes."""
    return (
        np.array([sampling.temperature], np.float32),
        np.array([sampling.top_k], np.int32),
        np.array([sampling.top_p], np.float32),
    )


def _refuse(prompt_ids, where, limit, remedy):
    raise ContextTooLong(num_tokens=len(prompt_ids), where=where, limit=limit, remedy=remedy)
