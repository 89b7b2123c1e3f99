"""Routing within a document: which path goes on after each token.

DiPaCo (arXiv 2403.10616) section 2.4. The document router sees a prefix only, and the best path of
a whole document is not the best of each piece. So a router is fine-tuned from the base model to
predict at *every* token which path is likeliest over the rest of the document (or a window of it).
It is used where a chunk of W tokens ends, so one router serves every W.

The room does not know the model: hidden states come in as a function of its parameters.

Axes: N documents, B of them at once, T tokens, D dimensions, P paths.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dipaco.routing.labels import best_paths

Params = Mapping[str, Any]  # `model`: of the base model, `head`: `weight` [D, P] and `bias` [P]
HiddenOf = Callable[[Any, jax.Array], jax.Array]  # (model, int32 [B, T]) -> [B, T, D]

BATCH_SIZE = 64  # documents in a step of its training
MOST_HELD_OUT = 1000


def learned_from(documents_N: np.ndarray, steps: int) -> np.ndarray:
    """Of the router's documents no more than its steps take and its hold-out has, from everywhere:
    each path scores every token of them.
    """
    return documents_N[:: -(-len(documents_N) // (steps * BATCH_SIZE + MOST_HELD_OUT)) or 1]


def continuation_sums(
    log_likelihood_NT: np.ndarray, lengths_N: np.ndarray, window: int | None = None
) -> np.ndarray:
    """Log-likelihood of what follows each token, under one path: float64 [N, T], nats.

    Args:
      log_likelihood_NT: log-likelihood of token t given the tokens before it.
      window: number of next tokens that count. None: all to the end.
    """
    num_tokens = log_likelihood_NT.shape[1]
    is_token_NT = np.arange(num_tokens) < lengths_N[:, None]
    values_NT = np.where(is_token_NT, log_likelihood_NT.astype(np.float64), 0.0)
    from_here_NT = np.cumsum(values_NT[:, ::-1], axis=1)[:, ::-1]
    padded_NT = np.pad(from_here_NT, ((0, 0), (0, num_tokens + 1)))
    after_NT = padded_NT[:, 1 : num_tokens + 1]
    if window is None or window >= num_tokens:
        return after_NT
    return after_NT - padded_NT[:, 1 + window : num_tokens + 1 + window]


def targets(
    log_likelihoods: Iterable[np.ndarray], lengths_N: np.ndarray, window: int | None = None
) -> np.ndarray:
    """The likeliest path for what follows each token: int32 [N, T].

    Args:
      log_likelihoods: [N, T] under each path, one after another. Two are in memory at a time.
      lengths_N, window: as in `continuation_sums`.
    """
    return best_paths(continuation_sums(path, lengths_N, window) for path in log_likelihoods)


def split(
    text_N: np.ndarray, hold_out: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Documents that train the router, and those held out: int64 [N], [M].

    Texts are held out whole, with all of their pieces. A share above 0 gives both at least one
    text, if there are two, and holds out at most `MOST_HELD_OUT` documents, or a text, since
    held-out documents are scored many times. 0 holds out nothing.

    Args:
      text_N: a number for the text of each document.
      random: draws the order in which texts are taken, up to the share.
    """
    texts, index_N, pieces = np.unique(text_N, return_inverse=True, return_counts=True)
    if not hold_out or len(texts) < 2:
        return np.arange(len(text_N)), np.zeros(0, np.int64)
    count = min(max(round(hold_out * len(text_N)), 1), len(text_N) - 1, MOST_HELD_OUT)
    order = random.permutation(len(texts))
    held, room = [], count
    for text in order:
        if pieces[text] <= room:
            held.append(text)
            room -= pieces[text]
    is_held_N = np.isin(index_N, held or [order[pieces[order].argmin()]])
    return np.flatnonzero(~is_held_N), np.flatnonzero(is_held_N)


def fresh(model: Any, num_dims: int, num_paths: int) -> dict[str, Any]:
    """The router before training: the base model, and a head of zeros."""
    head = {
        "weight": np.zeros((num_dims, num_paths), np.float32),
        "bias": np.zeros(num_paths, np.float32),
    }
    return {"model": model, "head": head}


def path_logits(hidden_of: HiddenOf, params: Params, tokens_BT: jax.Array) -> jax.Array:
    """Scores of the paths after each token, float32 [B, T, P]. The highest wins.

    Hidden states are normalised to one length first: a few of their dimensions are far larger than
    the rest.
    """
    x_BTD = hidden_of(params["model"], tokens_BT).astype(jnp.float32)
    mean_square_BT1 = jnp.mean(jnp.square(x_BTD), axis=-1, keepdims=True)
    x_BTD = x_BTD * jax.lax.rsqrt(mean_square_BT1 + 1e-6)
    return x_BTD @ params["head"]["weight"] + params["head"]["bias"][None, None, :]


def loss(
    hidden_of: HiddenOf, params: Params, batch: Mapping[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Summed cross-entropy with the targets, in nats, and their number, both float32 scalars.

    Args:
      batch: `tokens`, `targets`, and `is_target`, which is true if tokens are left to predict. All
        [B, T].
    """
    logits_BTP = path_logits(hidden_of, params, batch["tokens"])
    entropy_BT = optax.softmax_cross_entropy_with_integer_labels(logits_BTP, batch["targets"])
    is_target_BT = batch["is_target"].astype(jnp.float32)
    return jnp.sum(entropy_BT * is_target_BT), jnp.sum(is_target_BT)
