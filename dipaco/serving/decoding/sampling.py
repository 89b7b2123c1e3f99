"""The next token from its logits: greedy, temperature, top-k, top-p, min-p, repetition penalty.

The settings enter the compiled program as values, one per row: other settings do not compile again,
and rows with different settings share a step. Where every row is greedy, a step only finds the
largest logit. Nothing is sorted: XLA:CPU takes 52 ms to sort 32 rows of 8192. A cut needs only the
threshold below which tokens are left out, and `_largest_threshold` finds it bit by bit.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dipaco.errors import BadSetting
from dipaco.serving.decoding.grammar import ALL, WORD_BITS, all_allowed

MAX_STOP_IDS = 40  # stop ids in one row
MAX_BIASES = 300  # biases in one row, as at OpenAI
LEAST_PENALTY = 0.01  # the least repetition penalty: a logit over less may be none any more
NO_ID = 2**31 - 1  # no token has it
GROUP = 64  # tokens that are searched as one group (`likeliest`, `_draw`)
NUM_UNIFORMS = 2  # random numbers of a draw: for the group, and for the token in it


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Settings by which tokens are drawn. The default is greedy."""

    temperature: float = 0.0  # logits are divided by it. 0 = greedy
    top_k: int = 0  # draw from the k likeliest only. 0 = from all
    top_p: float = 1.0  # draw from the fewest that have this probability together (1904.09751)
    min_p: float = 0.0  # leave out tokens less likely than this share of the likeliest
    repetition_penalty: float = 1.0  # makes tokens seen before less likely (1909.05858). 1 = off
    presence_penalty: float = 0.0  # taken from the logits of tokens that were made before
    frequency_penalty: float = 0.0  # the same, times how often
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, bias added to its logit)

    def __post_init__(self):
        checks = {
            "temperature": (0 <= self.temperature < math.inf, "0 (greedy) or more"),
            "top_k": (0 <= self.top_k < 2**31, "0 (all tokens) or more"),
            "top_p": (0 < self.top_p <= 1, "more than 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "0 (off) to 1"),
            "presence_penalty": (math.isfinite(self.presence_penalty), "a finite number"),
            "frequency_penalty": (math.isfinite(self.frequency_penalty), "a finite number"),
            "logit_bias": (len(self.logit_bias) <= MAX_BIASES, f"at most {MAX_BIASES} tokens"),
            "repetition_penalty": (
                LEAST_PENALTY <= self.repetition_penalty < math.inf,
                f"{LEAST_PENALTY:g} or more; 1 = off",
            ),
        }
        for field, (is_good, expected) in checks.items():
            if not is_good:
                raise BadSetting(name=field, value=getattr(self, field), expected=expected)


class RowSettings(NamedTuple):
    """The settings of B rows, as the arrays that a compiled program takes."""

    temperature_B: np.ndarray
    top_k_B: np.ndarray
    top_p_B: np.ndarray
    min_p_B: np.ndarray
    penalty_B: np.ndarray
    stop_ids_BM: np.ndarray  # the tokens that end a row, filled up with `NO_ID`
    # Tokens, prompt included, before which stop tokens are not drawn. 0 = none.
    shortest_B: np.ndarray
    presence_B: np.ndarray
    frequency_B: np.ndarray
    prompt_B: np.ndarray  # tokens of the prompt, which these two penalties do not count
    bias_ids_BM: np.ndarray  # filled up with `NO_ID`
    bias_BM: np.ndarray
    allowed_BW: np.ndarray  # a bit for each id, as of `grammar.all_allowed`


class EarliestStop(NamedTuple):
    """The tokens that end a row, and the tokens, prompt included, before which none is drawn."""

    ids: frozenset[int] = frozenset()  # MAX_STOP_IDS at most
    shortest: int = 0


def stack_settings(
    settings: Sequence[SamplingSettings],
    stops: Sequence[EarliestStop] = (),
    prompt_lengths: Sequence[int] = (),
    allowed_BW: np.ndarray | None = None,
) -> RowSettings:
    """The settings of several rows as arrays. `stops` and `prompt_lengths` belong to the first."""

    def column(field, dtype=np.float32):
        return np.array([getattr(row, field) for row in settings], dtype)

    stop_ids_BM, shortest_B = stack_stops(stops, len(settings))
    prompt_B = np.zeros(len(settings), np.int32)
    prompt_B[: len(prompt_lengths)] = prompt_lengths
    bias_ids_BM = np.full((len(settings), MAX_BIASES), NO_ID, np.int32)
    bias_BM = np.zeros((len(settings), MAX_BIASES), np.float32)
    for row, one in enumerate(settings):
        if one.logit_bias:
            ids, biases = zip(*one.logit_bias, strict=True)
            bias_ids_BM[row, : len(ids)], bias_BM[row, : len(ids)] = ids, biases
    return RowSettings(
        stop_ids_BM=stop_ids_BM,
        shortest_B=shortest_B,
        presence_B=column("presence_penalty"),
        frequency_B=column("frequency_penalty"),
        prompt_B=prompt_B,
        bias_ids_BM=bias_ids_BM,
        bias_BM=bias_BM,
        allowed_BW=all_allowed(len(settings), 0) if allowed_BW is None else allowed_BW,
        temperature_B=column("temperature"),
        top_k_B=column("top_k", np.int32),
        top_p_B=column("top_p"),
        min_p_B=column("min_p"),
        penalty_B=column("repetition_penalty"),
    )


def stack_stops(stops: Sequence[EarliestStop], num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """`stop_ids_BM` and `shortest_B` of `RowSettings`. Rows beyond `stops` have none."""
    stop_ids_BM = np.full((num_rows, MAX_STOP_IDS), NO_ID, np.int32)
    shortest_B = np.zeros(num_rows, np.int32)
    for row, stop in enumerate(stops):
        stop_ids_BM[row, : len(stop.ids)] = sorted(stop.ids)
        shortest_B[row] = stop.shortest
    return stop_ids_BM, shortest_B


def choice_seed(seed: int, prompt: int, choice: int) -> int:
    """The seed of the nth choice of a request's nth prompt, both from 0. It has 63 bits.

    The first one's is `seed` itself, so that a request for one text draws as `dipaco generate` does
    with that seed. The others are hashes of all three: sums would let the second choice of one seed
    be the first of the next.
    """
    if not prompt and not choice:
        return seed
    hashed = np.random.SeedSequence(seed, spawn_key=(prompt, choice))
    return int(hashed.generate_state(1, np.uint64)[0] >> np.uint64(1))


def uniforms(seed: int, length: int) -> np.ndarray:
    """float32 [length, 2] in [0, 1): the random numbers of a row's draw at each position, for a
    group of tokens and for one in it. So a row draws the same alone and in a batch.
    """
    return np.random.Generator(np.random.Philox(seed)).random((length, NUM_UNIFORMS), np.float32)


def sample(
    logits_BV: jax.Array,
    rows: RowSettings,
    uniforms_BU: jax.Array,
    history_BS: jax.Array,
    lengths_B: jax.Array,
) -> jax.Array:
    """The next token of each row, int32 [B].

    As in vLLM: bias, the repetition penalty, the other penalties, temperature, top-k, top-p of what
    top-k left, min-p. Before all of this a row loses ids that are no token, tokens that its grammar
    does not allow and, if it is too short to end, its stop tokens. Ties with the last token kept
    are kept.

    Args:
      logits_BV: float32.
      uniforms_BU: from `uniforms`, at the positions of these tokens.
      history_BS: int32, the tokens of each row so far, prompt included.
      lengths_B: int32, how many of them are tokens.
    """

    def changed(logits_BV, is_wanted_B, change, *arguments):
        """Changes the logits of all rows if any row wants it."""
        change = functools.partial(change, logits_BV, *arguments)
        return lax.cond(jnp.any(is_wanted_B), change, lambda: logits_BV)

    logits_BV = changed(logits_BV, rows.bias_BM != 0, _biased, rows)
    if rows.allowed_BW.size:
        logits_BV = changed(logits_BV, rows.allowed_BW != ALL, _only_allowed, rows.allowed_BW)
    is_short_B = lengths_B < rows.shortest_B
    logits_BV = changed(logits_BV, is_short_B, _without_stops, rows.stop_ids_BM, is_short_B)
    text = history_BS, lengths_B
    logits_BV = changed(logits_BV, rows.penalty_B != 1, _penalise, rows.penalty_B, *text)
    is_penalised_B = (rows.presence_B != 0) | (rows.frequency_B != 0)
    logits_BV = changed(logits_BV, is_penalised_B, _penalise_made, rows, *text)
    greedy_B = likeliest(logits_BV)
    draws_B, draw = rows.temperature_B > 0, lambda: _draw(logits_BV, rows, uniforms_BU)
    return jnp.where(draws_B, lax.cond(jnp.any(draws_B), draw, lambda: greedy_B), greedy_B)


def likeliest(logits_BV: jax.Array) -> jax.Array:
    """The token with the largest logit in each row, the first of equals: int32 [B].

    It searches by groups: the largest of each group, the best group, the best within it. XLA:CPU's
    own `argmax` over 8192 x 32 takes 1.3 ms, a tenth of a step of 8 M parameters. This takes a
    fifth of it.
    """
    spare = -logits_BV.shape[1] % GROUP
    logits_BV = jnp.pad(logits_BV, ((0, 0), (0, spare)), constant_values=-jnp.inf)
    groups_BNG = logits_BV.reshape(len(logits_BV), -1, GROUP)
    best_B = jnp.argmax(jnp.max(groups_BNG, axis=2), axis=1)
    within_BG = jnp.take_along_axis(groups_BNG, best_B[:, None, None], axis=1)[:, 0]
    return (best_B * GROUP + jnp.argmax(within_BG, axis=1)).astype(jnp.int32)


def log_probabilities(
    logits_BV: jax.Array, token_B: jax.Array, num_top: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The log-probability of a token of each row, float32 [B], and the `num_top` likeliest, best
    first: int32 [B, num_top] tokens with float32 [B, num_top]. In nats, before penalty, temperature
    and cuts.
    """
    total_B = jax.nn.logsumexp(logits_BV, axis=1)
    chosen_B = jnp.take_along_axis(logits_BV, token_B[:, None], axis=1)[:, 0] - total_B
    top_BN, tokens_BN = lax.top_k(logits_BV, num_top)
    return chosen_B, tokens_BN, top_BN - total_B[:, None]


def _only_allowed(logits_BV, allowed_BW):
    shifts_11b = jnp.arange(WORD_BITS, dtype=jnp.uint32)[None, None]
    bits_BWb = (allowed_BW[:, :, None] >> shifts_11b) & 1
    is_allowed_BV = bits_BWb.reshape(len(allowed_BW), -1)[:, : logits_BV.shape[1]] == 1
    return jnp.where(is_allowed_BV, logits_BV, -jnp.inf)


def _without_stops(logits_BV, stop_ids_BM, is_short_B):
    ids_BM = jnp.where(is_short_B[:, None], stop_ids_BM, NO_ID)
    rows_B1 = jnp.arange(len(ids_BM))[:, None]
    return logits_BV.at[rows_B1, ids_BM].set(-jnp.inf, mode="drop")


def _biased(logits_BV, rows: RowSettings):
    """OpenAI's `logit_bias`."""
    rows_B1 = jnp.arange(logits_BV.shape[0])[:, None]
    return logits_BV.at[rows_B1, rows.bias_ids_BM].add(rows.bias_BM, mode="drop")


def _penalise_made(logits_BV, rows: RowSettings, history_BS, lengths_B):
    """OpenAI's `frequency_penalty` and `presence_penalty`."""
    rows_B1 = jnp.arange(history_BS.shape[0])[:, None]
    places_1S = jnp.arange(history_BS.shape[1])[None]
    is_made_BS = (places_1S >= rows.prompt_B[:, None]) & (places_1S < lengths_B[:, None])
    made_BS = is_made_BS.astype(jnp.float32)
    count_BV = jnp.zeros(logits_BV.shape, jnp.float32).at[rows_B1, history_BS].add(made_BS)
    logits_BV = logits_BV - rows.frequency_B[:, None] * count_BV
    return logits_BV - rows.presence_B[:, None] * (count_BV > 0)


def _penalise(logits_BV, penalty_B, history_BS, lengths_B):
    """The repetition penalty of CTRL (1909.05858, 4.1), for negative logits as transformers."""
    rows_B1 = jnp.arange(history_BS.shape[0])[:, None]
    is_token_BS = jnp.arange(history_BS.shape[1])[None] < lengths_B[:, None]
    is_seen_BV = jnp.zeros(logits_BV.shape, bool).at[rows_B1, history_BS].max(is_token_BS)
    penalty_B1 = penalty_B[:, None]
    penalised_BV = jnp.where(logits_BV > 0, logits_BV / penalty_B1, logits_BV * penalty_B1)
    return jnp.where(is_seen_BV, penalised_BV, logits_BV)


def _draw(logits_BV, rows: RowSettings, uniforms_BU):
    """Draws a group of tokens by the group's sum, then a token of it by a second random number.

    If the last bits of the logits differ (other products, beside other rows), another token is
    drawn when the random number lies between a boundary and its moved place. Short sums have few
    boundaries, and rounding moves them less.
    """
    # Greedy rows are computed too and ignored. Their temperature must not divide by zero.
    temperature_B = jnp.where(rows.temperature_B > 0, rows.temperature_B, 1.0)
    # The best is subtracted before the division. Afterwards, at temperatures near zero, rounding
    # (or infinity) would decide the difference.
    below_BV = logits_BV - jnp.max(logits_BV, axis=1, keepdims=True)
    weights_BV = _cut(jnp.exp(below_BV / temperature_B[:, None]), rows)
    spare = -weights_BV.shape[1] % GROUP
    groups_BNG = jnp.pad(weights_BV, ((0, 0), (0, spare))).reshape(len(weights_BV), -1, GROUP)
    group_B = _pick(jnp.sum(groups_BNG, axis=2), uniforms_BU[:, 0])
    within_BG = jnp.take_along_axis(groups_BNG, group_B[:, None, None], axis=1)[:, 0]
    drawn_B = group_B * GROUP + _pick(within_BG, uniforms_BU[:, 1])
    return jnp.minimum(drawn_B, weights_BV.shape[1] - 1).astype(jnp.int32)  # never a padded place


def _pick(weights_BN, uniforms_B):
    """An index in proportion to its weight: the first whose running sum passes the share."""
    sums_BN = jnp.cumsum(weights_BN, axis=1)
    target_B1 = (uniforms_B * sums_BN[:, -1])[:, None]
    has_passed_BN = (sums_BN > target_B1) & (weights_BN > 0)
    # Rounding may leave no token. Then the last one with a weight is drawn.
    last_B = weights_BN.shape[1] - 1 - jnp.argmax(weights_BN[:, ::-1] > 0, axis=1)
    return jnp.where(jnp.any(has_passed_BN, axis=1), jnp.argmax(has_passed_BN, axis=1), last_B)


def _cut(weights_BV, rows: RowSettings):
    """Weights relative to the likeliest token's, 0 for tokens that are cut off."""

    def top_k(weights_BV):
        k_B = jnp.where(rows.top_k_B > 0, rows.top_k_B, weights_BV.shape[1])
        is_enough = lambda kept_BV: jnp.sum(kept_BV, axis=1) >= k_B  # noqa: E731
        return jnp.where(
            weights_BV >= _largest_threshold(weights_BV, is_enough)[:, None], weights_BV, 0.0
        )

    def top_p(weights_BV):
        needed_B = rows.top_p_B * jnp.sum(weights_BV, axis=1)

        def is_enough(kept_BV):
            return jnp.sum(jnp.where(kept_BV, weights_BV, 0.0), axis=1) >= needed_B

        threshold_B = jnp.where(rows.top_p_B < 1, _largest_threshold(weights_BV, is_enough), 0.0)
        return jnp.where(weights_BV >= threshold_B[:, None], weights_BV, 0.0)

    weights_BV = lax.cond(jnp.any(rows.top_k_B > 0), top_k, lambda same: same, weights_BV)
    weights_BV = lax.cond(jnp.any(rows.top_p_B < 1), top_p, lambda same: same, weights_BV)
    return jnp.where(weights_BV >= rows.min_p_B[:, None], weights_BV, 0.0)


def _largest_threshold(weights_BV, is_enough: Callable[[jax.Array], jax.Array]):
    """The largest threshold [B] with `is_enough(weights >= threshold)`, or 0.

    The bits of a non-negative float are ordered like the float itself, so the answer is built from
    its highest bit down: 31 passes over the weights, exact even for ties.
    """

    def try_bit(step, bits_B):
        tried_B = bits_B | (jnp.int32(1) << (30 - step))
        threshold_B1 = lax.bitcast_convert_type(tried_B, jnp.float32)[:, None]
        return jnp.where(is_enough(weights_BV >= threshold_B1), tried_B, bits_B)

    bits_B = lax.fori_loop(0, 31, try_bit, jnp.zeros(weights_BV.shape[0], jnp.int32))
    return lax.bitcast_convert_type(bits_B, jnp.float32)
