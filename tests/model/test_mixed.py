"""A step of rows of several paths is a step of each path alone."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from dipaco.model import inference, mixed
from dipaco.model.cache import empty_cache
from dipaco.model.config import ModelConfig
from dipaco.model.mixed import LevelTiles, MixedParts, ModuleStack
from dipaco.model.spec import describe

CONFIG = ModelConfig(
    vocab_size=40, d_model=16, num_layers=3, num_heads=4, num_kv_heads=2, d_ff=24, max_length=16
)
# The outer blocks belong to one level, the inner one to another; norm and head to a third.
OUTER, INNER, TOP = ("embed", "block_00", "block_02"), ("block_01",), ("final_norm", "head")
ROWS, SLOTS = 6, 8


@jax.jit(static_argnums=0)
def step(config, parts, tokens_B, starts_B, blocks):
    x, blocks = mixed.extend(config, parts, tokens_B, starts_B, blocks)
    return mixed.logits(config, parts, x), blocks


@jax.jit(static_argnums=0)
def step_alone(config, prepared, tokens_BT, starts_B, blocks):
    x_DN, blocks = inference.extend(config, prepared, tokens_BT, starts_B, blocks)
    return inference.logits(config, prepared, x_DN), blocks


def modules(config, parts, seed, as_rows):
    """A module of some parts: its every parameter matters."""
    rng = np.random.default_rng(seed)
    draw = lambda spec: rng.normal(0, 0.5, spec.shape).astype(np.float32)  # noqa: E731
    own = {part: jax.tree.map(draw, describe(config)[part]) for part in parts if part != "head"}
    if "head" in parts and not config.tied_head:
        own["head"] = jax.tree.map(draw, describe(config)["head"])
    return inference.prepare(config, own, as_rows)


def tiles(choice_B, modules, num_tiles, columns, in_stack=False):
    """Rows by their module, in tiles; those that are left over repeat the first module."""
    rows_TC, places_B = np.zeros((num_tiles, columns), np.int32), np.zeros(ROWS, np.int32)
    chosen = []
    for number, module in enumerate(modules):
        rows = np.flatnonzero(np.array(choice_B) == number)
        for start in range(0, len(rows), columns):
            tile = rows[start : start + columns]
            places_B[tile] = len(chosen) * columns + np.arange(len(tile))
            rows_TC[len(chosen), : len(tile)] = tile
            chosen.append(module)
    chosen += [modules[0]] * (num_tiles - len(chosen))
    if not in_stack:
        return LevelTiles(tuple(chosen), rows_TC, places_B)
    stack = jax.tree.map(lambda *leaves: np.stack(leaves), *chosen)
    return LevelTiles(ModuleStack(stack), rows_TC, places_B)


QK = {"qk_norm": True, "tied_head": True}


@pytest.mark.parametrize(
    ("change", "as_rows", "in_stack"),
    [({}, True, (True, False)), (QK, True, (True, True)), (QK, False, (False, False))],
    ids=["rows, one stack", "rows, stacks, tied", "columns, tied"],
)
def test_each_row_gets_the_logits_and_the_cache_of_its_own_path(change, as_rows, in_stack):
    config = dataclasses.replace(CONFIG, **change)
    outer = [modules(config, OUTER, seed, as_rows) for seed in range(2)]
    inner = [modules(config, INNER, 10 + seed, as_rows) for seed in range(3)]
    top = modules(config, TOP, 20, as_rows)
    outer_B, inner_B = [1, 0, 1, 1, 0, 1], [2, 0, 2, 0, 1, 2]
    whole = LevelTiles((top,), np.arange(ROWS)[None], np.arange(ROWS))
    outer_tiles = tiles(outer_B, outer, 4, 2, in_stack[0])
    parts = MixedParts((outer_tiles, tiles(inner_B, inner, 6, 2, in_stack[1]), whole))

    rng = np.random.default_rng(0)
    blocks = empty_cache(config, ROWS, SLOTS)
    del blocks["length"]
    blocks = jax.tree.map(lambda leaf: rng.normal(0, 1, leaf.shape).astype(np.float32), blocks)
    tokens_B = rng.integers(0, config.vocab_size, ROWS).astype(np.int32)
    starts_B = np.array([3, 0, 6, 2, 5, 1], np.int32)
    logits_BV, after = step(config, parts, tokens_B, starts_B, blocks)
    for row in range(ROWS):
        path = outer[outer_B[row]] | inner[inner_B[row]] | top
        own = slice(row, row + 1)
        kept = jax.tree.map(lambda leaf: leaf[own], blocks)  # noqa: B023
        alone_1V, kept = step_alone(config, path, tokens_B[own, None], starts_B[own], kept)
        np.testing.assert_allclose(logits_BV[row], alone_1V[0], atol=3e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a[row], b[0], atol=3e-5),  # noqa: B023
            after,
            kept,
        )


@pytest.mark.parametrize("in_stack", [False, True])
def test_where_tokens_are_rows_they_are_so_from_the_embedding_to_the_head(in_stack):
    """No matrix is transposed on the way."""
    outer, inner = (modules(CONFIG, parts, 0, as_rows=True) for parts in (OUTER, INNER))
    top = modules(CONFIG, TOP, 0, as_rows=True)
    whole = LevelTiles((top,), np.arange(ROWS)[None], np.arange(ROWS))
    two = [0, 1, 0, 1, 0, 1]
    levels = (tiles(two, [module] * 2, 4, 2, in_stack) for module in (outer, inner))
    parts = MixedParts((*levels, whole))
    blocks = empty_cache(CONFIG, ROWS, SLOTS)
    del blocks["length"]
    tokens_B = starts_B = np.zeros(ROWS, np.int32)

    def transposed(function, *arguments):
        program = jax.make_jaxpr(functools.partial(function, CONFIG))(*arguments)
        own = (each for each in program.eqns if each.primitive.name == "transpose")
        return [shape for each in own if len(shape := each.outvars[0].aval.shape) == 2]

    extended = parts, tokens_B, starts_B, blocks
    assert not transposed(mixed.extend, *extended)
    x, _ = jax.eval_shape(functools.partial(mixed.extend, CONFIG), *extended)
    hidden = np.zeros(x.shape, x.dtype)
    assert not transposed(mixed.logits, parts, hidden)
