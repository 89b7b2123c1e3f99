"""Path losses of one's own: the built-in one written out, equal bit for bit, and one with a z-loss.

    python configs/examples/own_path_loss.py
    PYTHONPATH=configs/examples dipaco worker --run runs/own_path_loss

The first line trains `toy` with the z-loss, in half a minute; by the second, any machine takes
part. Axes: B rows, T tokens, V words of the vocabulary.
"""

import jax
import jax.numpy as jnp

import dipaco
from dipaco.model.loss import next_is_target, next_tokens, summed_loss

WEIGHT = 1e-4  # PaLM (arXiv 2204.02311) section 5


def plain(logits_BTV, tokens_BT, segments_BT):
    """Summed negative log-likelihood in nats, and the number of targets."""
    is_target_BT = next_is_target(segments_BT)
    total = summed_loss(logits_BTV, next_tokens(tokens_BT), is_target_BT)
    return total, jnp.sum(is_target_BT, dtype=jnp.float32)


def with_z_loss(logits_BTV, tokens_BT, segments_BT):
    """That, and a penalty that keeps the log of the softmax's normaliser near zero."""
    total, targets = plain(logits_BTV, tokens_BT, segments_BT)
    log_z_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    penalty = jnp.sum(jnp.where(next_is_target(segments_BT), log_z_BT**2, 0.0))
    return total + WEIGHT * penalty, targets


if __name__ == "__main__":
    import own_path_loss  # a worker imports it by this name, and cannot import a script

    rules = dipaco.Rules(path_loss=own_path_loss.with_z_loss)
    print(dipaco.run("toy", "runs/own_path_loss", rules=rules).report)
