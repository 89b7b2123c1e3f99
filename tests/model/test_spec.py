"""Descriptions of parameters agree with the arrays."""

import dataclasses

import jax
import numpy as np

from dipaco.model.attention import Seen
from dipaco.model.lm import Block
from dipaco.model.spec import describe, initialise


def test_arrays_are_as_described(config):
    specs, arrays = describe(config), initialise(config, jax.random.key(0))
    assert jax.tree.structure(specs) == jax.tree.structure(arrays)
    for spec, array in zip(jax.tree.leaves(specs), jax.tree.leaves(arrays), strict=True):
        assert (spec.shape, spec.dtype) == (array.shape, array.dtype)
        assert len(spec.axes) == array.ndim


def test_flax_declares_the_parameters_that_are_described(config):
    specs = describe(config)["block_00"]
    x = np.zeros((1, 3, config.d_model), np.float32)
    turns, positions = np.zeros((2, 1, 3, config.head_size // 2), np.float32), np.zeros((1, 3), int)
    made = jax.eval_shape(
        Block(specs, config).init,
        jax.random.key(0),
        x,
        turns,
        positions,
        Seen(np.ones((1, 3, 3), bool)),
        None,
    )["params"]
    assert jax.tree.map(lambda spec: spec.shape, specs) == jax.tree.map(lambda a: a.shape, made)


def test_a_blocks_initial_values_do_not_depend_on_the_number_of_blocks(config):
    few = initialise(config, jax.random.key(0))
    many = initialise(dataclasses.replace(config, num_layers=4), jax.random.key(0))
    query = [parts["block_01"]["attention"]["query"] for parts in (few, many)]
    np.testing.assert_array_equal(*query)


def test_no_two_parameters_have_the_same_initial_values(config):
    arrays = initialise(config, jax.random.key(0))
    matrices = [np.ravel(x)[:8].tobytes() for x in jax.tree.leaves(arrays) if x.ndim > 1]
    assert len(set(matrices)) == len(matrices)
