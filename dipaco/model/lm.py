"""The forward pass: one Flax module per part, applied in turn from parts to logits.

Axis letters are in this room's `__init__`. Nothing outside this room sees Flax: the parts come in
as a mapping of plain nested dicts.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from dipaco.model.attention import Attention, Seen
from dipaco.model.cache import Cache, num_slots
from dipaco.model.config import ModelConfig, block_names
from dipaco.model.kernels import KEPT, attention_kernel, result_dtype, stays_on_chip
from dipaco.model.layers import FeedForward, declare, dense, rms_norm, rotary_table
from dipaco.model.loss import (
    LogitsLoss,
    LogitsPieces,
    chunked_loss,
    next_is_target,
    next_token_loss,
    next_tokens,
    token_log_likelihoods,
)
from dipaco.model.spec import Parts, Tree, describe

PIECE_BYTES = 512 << 20  # Logits of so many bytes are scored at once.
PIECE_TOKENS = 2048  # The values of a block for so many tokens stay on a TPU's chip.
LOGITS_TOKENS = 128  # The logits of so many tokens stay there beside the head.


def forward(
    config: ModelConfig,
    parts: Parts,
    tokens_BT: jax.Array,
    *,
    segments: jax.Array | None = None,
    positions: jax.Array | None = None,
    cache: Cache | None = None,
) -> tuple[jax.Array, Any]:
    """Logits of the next token at every position.

    Args:
      config: static under `jax.jit`.
      parts: the parameters of one path.
      tokens_BT: int32 token ids.
      segments: int32 [B, T], the piece of the row that each token belongs to. A token attends
        within its piece only, and 0 is padding. None: each row is one piece.
      positions: int32 [B, T], position of each token in its piece. None: counted along the row,
        with the same logits up to rounding, since rotary attention sees distances only.
      cache: earlier tokens, one document per row, which `tokens_BT` continues. `segments` then only
        tells tokens (not 0) from padding at the end of a row, and `positions` must be None. There
        must be a slot for each column of `tokens_BT`, padding included.

    Returns:
      float32 logits [B, T, V], and the cache with the tokens added (None when none was given).
    """
    x_BTD, cache = _through_blocks(config, parts, tokens_BT, segments, positions, cache)
    return _logits(config, _head(config, parts), _normed(config, parts, x_BTD)), cache


def training_loss(
    config: ModelConfig,
    parts: Parts,
    tokens_BT: jax.Array,
    segments: jax.Array,
    positions: jax.Array,
    *,
    rematerialise: bool = False,
    loss_chunks: int = 1,
    rows_sharding: jax.sharding.NamedSharding | None = None,
    rule: LogitsLoss = next_token_loss,
) -> tuple[jax.Array, jax.Array]:
    """`loss.next_token_loss` of the logits, or another rule, with ways to save memory in its
    gradient. Arguments as `forward`, and:

    Args:
      rematerialise: keep only the inputs of each block, and compute the rest again in the backward
        pass: a third more work.
      loss_chunks: equal lengths that rows are cut into for the logits, without more work.
      rows_sharding: the sharding of the rows of hidden states on a mesh. None = XLA chooses.
      rule: loss of whole rows of logits. A rule other than `next_token_loss` gets them in one
        chunk.

    Returns:
      Summed negative log-likelihood in nats (or the rule's loss) and the number of targets, float32
      scalars.
    """
    x_BTD, _ = _through_blocks(
        config, parts, tokens_BT, segments, positions, None, rematerialise, rows_sharding
    )
    x_BTD, head = _normed(config, parts, x_BTD), _head(config, parts)

    logits_of = functools.partial(_logits, config)

    if loss_chunks == 1:
        return rule(logits_of(head, x_BTD), tokens_BT, segments)
    assert rule is next_token_loss, "a chunk is no row, and the rule may ask for one"
    is_target_BT = next_is_target(segments)
    targets = next_tokens(tokens_BT), is_target_BT
    pieces = _pieces(config, tokens_BT.shape, loss_chunks, rows_sharding)
    total = chunked_loss(logits_of, head, x_BTD, *targets, loss_chunks, pieces)
    return total, jnp.sum(is_target_BT, dtype=jnp.float32)


def _pieces(config, shape, loss_chunks, rows_sharding) -> LogitsPieces | None:
    """The pieces of a chunk of the loss, where a device's part of the head stays on its chip."""
    rows, length = shape
    vocabulary = config.vocab_size
    if rows_sharding is not None:
        rows, _ = rows_sharding.shard_shape(shape)
        vocabulary //= rows_sharding.mesh.shape["tensor"]
    head_bytes = vocabulary * config.d_model * jnp.dtype(config.compute_dtype).itemsize
    if not stays_on_chip(head_bytes):
        return None
    chunk = length // loss_chunks
    return LogitsPieces(chunk // _at_once(chunk, rows, LOGITS_TOKENS), config.compute_dtype)


def log_likelihoods(
    config: ModelConfig, parts: Parts, tokens_BT: jax.Array, segments_BT: jax.Array
) -> jax.Array:
    """float32 [B, T]: log p(token t | its segment before t) in nats. 0 if t is not a target.

    Rows are worked through in pieces, and long ones in lengths, each with logits of at most
    `PIECE_BYTES`.
    """
    batch, length = tokens_BT.shape
    row_bytes = 4 * length * config.vocab_size
    rows = _at_once(batch, row_bytes, PIECE_BYTES)
    chunks = min(n for n in _divisors(length) if n == length or rows * row_bytes <= n * PIECE_BYTES)

    def of_rows(piece: tuple[jax.Array, jax.Array]) -> jax.Array:
        tokens_RT, segments_RT = piece
        x_RTD, _ = _through_blocks(config, parts, tokens_RT, segments_RT, None, None)
        x_RTD, logits_of = _normed(config, parts, x_RTD), functools.partial(_logits, config)
        head = _head(config, parts)
        return token_log_likelihoods(logits_of, head, x_RTD, tokens_RT, segments_RT, chunks)

    if rows == batch:
        return of_rows((tokens_BT, segments_BT))
    pieces = (each.reshape(-1, rows, length) for each in (tokens_BT, segments_BT))
    return lax.map(of_rows, tuple(pieces)).reshape(batch, length)


def _at_once(number: int, of_one: int, limit: int) -> int:
    """The most rows or columns that divide their number and stay within the limit, or one."""
    return max(n for n in _divisors(number) if n == 1 or n * of_one <= limit)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def hidden_states(
    config: ModelConfig,
    parts: Parts,
    tokens_BT: jax.Array,
    *,
    segments: jax.Array | None = None,
    positions: jax.Array | None = None,
) -> jax.Array:
    """The last block's output before the final norm, float32 [B, T, D], which routers read."""
    return _through_blocks(config, parts, tokens_BT, segments, positions, None)[0]


def _constrained(rows_sharding, x_BTD):
    """Divides hidden states by rows. XLA by itself would divide them along D, as the parameters."""
    return x_BTD if rows_sharding is None else lax.with_sharding_constraint(x_BTD, rows_sharding)


def _replicated(rows_sharding, embed):
    """The embedding whole on each device. Rows of a divided table are divided, and XLA would gather
    the hidden states to divide them again.
    """
    if rows_sharding is None:
        return embed
    whole = jax.sharding.NamedSharding(rows_sharding.mesh, jax.sharding.PartitionSpec())
    return lax.with_sharding_constraint(embed, whole)


def _through_blocks(
    config, parts, tokens_BT, segments, positions, cache, rematerialise=False, rows_sharding=None
):
    specs = describe(config)
    if positions is None:
        start_B = jnp.zeros((1,), jnp.int32) if cache is None else cache["length"]
        positions = start_B[:, None] + jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)[None, :]
    seen = Seen(_allowed(tokens_BT.shape[1], segments, positions, cache), segments)
    rotary = rotary_table(positions, config.head_size, config.rope_theta)

    embed = _replicated(rows_sharding, parts["embed"])
    x_BTD = _constrained(rows_sharding, _apply(Embed(specs["embed"], config), embed, tokens_BT))
    after = {}
    names = block_names(config)
    if rematerialise and attention_kernel(config, tokens_BT.shape[1]) == "splash":
        block = functools.partial(_apply, Block(specs[names[0]], config, 0, rows_sharding))
        params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(parts[each] for each in names))
        inputs = rotary, positions, seen

        def through(x_BTD, params):
            x_BTD = _rematerialised_in_pieces(rows_sharding, block, params, x_BTD, inputs)
            return _constrained(rows_sharding, x_BTD), None

        return lax.scan(through, x_BTD, params)[0], None  # compiled once for all blocks
    for layer, name in enumerate(names):
        block_cache = None if cache is None else cache[name]
        block = functools.partial(_apply, Block(specs[name], config, layer, rows_sharding))
        inputs = (rotary, positions, seen, block_cache)
        if rematerialise:
            x_BTD = _rematerialised(block, parts[name], x_BTD, inputs)
        else:
            x_BTD, after[name] = block(parts[name], x_BTD, *inputs)
        x_BTD = _constrained(rows_sharding, x_BTD)
    if cache is None:
        return x_BTD, None
    num_new = tokens_BT.shape[1] if segments is None else jnp.sum(segments != 0, axis=1)
    return x_BTD, {"length": cache["length"] + num_new, **after}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rematerialised(block, params, x_BTD, inputs):
    """block(params, x, *inputs) without the cache. Only its inputs are kept for the gradient."""
    return block(params, x_BTD, *inputs)[0]


