"""Next-token losses of packed rows: what is a target, and how likely the model thinks it is.

Token t of a row is a target when token t-1 belongs to the same segment: the first token of a
document has nothing before it, and padding (segment 0) is none. Sums come apart from counts, so
that batches, micro-batches and devices add up exactly.
"""

import jax
import jax.numpy as jnp


def next_token_loss(
    logits_BTV: jax.Array, tokens_BT: jax.Array, segments_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Summed negative log-likelihood in nats, and the number of targets; both float32 scalars."""
    is_target_BT = _next_is_target(segments_BT)
    log_likelihood_BT = _next_log_likelihoods(logits_BTV, tokens_BT)
    total = -jnp.sum(jnp.where(is_target_BT, log_likelihood_BT, 0.0))
    return total, jnp.sum(is_target_BT, dtype=jnp.float32)


def token_log_likelihoods(
    logits_BTV: jax.Array, tokens_BT: jax.Array, segments_BT: jax.Array
) -> jax.Array:
    """Entry t is log p(token t | what precedes it in its segment), in nats; 0 where no target.

    float32 [B, T].
    """
    log_likelihood_BT = _next_log_likelihoods(logits_BTV, tokens_BT)
    kept_BT = jnp.where(_next_is_target(segments_BT), log_likelihood_BT, 0.0)
    # What was said at t is about t+1; the last column is no target, so a 0 comes to the front.
    return jnp.roll(kept_BT, 1, axis=1)


def _next_log_likelihoods(logits_BTV, tokens_BT):
    """log p(token t+1) at t; the last column is about the row's first token and must be masked."""
    next_BT1 = jnp.roll(tokens_BT, -1, axis=1)[:, :, None]
    # A comparison and a sum rather than a gather: the gradient of a gather is a scatter, which is
    # slow.
    is_next_BTV = next_BT1 == jnp.arange(logits_BTV.shape[-1], dtype=tokens_BT.dtype)[None, None]
    next_logit_BT = jnp.sum(jnp.where(is_next_BTV, logits_BTV, 0.0), axis=-1)
    return next_logit_BT - jax.nn.logsumexp(logits_BTV, axis=-1)


def _next_is_target(segments_BT):
    """Whether token t+1 is a target, at t; false in the last column."""
    continues_BT = segments_BT[:, 1:] == segments_BT[:, :-1]
    is_target_BT = continues_BT & (segments_BT[:, 1:] != 0)
    return jnp.pad(is_target_BT, ((0, 0), (0, 1)))
