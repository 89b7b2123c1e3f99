"""Which token follows, given its logits: greedy, temperature, top-k, top-p.

The settings enter the compiled program as values, not as constants: another temperature does not
compile again, and each row of a batch may have its own.
"""

import dataclasses

import jax
import jax.numpy as jnp

from dipaco.errors import BadSampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How tokens are drawn; as it stands, the likeliest one each time."""

    temperature: float = 0.0  # logits are divided by it; 0 = greedy
    top_k: int = 0  # draw from the k likeliest only; 0 = from all
    top_p: float = 1.0  # draw from the fewest that have this probability together (1904.09751)

    def __post_init__(self):
        checks = {
            "temperature": (self.temperature >= 0, "0 (greedy) or more"),
            "top_k": (self.top_k >= 0, "0 (all tokens) or more"),
            "top_p": (0 < self.top_p <= 1, "more than 0 and at most 1"),
        }
        for field, (is_good, expected) in checks.items():
            if not is_good:
                raise BadSampling(field=field, value=getattr(self, field), expected=expected)


def sample(
    logits_V: jax.Array,
    key: jax.Array,
    temperature: jax.Array,
    top_k: jax.Array,
    top_p: jax.Array,
) -> jax.Array:
    """One token, int32. `temperature`, `top_k` and `top_p` are scalars, as in `SamplingSettings`.

    As in `transformers`, top-k looks at the tempered logits, and top-p at what top-k left.
    """

    def draw():
        tempered_V = logits_V / temperature
        return jax.random.categorical(key, _keep_likely(tempered_V, top_k, top_p))

    def likeliest():
        return jnp.argmax(logits_V)

    return jax.lax.cond(temperature > 0, draw, likeliest).astype(jnp.int32)


def _keep_likely(logits_V, top_k, top_p):
    """The logits, with -inf for the tokens that top-k or top-p leaves out. Ties stay together."""
    descending_V = jnp.sort(logits_V, descending=True)
    rank_V = jnp.arange(logits_V.shape[0])
    descending_V = jnp.where((top_k == 0) | (rank_V < top_k), descending_V, -jnp.inf)
    probability_V = jax.nn.softmax(descending_V)
    before_V = jnp.cumsum(probability_V) - probability_V
    # The first token always stays, and whatever begins before the mass of top_p is reached.
    is_kept_V = (before_V < top_p) & (descending_V > -jnp.inf)
    least = jnp.min(jnp.where(is_kept_V, descending_V, jnp.inf))
    return jnp.where(logits_V >= least, logits_V, -jnp.inf)