def _rematerialised_forward(block, params, x_BTD, inputs):
    return block(params, x_BTD, *inputs)[0], (params, x_BTD, inputs)


def _rematerialised_backward(block, saved, gradient_BTD):
    params, x_BTD, inputs = saved
    # The second computation must wait for the gradient and differ from the first. XLA:CPU drops the
    # barriers of `jax.checkpoint`, finds the two computations equal, and keeps everything.
    x_BTD = x_BTD + 0.0 * gradient_BTD[0, 0, 0]
    _, pull_back = jax.vjp(lambda params, x: block(params, x, *inputs)[0], params, x_BTD)
    return *pull_back(gradient_BTD), None


_rematerialised.defvjp(_rematerialised_forward, _rematerialised_backward)


def _rematerialised_in_pieces(rows_sharding, block, params, x_BTD, inputs):
    """`_rematerialised` for TPUs, through a few rows of a device at a time, whose values stay on
    the chip. Attention's values and results are kept too. Queries, keys, output, gate and up are
    computed again: a sixth more work for the paper's path.
    """

    def of_piece(params, x_RTD, rotary, positions, segments):
        # Behind barriers each piece is read once, and not by every operation that takes it.
        x_RTD = lax.optimization_barrier(x_RTD)
        seen = Seen(_allowed(segments.shape[1], segments, positions, None), segments)
        inputs = rotary.swapaxes(0, 1), positions, seen, None
        return lax.optimization_barrier(block(params, x_RTD, *inputs)[0])

    policy = jax.checkpoint_policies.save_only_these_names(KEPT)
    again = jax.checkpoint(of_piece, policy=policy, prevent_cse=False)

    def of_device(params, x_BTD, *others):
        batch, length, _ = x_BTD.shape
        rows = _at_once(batch, length, PIECE_TOKENS)
        pieces = (leaf.reshape(-1, rows, *leaf.shape[1:]) for leaf in (x_BTD, *others))
        return lax.map(lambda piece: again(params, *piece), tuple(pieces)).reshape(x_BTD.shape)

    if rows_sharding is not None:
        mesh, place = rows_sharding.mesh, rows_sharding.spec
        of_device = jax.shard_map(
            of_device,
            mesh=mesh,
            in_specs=(jax.sharding.PartitionSpec(), place, place, place, place),
            out_specs=place,
            axis_names=set(mesh.axis_names) - {"tensor"},
            check_vma=False,  # a kernel does not say along which axes its result differs
        )
    rotary, positions, seen = inputs
    return of_device(params, x_BTD, rotary.swapaxes(0, 1), positions, seen.segments_BT)


