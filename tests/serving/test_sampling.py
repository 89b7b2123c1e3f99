"""Sampling: which tokens can be drawn, and how often."""

import jax
import numpy as np
import pytest

from dipaco.errors import BadSetting
from dipaco.serving.decoding.sampling import (
    SamplingSettings,
    choice_seed,
    likeliest,
    log_probabilities,
    sample,
    stack_settings,
    uniforms,
)

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
NUM_DRAWS = 2000
SLOTS = 6  # of every history: one program draws
NOTHING_SEEN = np.zeros((NUM_DRAWS, SLOTS), np.int32), np.zeros(NUM_DRAWS, np.int32)
draw = jax.jit(sample)


def _shares(history=NOTHING_SEEN, **settings):
    """The share of draws that gave each token; one row for each draw."""
    rows = stack_settings([SamplingSettings(**{"temperature": 1.0, **settings})] * NUM_DRAWS)
    logits_BV = np.repeat(LOGITS[None], NUM_DRAWS, axis=0)
    tokens = draw(logits_BV, rows, uniforms(0, NUM_DRAWS), *history)
    return np.bincount(tokens, minlength=4) / NUM_DRAWS


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.5}, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 1e-9}, [0, 1, 0, 0]),
        ({"top_k": 3, "top_p": 0.5}, [0, 4 / 7, 0, 3 / 7]),
        ({"min_p": 0.4}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"temperature": 0.5, "min_p": 0.5}, [0, 16 / 25, 0, 9 / 25]),
    ],
    ids=str,
)
def test_tokens_are_drawn_with_their_probability(settings, expected):
    shares = _shares(**settings)
    np.testing.assert_allclose(shares, expected, atol=0.04)
    np.testing.assert_array_equal(shares == 0, np.array(expected) == 0)


def test_a_repetition_penalty_changes_only_tokens_that_were_seen():
    # All logits are negative here, so a penalty of 2 doubles them: squares the probability.
    # Token 2 is in the history's second slot, beyond the length of a row of one token.
    seen = np.full((NUM_DRAWS, SLOTS), [1, *[2] * 5], np.int32), np.ones(NUM_DRAWS, np.int32)
    weights = np.array([0.1, 0.16, 0.2, 0.3])
    shares = _shares(history=seen, repetition_penalty=2.0)
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.04)
    greedy = _shares(history=seen, repetition_penalty=2.0, temperature=0.0)
    np.testing.assert_array_equal(greedy, [0, 0, 0, 1])


def test_presence_and_frequency_penalties_count_the_tokens_that_were_made():
    # The prompt is tokens 3 and 3; token 1 was made twice, token 2 once; 0 is beyond the length.
    rows = stack_settings(
        [
            SamplingSettings(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25),
            SamplingSettings(temperature=1.0),
        ]
        * (NUM_DRAWS // 2),
        prompt_lengths=[2] * NUM_DRAWS,
    )
    seen = np.full((NUM_DRAWS, SLOTS), [3, 3, 1, 2, 1, 0], np.int32)
    history = seen, np.full(NUM_DRAWS, 5, np.int32)
    logits_BV = np.repeat(LOGITS[None], NUM_DRAWS, axis=0)
    tokens = np.asarray(draw(logits_BV, rows, uniforms(0, NUM_DRAWS), *history))
    weights = np.exp(LOGITS - [0, 0.5 + 2 * 0.25, 0.5 + 0.25, 0])
    shares = np.bincount(tokens[::2], minlength=4) / (NUM_DRAWS // 2)
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.05)
    others = np.bincount(tokens[1::2], minlength=4) / (NUM_DRAWS // 2)
    np.testing.assert_allclose(others, [0.1, 0.4, 0.2, 0.3], atol=0.05)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.6, "top_k": 20},
        {"top_p": 0.8},
        {"min_p": 0.05, "logit_bias": ((150, 3.0), (3, -100.0))},
        {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    ],
    ids=str,
)
def test_tokens_of_several_groups_are_drawn_with_their_probability(settings):
    num_draws, vocabulary = 20_000, 200
    setting = SamplingSettings(**{"temperature": 1.0, **settings})
    logits = np.random.default_rng(3).normal(0, 2, vocabulary).astype(np.float32)
    logits[70:130] = -np.inf  # a group between has none
    made = np.argsort(-logits)[[0, 1, 1]].astype(np.int32)
    drawn = draw(
        np.repeat(logits[None], num_draws, axis=0),
        stack_settings([setting] * num_draws),
        uniforms(5, num_draws),
        np.repeat(made[None], num_draws, axis=0),
        np.full(num_draws, 3, np.int32),
    )
    expected = logits.astype(np.float64)
    for token, bias in setting.logit_bias:
        expected[token] += bias
    count = np.bincount(made, minlength=vocabulary)
    penalty = setting.repetition_penalty
    penalised = np.where(expected > 0, expected / penalty, expected * penalty)
    expected = np.where(count > 0, penalised, expected)
    expected -= setting.frequency_penalty * count + setting.presence_penalty * (count > 0)
    weights = np.exp((expected - expected.max()) / setting.temperature)
    order = np.argsort(-weights)
    weights[order[setting.top_k or vocabulary :]] = 0
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= setting.top_p * weights.sum()]] = 0
    weights[weights < setting.min_p] = 0
    probabilities = weights / weights.sum()
    shares = np.bincount(drawn, minlength=vocabulary) / num_draws
    deviations = np.sqrt(probabilities * (1 - probabilities) / num_draws)
    assert (np.abs(shares - probabilities) <= 5 * deviations + 1e-12).all()
    assert not shares[probabilities == 0].any()
    # As many draws from the rare ones together as there should be.
    rare = probabilities < 1e-3
    rare_share = probabilities[rare].sum()
    deviation = np.sqrt(rare_share / num_draws)
    assert abs(shares[rare].sum() - rare_share) <= 5 * deviation


