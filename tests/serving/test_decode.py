"""Decoding: greedy is the argmax of the full forward; lengths do not compile anew."""

import jax
import numpy as np
import pytest

from dipaco.errors import ContextTooLong
from dipaco.model import lm
from dipaco.model.config import ModelConfig
from dipaco.model.spec import describe
from dipaco.serving import decode
from dipaco.serving.decode import bucket, generate
from dipaco.serving.sampling import SamplingSettings

CONFIG = ModelConfig(
    vocab_size=64,
    d_model=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    d_ff=32,
    max_length=64,
)
GREEDY, WARM = SamplingSettings(), SamplingSettings(temperature=1.0, top_k=20, top_p=0.9)
forward = jax.jit(lm.forward, static_argnums=0)


@pytest.fixture(scope="module")
def parts():
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda spec: rng.normal(0, 0.5, spec.shape).astype(np.float32), describe(CONFIG)
    )


def _generate(parts, prompt, max_new_tokens, sampling=GREEDY, seed=0, slots=None):
    settings = {"sampling": sampling, "seed": seed, "slots": slots}
    return list(generate(CONFIG, parts, prompt, max_new_tokens=max_new_tokens, **settings))


def test_greedy_decoding_is_the_argmax_of_the_full_forward(parts):
    tokens = [5, 9, 2]
    generated = _generate(parts, tokens, 20)
    padded = np.zeros((1, 32), np.int32)
    for token in generated:
        padded[0, : len(tokens)] = tokens
        logits, _ = forward(CONFIG, parts, padded)
        assert token == int(np.argmax(logits[0, len(tokens) - 1]))
        tokens.append(token)
    assert len(generated) == 20
    assert len(set(generated)) > 3


def test_the_same_seed_draws_the_same_and_another_one_others(parts):
    once, again = (_generate(parts, [1, 2], 12, WARM, seed=3) for _ in range(2))
    assert once == again == _generate(parts, [1, 2], 12, WARM, seed=3, slots=64)
    assert once != _generate(parts, [1, 2], 12, WARM, seed=4)


def test_the_stream_ends_when_the_context_is_full(parts):
    assert len(_generate(parts, [1] * 60, 100)) == 4


@pytest.mark.parametrize("asked", [0, 1, 2, 3])
def test_as_many_tokens_come_as_were_asked_for(parts, asked):
    assert len(_generate(parts, [1], asked)) == asked


def test_lengths_and_settings_do_not_compile_anew(parts):
    _generate(parts, [1, 2, 3], 4)
    before = decode.prefill._cache_size(), decode.step._cache_size()
    _generate(parts, [4, 5, 6, 7, 8], 9, WARM, seed=1)
    assert (decode.prefill._cache_size(), decode.step._cache_size()) == before


def test_buckets_are_powers_of_two_up_to_the_context():
    assert [bucket(n, 100) for n in (1, 32, 33, 64, 65)] == [32, 32, 64, 64, 100]
    assert bucket(3, 16) == 16


@pytest.mark.parametrize(
    ("prompt", "slots", "said"),
    [
        ([], None, "at least one token"),
        ([1] * 64, None, "max_length"),
        ([1] * 30, 32, "Give 64 slots"),
    ],
)
def test_a_prompt_without_room_is_refused_at_once(parts, prompt, slots, said):
    with pytest.raises(ContextTooLong, match=said):
        generate(CONFIG, parts, prompt, max_new_tokens=10, sampling=GREEDY, seed=0, slots=slots)
