"""The compiled programs of serving: buckets, the pool's shapes, scores of a prompt."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from dipaco.model.config import part_names
from dipaco.model.inference import prepare
from dipaco.model.lm import forward
from dipaco.model.mixed import MixedParts
from dipaco.model.spec import describe
from dipaco.serving.decoding import decode
from dipaco.serving.decoding.batch import plan_block
from dipaco.serving.decoding.decode import (
    DRAWN,
    buckets,
    decode_block,
    gather_rows,
    make_pool,
    prefill,
    score_prompt,
    smallest_fitting,
)
from dipaco.serving.decoding.mixing import LevelShape, Spread, StepShape, tiles_of
from dipaco.serving.decoding.sampling import NUM_UNIFORMS, SamplingSettings, stack_settings
from tests.support.serving_rig import CONFIG, ForcedTokens, random_parts

full = jax.jit(forward, static_argnums=0)


def test_buckets_are_powers_of_two_up_to_the_largest():
    assert buckets(32, 100) == (32, 64, 100)
    assert buckets(32, 64) == (32, 64)
    assert buckets(32, 16) == (16,)


@pytest.mark.parametrize(("needed", "size"), [(1, 32), (32, 32), (33, 64), (65, 100), (200, 100)])
def test_the_smallest_bucket_that_fits_is_used_or_else_the_largest(needed, size):
    assert smallest_fitting((32, 64, 100), needed) == size


def test_a_pool_has_a_spare_row_and_a_slot_for_every_token_of_the_context():
    shapes = {leaf.shape for leaf in jax.tree.leaves(make_pool(CONFIG, 3))}
    assert shapes == {(4, CONFIG.kv_heads, CONFIG.max_length, CONFIG.head_size)}


def test_a_long_text_is_read_in_parts_and_needs_no_memory_for_all_its_scores(monkeypatch):
    parts, rows = prepare(CONFIG, random_parts(0)), np.zeros(1, np.int32)
    tokens = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (1, 64), np.int32)
    whole = (
        score_prompt(CONFIG, parts, tokens),
        prefill(CONFIG, parts, make_pool(CONFIG, 1), tokens, rows),
    )
    monkeypatch.setattr(decode, "MOST_SCORES", 64 * 24)  # three parts, of which the last overlaps
    for program in (score_prompt, prefill):
        program.clear_cache()
    in_parts = (
        score_prompt(CONFIG, parts, tokens),
        prefill(CONFIG, parts, make_pool(CONFIG, 1), tokens, rows),
    )
    for program in (score_prompt, prefill):
        program.clear_cache()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), in_parts, whole)

    monkeypatch.undo()
    long = dataclasses.replace(CONFIG, max_length=1 << 15)
    pool = jax.eval_shape(lambda: make_pool(long, 1))
    tokens = jax.ShapeDtypeStruct((1, long.max_length), np.int32)
    compiled = prefill.lower(long, parts, pool, tokens, rows).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1 << 30, "all scores are more"


def test_a_prompt_is_scored_as_the_full_forward_scores_it():
    parts = random_parts(0)
    tokens = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (1, 64), np.int32)
    block = score_prompt(CONFIG, prepare(CONFIG, parts), tokens)
    logits, _ = full(CONFIG, parts, tokens)
    logprobs = np.asarray(jax.nn.log_softmax(logits[0]))[:-1]
    expected = logprobs[np.arange(63), tokens[0, 1:]]
    np.testing.assert_allclose(block.logprob[1:, 0], expected, atol=3e-5)
    np.testing.assert_array_equal(block.top_token[1:, 0, 0], logprobs.argmax(axis=1))
    np.testing.assert_allclose(block.top_logprob[1:, 0], -np.sort(-logprobs)[:, :20], atol=3e-5)


def arguments(prepared, given_nB, wants_logprobs=False):
    """Of a block for two rows that begin with one token each."""
    slots, steps = 32, len(given_nB)
    history_BS = np.zeros((2, slots), np.int32)
    history_BS[:, 0] = 3, 5
    pool, rows_B = make_pool(CONFIG, 2), np.arange(2, dtype=np.int32)
    return {
        "prepared": prepared,
        "pool": pool,
        "gathered": gather_rows(pool, rows_B, slots),
        "rows_B": rows_B,
        "history_BS": history_BS,
        "lengths_B": np.ones(2, np.int32),
        "settings": stack_settings([SamplingSettings()] * 2),
        "uniforms_nBU": np.zeros((steps, 2, NUM_UNIFORMS), np.float32),
        "wants_logprobs": np.array(wants_logprobs),
        "given_nB": given_nB,
    }


def in_tiles(prepared):
    """A path as a step of several paths takes it."""
    shape = StepShape(2, Spread.EVEN)
    return MixedParts((tiles_of(LevelShape(part_names(CONFIG), 3), [prepared] * 2, shape),))


several_or_one = pytest.mark.parametrize("of", [in_tiles, dict], ids=["several", "one"])


@several_or_one
def test_given_tokens_are_read_and_have_log_probabilities_where_a_row_wants_them(of):
    parts, steps = random_parts(0), 6
    given_nB = np.random.default_rng(1).integers(0, CONFIG.vocab_size, (steps, 2), np.int32)
    given_nB[-1] = DRAWN
    logits, _ = full(CONFIG, parts, np.stack([[3, 5], *given_nB[:-1]], axis=1))
    logprobs_BnV = np.asarray(jax.nn.log_softmax(logits))
    for wants_logprobs in (False, True):
        given = arguments(of(prepare(CONFIG, parts)), given_nB, wants_logprobs)
        block, *_ = decode_block(CONFIG, **given)
        np.testing.assert_array_equal(block.token[:-1], given_nB[:-1])
        np.testing.assert_array_equal(block.token[-1], logits[:, -1].argmax(axis=-1))
    expected_Bn = np.take_along_axis(logprobs_BnV, np.asarray(block.token).T[..., None], axis=2)
    np.testing.assert_allclose(block.logprob.T, expected_Bn[..., 0], atol=3e-5)


@several_or_one
def test_a_step_whose_tokens_are_all_given_makes_no_logits(of):
    config = dataclasses.replace(CONFIG, vocab_size=50)  # no other size of the model
    parts = jax.tree.map(lambda spec: np.zeros(spec.shape, np.float32), describe(config))
    of_block = arguments(of(prepare(config, parts)), np.zeros((2, 2), np.int32))
    program = jax.make_jaxpr(lambda given: decode_block(config, **given))(of_block)
    products = list(products_always_made(program.jaxpr))
    assert products
    assert not any(config.vocab_size in shape for shape in products), products


def products_always_made(jaxpr):
    """Shapes of the products of a program that are under no condition."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.outvars[0].aval.shape
        elif equation.primitive.name != "cond":
            for inner in jaxprs_in_params(equation.params):
                yield from products_always_made(inner)


def test_padding_draws_nothing(monkeypatch):
    made = []

    def counted(*inputs):
        jax.debug.callback(lambda: made.append(1))
        return logits(*inputs)

    logits = decode.logits
    monkeypatch.setattr(decode, "logits", counted)
    run = jax.jit(decode_block.__wrapped__, static_argnames="config")  # a program of its own
    # A row whose next five tokens are known, and no other.
    plan = plan_block([ForcedTokens(5)], 2, 8)
    run(CONFIG, **arguments(prepare(CONFIG, random_parts(0)), plan.given_nB))
    jax.effects_barrier()
    assert len(made) == 3