def _normed(config, parts, x_BTD):
    specs = describe(config)["final_norm"]
    return _apply(FinalNorm(specs, config), parts["final_norm"], x_BTD)


def _head(config, parts):
    """The parameters of the part that makes logits."""
    return parts["embed" if config.tied_head else "head"]


def _logits(config, head, x_BTD):
    specs = describe(config)
    if config.tied_head:
        return _apply(Embed(specs["embed"], config), head, x_BTD, method="logits")
    return _apply(Head(specs["head"], config), head, x_BTD)


def _allowed(length, segments, positions_BT, cache):
    """Slots that each token may attend to: bool [B or 1, T, S]."""
    if cache is not None:
        slots_S = jnp.arange(num_slots(cache), dtype=jnp.int32)
        return slots_S[None, None, :] <= positions_BT[:, :, None]
    # The index in the row replaces the position: within a segment the order is the same.
    index = jnp.arange(length, dtype=jnp.int32)
    causal_BTS = (index[None, :] <= index[:, None])[None]
    if segments is None:
        return causal_BTS
    return causal_BTS & (segments[:, :, None] == segments[:, None, :])


def _apply(part: nn.Module, params: Tree, *inputs: Any, method: str | None = None) -> Any:
    return part.apply({"params": params}, *inputs, method=method)


