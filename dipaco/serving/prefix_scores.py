"""Log-likelihoods of a prompt's first tokens under paths, for `routing.rule` = "likelihood".

These are prefills of a few tokens, one path after the other. A path of the shortlist that is not in
memory is read by the cache that keeps the paths. Modules that it shares with others are not read
again.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.control.planning.release import Release
from dipaco.model.cache import empty_cache
from dipaco.model.config import ModelConfig
from dipaco.model.inference import extend, logits
from dipaco.routing.config import RoutingConfig
from dipaco.routing.likelihood import likeliest, prefix_scores
from dipaco.runs.routing import reading_path
from dipaco.serving.path_cache import Modules, Parts, PathCache


def score_prefix(
    config: ModelConfig, most_tokens: int, cache: PathCache, prefix: np.ndarray, modules: Modules
) -> float:
    """Nats of all tokens of a prefix, int32 [tokens], but the first, given those before. Raises as
    `PathCache.pin`.
    """
    tokens_1T = np.zeros((1, most_tokens), np.int32)
    tokens_1T[0, : len(prefix)] = prefix
    with cache.pin(modules) as parts:
        value_T = np.asarray(_log_likelihoods(config, parts, tokens_1T), np.float64)
    return float(value_T[: len(prefix) - 1].sum())


class PathComparison:
    """Paths of a shortlist. Each reads a prefix, once, before the best takes it. Any thread may
    call it.

    Args:
      score: `score_prefix` of a prefix and modules.
      routing: the prior of the router before it.
      prefix: int32 [tokens].
      shortlist_n: the paths, the best by the router first: int [n].
      on_scored: called with the seconds of each score.
    """

    def __init__(
        self,
        score: Callable[[np.ndarray, Modules], float],
        routing: RoutingConfig,
        release: Release,
        prefix: np.ndarray,
        shortlist_n: np.ndarray,
        num_paths: int,
        on_scored: Callable[[float], object],
    ):
        self._score, self._routing, self.release = score, routing, release
        self._prefix, self._shortlist_n, self._num_paths = prefix, shortlist_n, num_paths
        self._on_scored = on_scored
        self._nats: dict[int, float] = {}
        self._lock = threading.Lock()  # held by the one that scores

    @property
    def missing(self) -> Sequence[int]:
        """The paths that have not scored the prefix, the best by the router first."""
        return [path for path in self._shortlist_n.tolist() if path not in self._nats]

    def score(self, path: int) -> None:
        """Scores the prefix under a path. Raises `NotAllPaths`: it cannot be read."""
        started = time.monotonic()
        with self._lock, reading_path(self.release, path):
            if path in self._nats:
                return
            self._nats[path] = self._score(self._prefix, self.release.modules_of(path))
        self._on_scored(time.monotonic() - started)

    def result(self) -> tuple[int, np.ndarray]:
        """The likeliest path, and the score of every path, [P], once nothing is missing."""
        prefix_1P, shortlist_1n = np.zeros((1, self._num_paths)), self._shortlist_n[None]
        for path, nats in list(self._nats.items()):
            prefix_1P[0, path] = nats
        score_1P = prefix_scores(prefix_1P, shortlist_1n, self._routing.prior_nats)
        return int(likeliest(score_1P, shortlist_1n)[0]), score_1P[0]


@functools.partial(jax.jit, static_argnames=("config",))
def _log_likelihoods(config: ModelConfig, prepared: Parts, tokens_1T: jax.Array) -> jax.Array:
    """float32 [T - 1]: log p(token t + 1 | tokens up to t). No real token sees the padding."""
    cache = empty_cache(config, *tokens_1T.shape)
    starts_1 = cache.pop("length")
    x_DT, _ = extend(config, prepared, tokens_1T, starts_1, cache)
    logits_TV = logits(config, prepared, x_DT)[:-1]
    next_T1 = tokens_1T[0, 1:, None]
    next_logit_T = jnp.take_along_axis(logits_TV, next_T1, axis=1)[:, 0]
    return next_logit_T - jax.nn.logsumexp(logits_TV, axis=1)
