"""The compiled programs of serving: prefill, decode a block of tokens, move rows of the cache.

All requests share one cache, the *pool*: a row of slots for each, whatever its path, and one spare
row that takes what padding writes. A program runs on the parameters of one path and some rows of
the pool. A block of steps also runs on parameters of several paths (`model.mixed`). Its other
inputs are small: tokens and lengths come from the host each time, settings when rows change
(`block_inputs`). Shapes are fixed: rows and slots come in *buckets*, so a few programs serve any
load.

`prefill` fills the pool and computes no logits: it leaves out a prompt's last token. That token
begins the first block of `decode_block`, like every token after it, so sampling is in one place.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dipaco.errors import BadSetting
from dipaco.model import mixed
from dipaco.model.cache import empty_cache
from dipaco.model.config import ModelConfig
from dipaco.model.inference import Blocks, extend, logits
from dipaco.model.spec import Parts
from dipaco.serving.decoding.sampling import RowSettings, log_probabilities, sample
from dipaco.serving.errors import ContextTooLong, EmptyPrompt

MAX_LOGPROBS = 20  # likeliest tokens that may be asked for
SCORE_BATCH_SIZE = 32  # tokens of a prompt
DRAWN, RESTS = -1, -2  # instead of a token that is given
# On a GPU the loop over the steps of a block is launched whole, as one graph. XLA's default leaves
# `WHILE` out, so that the host launches each step, which takes longer than a small path's kernels
# do (an H200, figures in tools/LOG.md).
WHOLE_LOOPS: dict[str, bool | int | str] = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE,"
    "DYNAMIC_SLICE_FUSION"
}


# Scores of a head at once: tokens times slots. A context of 4,096 tokens is read whole.
MOST_SCORES = 1 << 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopLimits:
    """Shapes follow from these, so each also decides how many programs are compiled."""

    rows: int = 64  # active requests over all paths: rows of the cache
    rows_per_path: int = 64  # rows of one path in one step
    rows_per_client: int | None = None  # rows of one client. None = all, while no other wants them
    waiting: int = 256  # requests that wait for a row
    steps_per_block: int = 8  # tokens a row makes before others may join and clients get them
    prompt_tokens_per_iteration: int = 512  # prefilled, padding included, before the next block
    smallest_slots: int = 64  # slots of the cache that a step attends to. Doubled as rows grow
    # Rows of a step, the rest being padding. On CPU 2 and 4 rows take as long as 8: the products
    # are then bound by reading the parameters.
    rows_per_step: tuple[int, ...] = (1, 8, 16, 32, 64, 128)

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            least = min(value, default=0) if isinstance(value, tuple) else value
            if least is not None and least < 1:
                raise BadSetting(name=name, value=value, expected="1 or more")

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """`rows_per_step`, cut off at `rows_per_path` or, if that is fewer, `rows`."""
        most = min(self.rows_per_path, self.rows)
        return (*(size for size in self.rows_per_step if size < most), most)

    @property
    def mixed_row_sizes(self) -> tuple[int, ...]:
        """Rows of a step for several paths: every second of `rows_per_step`, up to `rows`."""
        if self.rows == 1:
            return ()
        return (*(size for size in self.rows_per_step[1::2] if size < self.rows), self.rows)


def check_fits(config: ModelConfig, prompt_ids: Sequence[int]) -> None:
    """Raises `EmptyPrompt`, and as `check_length`."""
    if not len(prompt_ids):
        raise EmptyPrompt
    check_length(config, len(prompt_ids))


def check_length(config: ModelConfig, num_tokens: int, prefix: str = "") -> None:
    """Raises `ContextTooLong`, with their number after the prefix, if no other token fits."""
    if num_tokens >= config.max_length:
        remedy = "Shorten it: at least one more token must fit."
        given, limit = f"{prefix}{num_tokens}", config.max_length
        raise ContextTooLong(num_tokens=given, where="the context", limit=limit, remedy=remedy)


class DecodeBlock(NamedTuple):
    """The tokens that n steps made in each of B rows."""

    token: jax.Array | np.ndarray  # int32 [n, B], on the host once it is fetched
    logprob: jax.Array  # float32 [n, B], in nats, zeros if no row asked
    top_token: jax.Array  # int32 [n, B, MAX_LOGPROBS], the likeliest, best first
    top_logprob: jax.Array  # float32 [n, B, MAX_LOGPROBS]


def buckets(smallest: int, largest: int) -> tuple[int, ...]:
    """Powers of two from `smallest`, then `largest` itself."""
    sizes = [min(smallest, largest)]
    while sizes[-1] < largest:
        sizes.append(min(2 * sizes[-1], largest))
    return tuple(sizes)


def smallest_fitting(sizes: Sequence[int], needed: int) -> int:
    """The smallest bucket that holds `needed`, else the largest one."""
    return next((size for size in sizes if size >= needed), sizes[-1])


def make_pool(config: ModelConfig, rows: int) -> dict[str, Any]:
    """A cache of `rows` rows and a spare one, each with a slot for every token of the context."""
    pool = empty_cache(config, rows + 1, config.max_length)
    return {name: block for name, block in pool.items() if name != "length"}


def read(
    config: ModelConfig, prepared: Parts, tokens_BT: jax.Array, starts_B: jax.Array, blocks: Blocks
) -> tuple[jax.Array, dict[str, Any]]:
    """Does what `inference.extend` does. A long text of one row is read part after part: the scores
    of all its tokens would be 68 GB for 32,768 of them, with 16 heads.
    """
    slots = jax.tree.leaves(blocks)[0].shape[2]
    (batch, length), size = tokens_BT.shape, max(1, MOST_SCORES // slots)
    if batch > 1 or length <= size:
        return extend(config, prepared, tokens_BT, starts_B, blocks)

    def read_part(held, first):
        x_DT, blocks = held
        part_1T = lax.dynamic_slice_in_dim(tokens_BT, first, size, axis=1)
        part_DT, blocks = extend(config, prepared, part_1T, starts_B + first, blocks)
        return (lax.dynamic_update_slice_in_dim(x_DT, part_DT, first, axis=1), blocks), None

    # The last part has as many tokens as the others. Some of them are read again.
    firsts = jnp.minimum(jnp.arange(0, length, size), length - size)
    x_DT = jnp.zeros((config.d_model, length), jnp.float32)
    (x_DT, blocks), _ = lax.scan(read_part, (x_DT, dict(blocks)), firsts)
    return x_DT, blocks


@functools.partial(jax.jit, static_argnames=("config",))
def hidden_states(config: ModelConfig, prepared: Parts, tokens_BT: jax.Array) -> jax.Array:
    """float32 [B, T, D], as `model.lm.hidden_states` in three quarters of its time for one row of
    32 tokens (8.39 M parameters on two CPUs: 7.1 against 9.7 ms).
    """
    cache = empty_cache(config, *tokens_BT.shape)
    starts_B = cache.pop("length")
    x_DN, _ = read(config, prepared, tokens_BT, starts_B, cache)
    return x_DN.T.reshape(*tokens_BT.shape, -1)


# Below, the pool and the rows gathered from it are donated: they are written in place, and the
# arrays passed in must not be used again.


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("pool",))
def prefill(
    config: ModelConfig, prepared: Parts, pool: Blocks, tokens_BT: jax.Array, rows_B: jax.Array
) -> Blocks:
    """Writes tokens into the first T slots of some rows of the pool. Right padding is harmless."""
    row_cache = empty_cache(config, *tokens_BT.shape)
    row_cache.pop("length")
    _, row_cache = read(config, prepared, tokens_BT, jnp.zeros_like(rows_B), row_cache)
    length = tokens_BT.shape[1]
    return jax.tree.map(lambda pooled, new: pooled.at[rows_B, :, :length].set(new), pool, row_cache)


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("pool",))
def read_on(
    config: ModelConfig,
    prepared: Parts,
    pool: Blocks,
    tokens_1T: jax.Array,
    row: jax.Array,
    start: jax.Array,
) -> Blocks:
    """Writes T more tokens into the slots of one row from `start` on. The tokens before it are in
    the cache. There must be slots for all T: right padding is harmless within the context.
    """
    row_cache = jax.tree.map(lambda pooled: lax.dynamic_slice_in_dim(pooled, row, 1), pool)
    _, row_cache = read(config, prepared, tokens_1T, start[None], row_cache)
    length = tokens_1T.shape[1]

    def put(pooled, row_cache):
        new = lax.dynamic_slice_in_dim(row_cache, start, length, axis=2)
        return lax.dynamic_update_slice(pooled, new, (row, 0, start, 0))

    return jax.tree.map(put, pool, row_cache)


@functools.partial(jax.jit, donate_argnames=("pool",))
def copy_row(pool: Blocks, source: jax.Array, target: jax.Array) -> Blocks:
    """The pool with one row copied onto another, so that what both begin with is read once."""
    return jax.tree.map(lambda pooled: pooled.at[target].set(pooled[source]), pool)


@functools.partial(jax.jit, static_argnames=("slots",))
def gather_rows(pool: Blocks, rows_B: jax.Array, slots: int) -> Blocks:
    """The first slots of some rows, side by side [B, G, slots, K]."""

    def row(pooled, index):
        sizes = (1, pooled.shape[1], slots, pooled.shape[3])
        return lax.dynamic_slice(pooled, (index, 0, 0, 0), sizes)[0]

    return jax.tree.map(lambda pooled: jax.vmap(row, (None, 0))(pooled, rows_B), pool)


def _with_whole_loops(function):
    """Compiled as the device has it best, which is known at the first call and not before."""

    @functools.cache
    def jitted():
        return jax.jit(
            function,
            static_argnames=("config",),
            donate_argnames=("pool", "gathered"),
            compiler_options=WHOLE_LOOPS if jax.default_backend() == "gpu" else None,
        )

    return functools.wraps(function)(lambda *arguments, **named: jitted()(*arguments, **named))


@_with_whole_loops
def decode_block(
    config: ModelConfig,
    prepared: Parts | mixed.MixedParts,
    pool: Blocks,
    gathered: Blocks,
    rows_B: jax.Array,
    history_BS: jax.Array,
    lengths_B: jax.Array,
    settings: RowSettings,
    uniforms_nBU: jax.Array,
    wants_logprobs: jax.Array,
    num_steps: jax.Array | None = None,
    given_nB: jax.Array | None = None,
) -> tuple[DecodeBlock, Blocks, Blocks]:
    """Decodes n tokens in each row, or fewer.

    The steps attend to and write into `gathered`; the new entries go to the pool once, at the end.

    Args:
      gathered: what `gather_rows` returned for these rows, with enough slots: a row's last token is
        written at `lengths_B + n - 2`. A row that runs over its end changes no other row.
      rows_B: which rows of the pool they are.
      history_BS: int32, each row's tokens so far, prompt included; the last one is not in the cache
        yet.
      lengths_B: int32, the number of those tokens, at least 1.
      uniforms_nBU: float32, the draws, from `sampling.uniforms`. n is the number of steps.
      num_steps: int32, the steps that are run, 1 to n. None = n.
      given_nB: int32, the token that a row gets in a step, `DRAWN`, or `RESTS`: it has none in this
        step and in those after it. None = all are drawn.

    Returns the tokens (-1: not made), the pool, and `gathered` with the new tokens in it.
    """
    most_steps, slots = len(uniforms_nBU), history_BS.shape[1]
    row_numbers_B = jnp.arange(len(rows_B))
    if given_nB is None:
        given_nB = jnp.full(uniforms_nBU.shape[:2], DRAWN, jnp.int32)

    def step(carry, inputs):
        uniforms_BU, given_B = inputs
        blocks, history_BS, lengths_B = carry
        last_B1 = jnp.minimum(lengths_B - 1, slots - 1)[:, None]
        token_B1 = jnp.take_along_axis(history_BS, last_B1, axis=1)
        logits_of, blocks = _next_logits(config, prepared, token_B1, lengths_B - 1, blocks)

        def choose():
            logits_BV = logits_of()
            token_B = sample(logits_BV, settings, uniforms_BU, history_BS, lengths_B)
            token_B = jnp.where(given_B >= 0, given_B, token_B)
            logprobs = lax.cond(wants_logprobs, _log_probabilities, _zeros, logits_BV, token_B)
            return token_B, *logprobs

        def keep():
            return given_B, *_zeros(jax.eval_shape(logits_of), given_B)

        # Nothing is chosen if every row's token is given.
        token_B, *logprobs = lax.cond(jnp.any(given_B == DRAWN) | wants_logprobs, choose, keep)
        # A row that rests makes its last token's entry of the cache again.
        is_made_B = given_B != RESTS
        places_B = jnp.where(is_made_B, lengths_B, slots)
        history_BS = history_BS.at[row_numbers_B, places_B].set(token_B, mode="drop")
        made_B = jnp.where(is_made_B, token_B, -1)
        return (blocks, history_BS, lengths_B + is_made_B), DecodeBlock(made_B, *logprobs)

    carry = gathered, history_BS, lengths_B
    steps = most_steps if num_steps is None else num_steps
    (gathered, _, _), block = _first_steps(step, carry, (uniforms_nBU, given_nB), steps)

    # Slots beyond the tokens that were made get what no row reads.
    starts_B = jnp.clip(lengths_B - 1, 0, slots - most_steps)

    def put(pooled, new):
        new_BGnK = jax.vmap(
            lambda row_GSK, start: lax.dynamic_slice_in_dim(row_GSK, start, most_steps, axis=1)
        )(new, starts_B)
        slots_Bn = starts_B[:, None] + jnp.arange(most_steps)[None]
        return pooled.at[rows_B[:, None], :, slots_Bn].set(new_BGnK.swapaxes(1, 2))

    return block, jax.tree.map(put, pool, gathered), gathered


def _first_steps(step, carry, inputs_n, num_steps):
    """Like `lax.scan`, but runs only the first steps. The outputs of the others are -1."""
    first = jax.tree.map(lambda each_n: each_n[0], inputs_n)
    outputs = jax.eval_shape(lambda: step(carry, first)[1])
    most = len(jax.tree.leaves(inputs_n)[0])
    made = jax.tree.map(lambda one: jnp.full((most, *one.shape), -1, one.dtype), outputs)

    def next_step(state):
        index, carry, made = state
        carry, output = step(carry, jax.tree.map(lambda each_n: each_n[index], inputs_n))
        return index + 1, carry, jax.tree.map(lambda all, one: all.at[index].set(one), made, output)

    state = jnp.int32(0), carry, made
    _, carry, made = lax.while_loop(lambda state: state[0] < num_steps, next_step, state)
    return carry, made


@functools.partial(jax.jit, static_argnames=("config",))
def score_prompt(config: ModelConfig, prepared: Parts, tokens_1T: jax.Array) -> DecodeBlock:
    """Log-probabilities of a prompt's tokens: `DecodeBlock` with n = T, B = 1, entry t for token t.

    The first token has no predecessor, so its entry is meaningless.
    """
    blocks = empty_cache(config, *tokens_1T.shape)
    blocks.pop("length")
    x_DT, _ = read(config, prepared, tokens_1T, jnp.zeros(1, jnp.int32), blocks)
    # The output after token t is about t+1: the last entry comes to the front.
    x_TD = jnp.roll(x_DT, 1, axis=1).T

    def one(x_D, token):
        logits_1V = logits(config, prepared, x_D[:, None])
        return _log_probabilities(logits_1V, token[None])

    # Batches keep the logits small: with all tokens they would be the largest array of the process.
    logprobs = lax.map(lambda pair: one(*pair), (x_TD, tokens_1T[0]), batch_size=SCORE_BATCH_SIZE)
    return DecodeBlock(tokens_1T.T, *logprobs)


def _next_logits(config, prepared, token_B1, starts_B, blocks):
    """A function that makes the logits float32 [B, V], and the cache with the tokens in it."""
    if isinstance(prepared, mixed.MixedParts):
        x, blocks = mixed.extend(config, prepared, token_B1[:, 0], starts_B, blocks)
        return (lambda: mixed.logits(config, prepared, x)), blocks
    x_DB, blocks = extend(config, prepared, token_B1, starts_B, blocks)
    return (lambda: logits(config, prepared, x_DB)), blocks


def _log_probabilities(logits_BV, token_B):
    num_top = min(MAX_LOGPROBS, logits_BV.shape[1])
    return log_probabilities(logits_BV, token_B, num_top)


def _zeros(logits_BV, token_B):
    shapes = jax.eval_shape(_log_probabilities, logits_BV, token_B)
    return jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), shapes)