def test_rounding_changes_few_draws():
    num_rows, vocabulary = 16, 32_000
    rng = np.random.default_rng(0)
    rows = stack_settings([SamplingSettings(temperature=1.0)] * num_rows)
    history = np.zeros((num_rows, 1), np.int32), np.zeros(num_rows, np.int32)
    logits_BV = rng.normal(0, 3, (num_rows, vocabulary)).astype(np.float32)
    noise_BV = rng.normal(0, 1e-6, logits_BV.shape).astype(np.float32)
    num_changed = sum(
        np.sum(np.asarray(draw(logits_BV, rows, each, *history) != other))
        for each in np.split(uniforms(1, 75 * num_rows), 75)
        for other in [draw(logits_BV + noise_BV, rows, each, *history)]
    )
    # Of 1,200; along one sum over all tokens four were.
    assert num_changed <= 1


@pytest.mark.parametrize("vocabulary", [3, 64, 200])
def test_the_likeliest_is_the_argmax_and_the_first_of_equals(vocabulary):
    logits_BV = np.random.default_rng(0).integers(0, 9, (5, vocabulary)).astype(np.float32)
    np.testing.assert_array_equal(likeliest(logits_BV), np.argmax(logits_BV, axis=1))


def test_log_probabilities_are_those_of_the_softmax_best_first():
    chosen, tokens, values = log_probabilities(LOGITS[None], np.array([2]), 3)
    np.testing.assert_allclose(chosen, np.log([0.2]), rtol=1e-5)
    np.testing.assert_array_equal(tokens, [[1, 3, 2]])
    np.testing.assert_allclose(values, np.log([[0.4, 0.3, 0.2]]), rtol=1e-5)


def test_uniforms_depend_on_the_seed_only_and_a_longer_array_extends_a_shorter_one():
    assert uniforms(7, 5).shape == (5, 2)
    np.testing.assert_array_equal(uniforms(7, 5), uniforms(7, 9)[:5])
    assert not np.array_equal(uniforms(7, 5), uniforms(2**63 + 7, 5))


def test_seeds_of_choices_repeat_and_no_two_are_equal():
    places = [(seed, prompt, nth) for seed in range(9) for prompt in range(9) for nth in range(9)]
    seeds = [choice_seed(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert seeds == [choice_seed(*place) for place in places]
    assert choice_seed(7, 0, 0) == 7
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-30, 2e-38, 1e-39, 1e-300])
def test_a_temperature_near_zero_is_greedy(temperature):
    logits_BV = np.random.default_rng(0).normal(0, 3, (64, 300)).astype(np.float32)
    history = np.zeros((64, 1), np.int32), np.zeros(64, np.int32)
    for more in ({}, {"top_k": 40, "top_p": 0.9, "min_p": 0.05}):
        rows = stack_settings([SamplingSettings(temperature=temperature, **more)] * 64)
        drawn = draw(logits_BV, rows, uniforms(0, 64), *history)
        np.testing.assert_array_equal(drawn, np.argmax(logits_BV, axis=1))


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-38},  # any logit of 3 would be none any more
    ],
    ids=str,
)
def test_an_invalid_setting_is_named(bad):
    with pytest.raises(BadSetting, match=next(iter(bad))):
        SamplingSettings(**bad)
