"""Texts of a path: the likeliest tokens are the model's own, and a draw has no neighbours."""

import jax
import numpy as np
import pytest

from dipaco.evaluation.samples import ROWS_AT_ONCE, continue_prompts
from dipaco.model import lm
from tests.model.conftest import GROUPED, TINY, lively

PROMPT, STEPS = 5, 6
PROMPTS = np.random.default_rng(2).integers(
    0, TINY.vocab_size, (ROWS_AT_ONCE + 1, PROMPT), np.int32
)


def drawn(config=TINY, prompts=PROMPTS, numbers=None, temperature=1.0, seed=3):
    numbers = range(len(prompts)) if numbers is None else numbers
    return continue_prompts(
        config,
        lively(config),
        prompts,
        list(numbers),
        steps=STEPS,
        temperature=temperature,
        seed=seed,
    )


@pytest.mark.parametrize("config", [TINY, GROUPED], ids=["llama", "qwen3"])
def test_at_temperature_0_each_token_is_the_likeliest_of_the_whole_forward_pass(config):
    said = drawn(config, temperature=0.0)
    text = np.concatenate([PROMPTS, said], axis=1)
    logits_BTV, _ = jax.jit(lm.forward, static_argnums=0)(config, lively(config), text)
    likeliest = np.argmax(logits_BTV, axis=-1)
    np.testing.assert_array_equal(likeliest[:, PROMPT - 1 : -1], said)


def test_a_draw_depends_on_the_number_of_its_prompt_and_on_no_other_prompt():
    together = drawn()
    for order in ([4], [3, 1], [0, 4, 2]):
        np.testing.assert_array_equal(drawn(prompts=PROMPTS[order], numbers=order), together[order])
    other = drawn(prompts=PROMPTS[:1], numbers=[1])
    assert (other != together[:1]).any()


def test_the_seed_makes_the_same_text_again_and_another_another():
    np.testing.assert_array_equal(drawn(), drawn())
    assert (drawn() != drawn(seed=4)).any()
    assert (drawn() != drawn(temperature=0.0)).any()


def test_the_colder_the_likelier():
    np.testing.assert_array_equal(drawn(temperature=1e-4), drawn(temperature=0.0))


def test_no_prompt_no_text():
    assert drawn(prompts=PROMPTS[:0]).shape == (0, STEPS)