class Embed(nn.Module):
    """Part `embed`: token id -> its row of the table. A tied head takes its logits from it too."""

    specs: Tree
    config: ModelConfig

    def setup(self):
        self.table_VD = declare(self, self.specs)["table"]

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        return jnp.take(self.table_VD, tokens_BT, axis=0)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        # Without the barrier XLA:CPU folds the transpose into the gradient's product, for which it
        # has no bfloat16 kernel (jax 0.10: "Unsupported element type for DotThunk").
        head_DV = lax.optimization_barrier(self.table_VD.T)
        return dense(x_BTD, head_DV, self.config.compute_dtype)


class Block(nn.Module):
    """Part `block_NN`: attention and feed-forward, each added to its input."""

    specs: Tree
    config: ModelConfig
    layer: int = 0  # number of this layer in the program
    rows_sharding: Any = None

    @nn.compact
    def __call__(self, x_BTD, rotary, positions_BT, seen, cache):
        config, specs = self.config, self.specs["attention"]
        attention = Attention(specs, config, self.layer, self.rows_sharding, name="attention")
        added_BTD, cache = attention(x_BTD, rotary, positions_BT, seen, cache)
        x_BTD = x_BTD + added_BTD
        feed_forward = FeedForward(
            self.specs["feed_forward"],
            config.norm_epsilon,
            config.compute_dtype,
            result_dtype(config),
            name="feed_forward",
        )
        return x_BTD + feed_forward(x_BTD), cache


class FinalNorm(nn.Module):
    """Part `final_norm`."""

    specs: Tree
    config: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        scale_D = declare(self, self.specs)["scale"]
        return rms_norm(x_BTD, scale_D, self.config.norm_epsilon)


class Head(nn.Module):
    """Part `head`: hidden state -> logits."""

    specs: Tree
    config: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: jax.Array) -> jax.Array:
        return dense(x_BTD, declare(self, self.specs)["kernel"], self.config.compute_dtype)
