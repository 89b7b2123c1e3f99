"""Gradients averaged at every step: its limits, and the runtime's loop against the oracle's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dipaco import trees
from dipaco.algorithm import synchronous
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.step import gradient_function
from dipaco.inner.synchronous import make_module_update, synchronous_steps
from dipaco.outer.gradient import path_weights
from dipaco.topology import ModuleId
from tests.support.two_layers import (
    ADAMW,
    FLAT,
    GRID,
    INNER,
    RATE,
    assert_close,
    batch_of,
    dense,
    initial_parts,
    loss_fn,
    start,
)

STEPS = 6


def train_synchronously(topology, *, clip_norm=1e6, documents=None, batch=batch_of):
    """All modules after six steps of all paths together."""
    settings = dataclasses.replace(INNER, clip_norm=clip_norm)
    compiled = make_module_update(settings)
    mean_gradient = jax.jit(gradient_function(loss_fn, settings))
    modules = jax.tree.map(jnp.array, start(topology))
    optimizer = make_optimizer(settings, is_clipped=True)
    *_, modules = synchronous.train(
        topology,
        modules,
        {module: optimizer.init(parts) for module, parts in modules.items()},
        lambda path, step, parts: mean_gradient(parts, batch(path, step))[0],
        lambda step, *arguments: compiled(*arguments, np.float32(RATE)),
        documents or [1] * topology.num_paths,
        steps=range(STEPS),
        clip_norm=clip_norm,
    )
    return modules


def plain_adamw(batches, clip_norm=1e6):
    """Parameters after a step on each batch, by optax."""
    optimizer = optax.chain(optax.clip_by_global_norm(clip_norm), ADAMW)
    parts = jax.tree.map(jnp.array, initial_parts())
    state = optimizer.init(parts)
    for batch in batches:
        gradient = jax.grad(lambda parts, b=batch: loss_fn(parts, b)[0] / b["y"].size)(parts)
        updates, state = optimizer.update(gradient, state, parts)
        parts = optax.apply_updates(parts, updates)
    return parts


def union_of(batches):
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize("clip_norm", [1e6, 0.05])
def test_synchronous_with_one_path_is_plain_adamw(clip_norm):
    modules = train_synchronously(dense(1), clip_norm=clip_norm)
    expected = plain_adamw([batch_of(0, step) for step in range(STEPS)], clip_norm)
    assert_close(modules[ModuleId("all", 0)], expected)
    if clip_norm < 1:  # the clipping is felt
        free = plain_adamw([batch_of(0, step) for step in range(STEPS)])
        assert not np.allclose(free["embed"]["w"], expected["embed"]["w"], rtol=1e-3)


@pytest.mark.parametrize("clip_norm", [1e6, 0.05])
def test_synchronous_with_all_shared_is_one_model_with_the_batches_together(clip_norm):
    modules = train_synchronously(dense(3), clip_norm=clip_norm)
    unions = [union_of([batch_of(path, step) for path in range(3)]) for step in range(STEPS)]
    assert_close(modules[ModuleId("all", 0)], plain_adamw(unions, clip_norm), rtol=1e-4)


@pytest.mark.parametrize("clip_norm", [1e6, 0.05])
def test_synchronous_with_nothing_shared_is_as_many_models(clip_norm):
    modules = train_synchronously(FLAT, clip_norm=clip_norm)
    for path in range(3):
        expected = plain_adamw([batch_of(path, step) for step in range(STEPS)], clip_norm)
        assert_close(modules[ModuleId("all", path)], expected)


def test_synchronous_shards_weigh_by_their_documents():
    """Twice the documents are as good as the same path twice."""

    def of_three(path, step):
        return batch_of(min(path, 1), step)

    weighed = train_synchronously(dense(2), documents=[1, 2])
    twice = train_synchronously(dense(3), batch=of_three)
    assert_close(weighed, twice, rtol=1e-4)


def test_synchronous_modules_of_a_grid_move_with_the_mean_of_their_own_paths():
    """Where all paths have the same data, a grid is one model four times."""
    modules = train_synchronously(GRID, batch=lambda path, step: batch_of(0, step))
    expected = plain_adamw([batch_of(0, step) for step in range(STEPS)])
    for module in GRID.modules:
        assert_close(modules[module], {part: expected[part] for part in GRID.parts_of(module)})
    differing = train_synchronously(GRID)
    assert not np.allclose(
        differing[ModuleId("early", 0)]["embed"]["w"], differing[ModuleId("early", 1)]["embed"]["w"]
    )


@pytest.mark.parametrize("clip_norm", [1e6, 0.05])
@pytest.mark.parametrize("topology", [GRID, FLAT, dense(3)])
def test_the_loop_of_the_runtime_gives_the_bits_of_the_oracle(topology, clip_norm):
    settings = dataclasses.replace(INNER, clip_norm=clip_norm)
    documents = [3, 1, 4, 1][: topology.num_paths]
    compiled = make_module_update(settings)
    mean_gradient = jax.jit(gradient_function(loss_fn, settings))
    optimizer = make_optimizer(settings, is_clipped=True)

    def gradient_of(path, step, parts):
        return mean_gradient(parts, batch_of(path, step))[0]

    def update(step, *arguments):
        return compiled(*arguments, np.float32(RATE))

    def begin():
        modules = jax.tree.map(jnp.array, start(topology))
        states = {module: optimizer.init(parts) for module, parts in modules.items()}
        return modules, states, gradient_of, update

    weights = {}
    for module in topology.modules:
        paths = topology.paths_through(module)
        alphas = path_weights([documents[path] for path in paths]).astype(np.float32)
        weights[module] = dict(zip(paths, alphas, strict=True))
    options = {"steps": range(STEPS), "clip_norm": clip_norm}
    oracle = synchronous.train(topology, *begin(), documents, **options)
    runtime = synchronous_steps(topology, *begin(), weights, **options)
    for expected, (modules, _) in zip(oracle, runtime, strict=True):
        for module in topology.modules:
            assert trees.digest(jax.device_get(modules[module])) == trees.digest(
                jax.device_get(expected[module])
            )
