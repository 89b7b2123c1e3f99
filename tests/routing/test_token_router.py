"""Routing within a document: targets by brute force, and a router that learns them."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.state import fresh as fresh_state
from dipaco.inner.step import make_step
from dipaco.routing import token_router as within


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
def test_sums_and_targets_are_those_of_what_follows(window):
    random = np.random.default_rng(0)
    values = random.normal(size=(4, 5, 7)).astype(np.float32)  # paths, documents, tokens
    lengths = np.array([7, 4, 1, 6, 7])
    label = within.targets(values, lengths, window)
    for document, length in enumerate(lengths):
        for token in range(7):
            end = length if window is None else min(length, token + 1 + window)
            expected = values[:, document, token + 1 : end].sum(axis=1, dtype=np.float64)
            got = [within.continuation_sums(v, lengths, window)[document, token] for v in values]
            np.testing.assert_allclose(got, expected, atol=1e-6)
            if token + 1 < end:
                assert label[document, token] == expected.argmax()


def test_held_out_documents_do_not_train_the_router():
    for count, share, held in ((100, 0.1, 10), (100, 0.001, 1), (2, 0.99, 1), (1, 0.5, 0)):
        learned, held_out = within.split(np.arange(count), share, np.random.default_rng(3))
        assert len(held_out) == held
        assert sorted([*learned, *held_out]) == list(range(count))
    texts = np.arange(100)
    draws = [within.split(texts, 0.1, np.random.default_rng(s))[1].tolist() for s in (3, 3, 4)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize("seed", range(5))
def test_no_text_trains_the_router_and_is_held_out(seed):
    text = np.repeat(np.arange(60) + 7, np.random.default_rng(seed).integers(1, 9, 60))
    learned, held_out = within.split(text, 0.1, np.random.default_rng(seed))
    assert sorted([*learned, *held_out]) == list(range(len(text)))
    assert not set(text[learned]) & set(text[held_out])
    assert len(held_out) == pytest.approx(0.1 * len(text), abs=1)
    for sizes, expected in (([9, 30], 9), ([40], 0)):  # none fits: the shortest; one: none
        text = np.repeat(np.arange(len(sizes)), sizes)
        assert len(within.split(text, 0.1, np.random.default_rng(seed))[1]) == expected


def test_without_a_hold_out_everything_trains_and_nothing_is_drawn():
    random = np.random.default_rng(3)
    learned, held_out = within.split(np.arange(7), 0.0, random)
    assert learned.tolist() == list(range(7))
    assert not len(held_out)
    assert random.integers(1 << 30) == np.random.default_rng(3).integers(1 << 30)


def hidden_of(model, tokens_BT):
    """A model of one table."""
    return jnp.take(model["table"], tokens_BT, axis=0)


def test_a_router_begins_without_a_preference_and_learns_which_path_follows_which_token():
    random = np.random.default_rng(0)
    model = {"table": random.normal(size=(10, 8)).astype(np.float32)}
    best = random.integers(0, 4, 10)  # the path that follows each token best
    params = within.fresh(model, 8, 4)
    tokens = random.integers(0, 10, (16, 12)).astype(np.int32)
    assert not np.asarray(within.path_logits(hidden_of, params, tokens)).any()

    settings = InnerSettings(batch_size=16, weight_decay=0.0, warmup_steps=0)
    step = make_step(functools.partial(within.loss, hidden_of), settings)
    state = fresh_state(jnp_tree(params), make_optimizer(settings))
    batch = {"tokens": tokens, "targets": best[tokens], "is_target": np.ones((16, 12), bool)}
    losses = []
    for _ in range(150):
        state, metrics = step(state, batch, np.float32(0.03))
        losses.append(float(metrics.loss))
    assert losses[0] == pytest.approx(np.log(4), rel=1e-5)
    logits = np.asarray(within.path_logits(hidden_of, state.parts, tokens))
    assert (logits.argmax(axis=-1) == best[tokens]).mean() > 0.95
    assert abs(np.asarray(state.parts["model"]["table"]) - model["table"]).max() > 1e-3


def jnp_tree(tree):
    return {
        name: jnp_tree(leaf) if isinstance(leaf, dict) else jnp.array(leaf)
        for name, leaf in tree.items()
    }


def test_only_targets_count():
    model = {"table": np.ones((4, 2), np.float32)}
    params = within.fresh(model, 2, 3)
    is_target = np.array([[True, False, False], [True, True, False]])
    batch = {
        "tokens": np.zeros((2, 3), np.int32),
        "targets": np.zeros((2, 3), np.int32),
        "is_target": is_target,
    }
    total, count = within.loss(hidden_of, params, batch)
    assert (float(total), float(count)) == (pytest.approx(3 * np.log(3), rel=1e-5), 3)


@pytest.mark.parametrize("documents", [1, 1_064, 1_065, 1_800_000])
def test_no_path_scores_more_documents_than_the_router_learns_from(documents):
    """256 paths would save 1.9 TB of scores of the paper's 1.8 million documents otherwise."""
    numbers, most = np.arange(documents) + 7, within.BATCH_SIZE + within.MOST_HELD_OUT
    chosen = within.learned_from(numbers, 1)
    assert most / 2 - 1 < len(chosen) <= most or (chosen == numbers).all()
    assert numbers[-1] - chosen[-1] < 2 * documents / most
