"""Next-token losses of packed rows: which tokens are targets, and their log-likelihoods.

Token t of a row is a target if token t-1 belongs to the same segment: the first token of a document
has nothing before it, and padding (segment 0) is never a target. Sums and counts are returned
separately, so that batches, micro-batches and devices add up exactly.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# logits [B, T, V], tokens [B, T], segments [B, T] -> (summed loss, number of targets), float32
# scalars, as `next_token_loss`: what a path is trained to make small.
LogitsLoss = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def next_token_loss(
    logits_BTV: jax.Array, tokens_BT: jax.Array, segments_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Summed negative log-likelihood in nats, and the number of targets, both float32 scalars."""
    is_target_BT = next_is_target(segments_BT)
    total = summed_loss(logits_BTV, next_tokens(tokens_BT), is_target_BT)
    return total, jnp.sum(is_target_BT, dtype=jnp.float32)


@jax.custom_vjp
def summed_loss(logits_BTV: jax.Array, next_BT: jax.Array, is_target_BT: jax.Array) -> jax.Array:
    """Sum of -log p(next) over the targets, nats.

    The gradient is written by hand, softmax minus one at the next token: XLA:CPU's keeps two more
    arrays of the size of the logits.
    """
    return _summed_loss_forward(logits_BTV, next_BT, is_target_BT)[0]


def _summed_loss_forward(logits_BTV, next_BT, is_target_BT):
    normaliser_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    next_logit_BT = jnp.take_along_axis(logits_BTV, next_BT[:, :, None], axis=-1)[:, :, 0]
    total = jnp.sum(jnp.where(is_target_BT, normaliser_BT - next_logit_BT, 0.0))
    return total, (logits_BTV, normaliser_BT, next_BT, is_target_BT)


def _summed_loss_backward(saved, gradient):
    logits_BTV, normaliser_BT, next_BT, is_target_BT = saved
    vocabulary_V = jnp.arange(logits_BTV.shape[-1], dtype=next_BT.dtype)
    # A comparison, since a scatter is slow.
    is_next_BTV = next_BT[:, :, None] == vocabulary_V[None, None]
    probability_BTV = jnp.exp(logits_BTV - normaliser_BT[:, :, None])
    difference_BTV = jnp.where(is_next_BTV, probability_BTV - 1.0, probability_BTV)
    return jnp.where(is_target_BT, gradient, 0.0)[:, :, None] * difference_BTV, None, None


summed_loss.defvjp(_summed_loss_forward, _summed_loss_backward)


class LogitsPieces(NamedTuple):
    """How a chunk is cut for a TPU that keeps the logits of a piece and the head on its chip."""

    number: int  # equal lengths
    compute_dtype: str  # of the product that makes logits, and so of their gradient


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 5, 6))
def chunked_loss(
    logits_of: Callable[[Any, jax.Array], jax.Array],
    head: Any,
    x_BTD: jax.Array,
    next_BT: jax.Array,
    is_target_BT: jax.Array,
    num_chunks: int,
    pieces: LogitsPieces | None = None,
) -> jax.Array:
    """`summed_loss(logits_of(head, x), ...)` with the memory of one chunk's logits: rows are cut
    into `num_chunks` equal lengths, one after the other.

    Each chunk's gradient is computed while its logits are in memory, so that none is computed twice
    (Liger, arXiv 2410.10989). Sums over chunks differ from the whole in the last bits.

    In pieces no logits reach the device's memory, but for their gradient: the head's is one product
    for a chunk, as its sum would be read and written for each piece.
    """
    chunks = _cut((x_BTD, next_BT, is_target_BT), num_chunks)

    def add(total, chunk):
        x_BCD, *targets = chunk
        return total + summed_loss(logits_of(head, x_BCD), *targets), None

    return jax.lax.scan(add, jnp.zeros(()), chunks)[0]


