"""Log-likelihoods of a prompt's first tokens under paths, for `routing.rule` = "likelihood".

A path of the shortlist that is not in memory is read; modules that it shares with others are not
read again. Prefills of a few tokens, one path after the other: the engine's cache keeps the paths.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.model.cache import empty_cache
from dipaco.model.config import ModelConfig
from dipaco.model.inference import extend, logits
from dipaco.serving.errors import NoRoomForPath
from dipaco.serving.path_cache import Modules, Parts

ROOM_SECONDS = 60.0  # that a prompt waits while all paths in memory are in use
POLL_SECONDS = 0.005

Pin = Callable[[Modules], AbstractContextManager[Parts]]  # as `PathCache.pin`


class PrefixScorer:
    """Scores prefixes under any path. Any thread may call it.

    Args:
      config: sizes of a path.
      prefix_tokens: the most tokens of a prefix; shorter ones are padded for the one program.
      pin: keeps a path in memory.
    """

    def __init__(self, config: ModelConfig, prefix_tokens: int, pin: Pin):
        self._config, self._prefix_tokens, self._pin = config, prefix_tokens, pin

    def score(self, prefix: np.ndarray, modules: Modules) -> float:
        """Nats of all tokens of a prefix, int32 [tokens], but the first, given those before.

        Raises:
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: the path cannot be read.
          NoRoomForPath: for `ROOM_SECONDS`, every path in memory has been in use.
        """
        tokens_1T = np.zeros((1, self._prefix_tokens), np.int32)
        tokens_1T[0, : len(prefix)] = prefix
        with self._pinned(modules) as parts:
            value_T = np.asarray(_log_likelihoods(self._config, parts, tokens_1T), np.float64)
        return float(value_T[: len(prefix) - 1].sum())

    @contextlib.contextmanager
    def _pinned(self, modules: Modules) -> Generator[Parts]:
        until = time.monotonic() + ROOM_SECONDS
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    parts = stack.enter_context(self._pin(modules))
                    break
                except NoRoomForPath:
                    if time.monotonic() > until:
                        raise
                    time.sleep(POLL_SECONDS)
            yield parts


@functools.partial(jax.jit, static_argnames=("config",))
def _log_likelihoods(config: ModelConfig, prepared: Parts, tokens_1T: jax.Array) -> jax.Array:
    """float32 [T - 1]: log p(token t + 1 | those before it); padding is seen by none before it."""
    cache = empty_cache(config, *tokens_1T.shape)
    starts_1 = cache.pop("length")
    x_DT, _ = extend(config, prepared, tokens_1T, starts_1, cache)
    logits_VT = logits(config, prepared, x_DT)[:, :-1]
    next_1T = tokens_1T[:, 1:]
    next_logit_T = jnp.take_along_axis(logits_VT, next_1T, axis=0)[0]
    return next_logit_T - jax.nn.logsumexp(logits_VT, axis=0)
