"""Serving's forward pass is the model's: the same logits, with other layouts and a cache."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from dipaco.model import inference, lm
from dipaco.model.cache import empty_cache
from dipaco.model.kernels import compiling_for
from tests.model.conftest import GROUPED, TIED

forward = jax.jit(lm.forward, static_argnums=0)


@jax.jit(static_argnums=0)
def extend(config, prepared, tokens_BT, starts_B, blocks):
    x_DN, blocks = inference.extend(config, prepared, tokens_BT, starts_B, blocks)
    logits_NV = inference.logits(config, prepared, x_DN)
    return logits_NV.reshape(*tokens_BT.shape, -1), blocks


def _empty(config, batch, slots):
    return {
        name: kept for name, kept in empty_cache(config, batch, slots).items() if name[0] == "b"
    }


both_ways = pytest.mark.parametrize("as_rows", [True, False], ids=["rows", "columns"])


@both_ways
def test_prompts_and_then_single_tokens_give_the_logits_of_the_full_forward(
    config, parts, tokens_BT, as_rows
):
    full, _ = forward(config, parts, tokens_BT)
    lengths, rows = np.array([3, 7, 1], np.int32), np.arange(3)
    prepared, starts = inference.prepare(config, parts, as_rows), np.zeros(3, np.int32)
    first, blocks = extend(config, prepared, tokens_BT[:, :8], starts, _empty(config, 3, 16))
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(first[row, :length], full[row, :length], atol=3e-5)
    for at in (lengths + done for done in range(5)):  # each row goes on from its own end
        step, blocks = extend(config, prepared, tokens_BT[rows, at][:, None], at, blocks)
        np.testing.assert_allclose(step[:, 0], full[rows, at], atol=3e-5)


@pytest.mark.parametrize(
    ("config", "as_rows"), [(GROUPED, True), (TIED, False)], ids=["rows", "columns, tied"]
)
def test_bfloat16_rounds_as_the_full_forward_does(config, parts, tokens_BT, as_rows, monkeypatch):
    monkeypatch.setattr(inference, "serving_dtype", lambda config: config.compute_dtype)
    low = dataclasses.replace(config, compute_dtype="bfloat16")
    full, _ = forward(low, parts, tokens_BT)
    prepared, start = inference.prepare(low, parts, as_rows), np.zeros(3, np.int32)
    said, _ = extend(low, prepared, tokens_BT, start, _empty(low, 3, 12))
    exact, _ = forward(config, parts, tokens_BT)
    np.testing.assert_allclose(said, full, atol=0.02)
    assert np.abs(full - exact).max() > 0.002  # it does round


def test_a_module_is_prepared_before_it_is_part_of_a_path(config, parts):
    whole = inference.prepare(config, parts)
    pieces = [inference.prepare(config, {name: part}) for name, part in parts.items()]
    together = {name: part for piece in pieces for name, part in piece.items()}
    jax.tree.map(np.testing.assert_array_equal, together, whole)


def test_preparing_takes_as_many_bytes_and_half_for_bfloat16_if_no_cpu(config, parts):
    def num_bytes(tree):
        return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))

    assert num_bytes(inference.prepare(config, parts)) == num_bytes(parts)
    low = dataclasses.replace(config, compute_dtype="bfloat16")
    blocks = {name: part for name, part in parts.items() if name.startswith("block")}
    assert num_bytes(inference.prepare(low, blocks)) == num_bytes(blocks)  # a CPU multiplies those
    with compiling_for([types.SimpleNamespace(platform="gpu")]):
        assert num_bytes(inference.prepare(low, blocks)) < 0.6 * num_bytes(blocks)