def _chunked_loss_forward(logits_of, head, x_BTD, next_BT, is_target_BT, num_chunks, pieces):
    def whole(x_BCD, *targets):
        return jax.value_and_grad(
            lambda head, x_BCD: summed_loss(logits_of(head, x_BCD), *targets), argnums=(0, 1)
        )(head, x_BCD)

    def in_pieces(x_BCD, *targets):
        def of_piece(total, piece):
            x_BPD, *targets = piece
            logits_BPV, pull_back = jax.vjp(functools.partial(logits_of, head), x_BPD)
            loss, gradient_BPV = jax.value_and_grad(summed_loss)(logits_BPV, *targets)
            (of_x_BPD,) = pull_back(gradient_BPV)
            return total + loss, (gradient_BPV.astype(pieces.compute_dtype), of_x_BPD)

        cut = _cut((x_BCD, *targets), pieces.number)
        loss, (gradient, of_x) = jax.lax.scan(of_piece, jnp.zeros(()), cut)
        _, pull_back = jax.vjp(lambda head: logits_of(head, cut[0]), head)
        (of_head,) = pull_back(gradient.astype(jnp.float32))
        return loss, (of_head, _joined(of_x))

    def add(sums, chunk):
        loss, (of_head, of_x_BCD) = (in_pieces if pieces else whole)(*chunk)
        return jax.tree.map(jnp.add, sums, (loss, of_head)), of_x_BCD

    zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, head)
    chunks = _cut((x_BTD, next_BT, is_target_BT), num_chunks)
    (total, of_head), of_x = jax.lax.scan(add, zeros, chunks)
    return total, (of_head, _joined(of_x))


def _chunked_loss_backward(logits_of, num_chunks, pieces, saved, gradient):
    of_head, of_x_BTD = jax.tree.map(lambda leaf: gradient * leaf, saved)
    return of_head, of_x_BTD, None, None


chunked_loss.defvjp(_chunked_loss_forward, _chunked_loss_backward)


def _cut(leaves, num_chunks):
    """Leaves [B, T, ...] -> [num_chunks, B, T / num_chunks, ...]."""

    def cut(leaf):
        return jnp.swapaxes(leaf.reshape(leaf.shape[0], num_chunks, -1, *leaf.shape[2:]), 0, 1)

    return jax.tree.map(cut, leaves)


def _joined(leaf):
    """The inverse of `_cut` for one leaf."""
    return jnp.swapaxes(leaf, 0, 1).reshape(leaf.shape[1], -1, *leaf.shape[3:])


def next_tokens(tokens_BT: jax.Array) -> jax.Array:
    """Token t+1 at t. The last column is the row's first token, which is never a target."""
    return jnp.roll(tokens_BT, -1, axis=1)


def next_is_target(segments_BT: jax.Array) -> jax.Array:
    """True at t if token t+1 is a target. False in the last column."""
    continues_BT = segments_BT[:, 1:] == segments_BT[:, :-1]
    is_target_BT = continues_BT & (segments_BT[:, 1:] != 0)
    return jnp.pad(is_target_BT, ((0, 0), (0, 1)))


def token_log_likelihoods(
    logits_of: Callable[[Any, jax.Array], jax.Array],
    head: Any,
    x_BTD: jax.Array,
    tokens_BT: jax.Array,
    segments_BT: jax.Array,
    num_chunks: int = 1,
) -> jax.Array:
    """float32 [B, T]: log p(token t | its segment before t) in nats. 0 if t is not a target.

    Args:
      logits_of: (head, hidden states) -> logits.
      num_chunks: equal lengths that rows are cut into, with the memory of one's logits.
    """

    def of_chunk(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        x_BCD, next_BC = chunk
        logits_BCV = logits_of(head, x_BCD)
        next_logit_BC = jnp.take_along_axis(logits_BCV, next_BC[:, :, None], axis=-1)[:, :, 0]
        return next_logit_BC - jax.nn.logsumexp(logits_BCV, axis=-1)

    whole = x_BTD, next_tokens(tokens_BT)
    if num_chunks == 1:
        log_likelihood_BT = of_chunk(whole)
    else:
        chunks = jax.lax.map(of_chunk, _cut(whole, num_chunks))
        log_likelihood_BT = _joined(chunks)
    kept_BT = jnp.where(next_is_target(segments_BT), log_likelihood_BT, 0.0)
    # Entry t is about token t+1. The last column is no target, so a 0 comes to the front.
    return jnp.roll(kept_BT, 1, axis=1)
