"""Sizes: what is refused, and what is counted."""

import dataclasses

import jax
import pytest

from dipaco.errors import BadSetting
from dipaco.model.config import (
    MeshConfig,
    ModelConfig,
    flops_per_token,
    num_parameters,
    part_names,
    part_parameters,
)
from dipaco.model.errors import BadMesh
from dipaco.model.spec import describe, initialise

QUICKSTART = ModelConfig(
    vocab_size=2048, d_model=96, num_layers=4, num_heads=4, d_ff=256, max_length=128
)


def test_counts_are_those_of_the_arrays(config):
    arrays = jax.eval_shape(lambda key: initialise(config, key), jax.random.key(0))
    counted = {part: sum(x.size for x in jax.tree.leaves(tree)) for part, tree in arrays.items()}
    assert part_parameters(config) == counted
    assert num_parameters(config) == sum(counted.values())
    assert part_names(config) == tuple(describe(config))


def test_the_quickstart_has_0_84_million_parameters():
    assert num_parameters(QUICKSTART) == 836_448


def test_a_training_token_costs_six_flops_per_parameter_in_products_and_attention():
    matrices = 4 * (4 * 96 * 96 + 3 * 96 * 256) + 2048 * 96
    assert flops_per_token(QUICKSTART, 128) == 6 * matrices + 12 * 4 * 96 * 128
    assert 3 * flops_per_token(QUICKSTART, 128, training=False) == flops_per_token(QUICKSTART, 128)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_heads": 5}, "divisor of d_model"),
        ({"num_kv_heads": 3}, "divisor of num_heads"),
        ({"head_dim": 7}, "even"),
        ({"vocab_size": 0}, "1 or more"),
        ({"compute_dtype": "float16"}, "bfloat16"),
        ({"rope_theta": 0.0}, "above 0"),
    ],
)
def test_an_invalid_size_is_named(changes, said):
    with pytest.raises(BadSetting, match=said):
        dataclasses.replace(QUICKSTART, **changes)


def test_the_remaining_devices_fill_one_axis_of_a_mesh():
    assert MeshConfig(data=-1, tensor=2).shape(8) == (4, 1, 2)
    assert MeshConfig().shape(8) == (1, 1, 1)


@pytest.mark.parametrize("sizes", [{"data": 16}, {"data": -1, "tensor": 3}])
def test_a_mesh_that_does_not_fit_is_refused(sizes):
    with pytest.raises(BadMesh, match="8 devices"):
        MeshConfig(**sizes).shape(8)


def test_two_axes_cannot_both_have_the_remaining_devices():
    with pytest.raises(BadMesh, match="at most one"):
        MeshConfig(data=-1, fsdp=-1)
