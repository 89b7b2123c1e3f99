"""One device and eight give the same numbers, however the parameters are divided."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from dipaco.errors import BadSetting
from dipaco.model.config import BESIDE_EMBED, MeshConfig, ModelConfig, ShardingRules
from dipaco.model.lm import forward
from dipaco.model.loss import next_token_loss
from dipaco.model.sharding import RULES, batch_sharding, make_mesh, parts_shardings
from dipaco.model.spec import describe, initialise

CONFIG = ModelConfig(
    vocab_size=64, d_model=32, num_layers=1, num_heads=4, num_kv_heads=2, d_ff=64, max_length=32
)


@functools.partial(jax.jit, static_argnums=0)
def _loss_and_gradients(config, parts, tokens_BT, segments_BT):
    def loss(parts):
        logits, _ = forward(config, parts, tokens_BT, segments=segments_BT)
        total, count = next_token_loss(logits, tokens_BT, segments_BT)
        return total / count

    return jax.value_and_grad(loss)(parts)


def _batch():
    rng = np.random.default_rng(0)
    tokens_BT = rng.integers(0, CONFIG.vocab_size, (8, 16), np.int32)
    return tokens_BT, 1 + (np.arange(16)[None] >= rng.integers(2, 14, (8, 1))).astype(np.int32)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs the eight fake devices of conftest.py")
@pytest.mark.parametrize(
    "mesh_config",
    [
        pytest.param(MeshConfig(data=-1), id="data", marks=pytest.mark.slow),
        pytest.param(MeshConfig(fsdp=8), id="fsdp", marks=pytest.mark.slow),
        pytest.param(MeshConfig(tensor=8), id="tensor"),  # cut inside a head: more than key heads
        pytest.param(MeshConfig(data=2, fsdp=2, tensor=2), id="all"),
    ],
)
def test_eight_devices_equal_one(mesh_config):
    parts, batch = initialise(CONFIG, jax.random.key(0)), _batch()
    one = _loss_and_gradients(CONFIG, parts, *batch)
    mesh = make_mesh(mesh_config)
    placed = jax.device_put(parts, parts_shardings(CONFIG, mesh))
    eight = _loss_and_gradients(CONFIG, placed, *jax.device_put(batch, batch_sharding(mesh)))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True):
        assert len(b.sharding.device_set) == 8
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_fully_sharded_parameters_take_an_eighth_of_the_memory():
    mesh = make_mesh(MeshConfig(fsdp=-1))
    shardings = parts_shardings(CONFIG, mesh)
    query = shardings["block_00"]["attention"]["query"]
    assert query.shard_shape((32, 32)) == (32 // mesh.size, 32)


def test_an_axis_that_does_not_divide_stays_whole():
    mesh = make_mesh(MeshConfig(tensor=-1))
    odd = ModelConfig(vocab_size=63, d_model=32, num_layers=1, num_heads=4, d_ff=64, max_length=8)
    table = parts_shardings(odd, mesh)["embed"]["table"]
    assert table.shard_shape((63, 32)) == (63, 32)


def test_rules_are_a_setting():
    mesh = make_mesh(MeshConfig(tensor=-1))
    shardings = parts_shardings(CONFIG, mesh, {**RULES, "vocab": ()})
    assert shardings["embed"]["table"].shard_shape((64, 32)) == (64, 32)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"batch": ("data", "data")}, r"mesh\.rules\.batch.* Expected each mesh axis once"),
        ({"embed": ("tensor",)}, r"mesh\.rules\.embed.* other axes than `mesh\.rules\.vocab`"),
        ({"heads": ("fsdp",)}, r"other axes than `mesh\.rules\.heads`"),
        ({"kv_heads": ("data", "fsdp")}, r"other axes than `mesh\.rules\.kv_heads`"),
        ({"feed_forward": ("fsdp",)}, r"other axes than `mesh\.rules\.feed_forward`"),
    ],
)
def test_rules_that_divide_an_array_twice_along_a_mesh_axis_are_refused(rules, said):
    with pytest.raises(BadSetting, match=said):
        ShardingRules(**rules)


def test_embed_is_compared_with_every_axis_that_shares_a_matrix_with_it():
    config = dataclasses.replace(CONFIG, qk_norm=True)
    beside_embed = {
        axis
        for spec in jax.tree.leaves(describe(config))
        if len(spec.axes) > 1
        for axis in spec.axes
    }
    assert beside_embed == {"embed", *BESIDE_EMBED}
