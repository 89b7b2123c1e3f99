"""Log-likelihoods of prompts' first tokens under paths, for `routing.rule` = "likelihood".

These are prefills of a few tokens, one path after the other, each for all prompts that wait for it.
A path of the shortlist that is not in memory is read by the cache that keeps the paths. Modules
that it shares with others are not read again.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.model.cache import empty_cache
from dipaco.model.config import ModelConfig
from dipaco.model.inference import extend, logits
from dipaco.routing.config import RoutingConfig
from dipaco.routing.likelihood import likeliest, prefix_scores
from dipaco.serving.path_cache import Parts


@dataclasses.dataclass(eq=False)
class PathComparison:
    """Paths of a shortlist. Each scores a prefix, once, before the best takes it."""

    routing: RoutingConfig  # has the prior of the router before it
    prefix: np.ndarray  # int32 [tokens]
    shortlist_n: np.ndarray  # int [n]: the paths, the best by the router first
    num_paths: int
    nats: dict[int, float] = dataclasses.field(
        default_factory=dict
    )  # of the paths that have scored

    @property
    def missing(self) -> Sequence[int]:
        """The paths that have not scored the prefix. In ascending order, so that prompts that came
        together ask for the same path at the same time.
        """
        return [path for path in sorted(self.shortlist_n.tolist()) if path not in self.nats]

    def result(self) -> tuple[int, np.ndarray]:
        """The likeliest path, and the score of every path, [P], once nothing is missing."""
        prefix_1P, shortlist_1n = np.zeros((1, self.num_paths)), self.shortlist_n[None]
        for path, nats in self.nats.items():
            prefix_1P[0, path] = nats
        score_1P = prefix_scores(prefix_1P, shortlist_1n, self.routing.prior_nats)
        return int(likeliest(score_1P, shortlist_1n)[0]), score_1P[0]


@functools.partial(jax.jit, static_argnames=("config",))
def log_likelihoods(config: ModelConfig, prepared: Parts, tokens_BT: jax.Array) -> jax.Array:
    """float32 [B, T - 1]: log p(token t + 1 | tokens up to t). No real token sees the padding."""
    cache = empty_cache(config, *tokens_BT.shape)
    starts_B = cache.pop("length")
    x_DN, _ = extend(config, prepared, tokens_BT, starts_B, cache)
    logits_BTV = logits(config, prepared, x_DN).reshape(*tokens_BT.shape, -1)[:, :-1]
    next_logit_BT1 = jnp.take_along_axis(logits_BTV, tokens_BT[:, 1:, None], axis=2)
    return next_logit_BT1[:, :, 0] - jax.nn.logsumexp(logits_BTV, axis=2)
