"""Stacked paths: each ends where it ends alone, bit for bit where they take turns."""

import functools
import itertools

import jax
import numpy as np
import pytest

from dipaco.errors import BadSetting, Diverged
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import adamw, learning_rates
from dipaco.inner.phase import run_phase
from dipaco.inner.stacked import make_stacked_step, stack, unstack
from dipaco.inner.state import fresh
from dipaco.inner.step import make_step

PATHS = 3


@pytest.fixture
def states(parts, settings):
    """Paths that differ, on the host; new ones each time."""

    def moved(by):
        return fresh(jax.tree.map(lambda leaf: leaf + by, parts), adamw(settings))

    def make():
        return [jax.device_get(moved(path)) for path in range(PATHS)]

    return make


@pytest.mark.parametrize("stacking", ["map", "vmap"])
def test_each_of_several_stacked_paths_ends_where_it_ends_alone(
    loss_fn, settings, states, batches, stacking
):
    step, rates = make_step(loss_fn, settings), learning_rates(settings, 8, 0, 4)
    alone = [
        run_phase(state, batches(10 * path), rates, step) for path, state in enumerate(states())
    ]
    together = run_phase(
        stack(states()),
        map(stack, zip(*(batches(10 * path) for path in range(PATHS)), strict=True)),
        rates,
        make_stacked_step(step, stacking),
    )
    assert together.losses.shape == (4, PATHS)
    assert together.targets == sum(path.targets for path in alone)
    rtol = 0 if stacking == "map" else 1e-4
    compare = functools.partial(np.testing.assert_allclose, rtol=rtol)
    for path, expected in enumerate(alone):
        jax.tree.map(compare, unstack(together.state, path), expected.state)
        compare(together.losses[:, path], expected.losses)


def test_losses_of_all_paths_are_reported_and_one_that_diverges_is_an_error(
    loss_fn, settings, states, batches
):
    told = []

    def run(spoil):
        stacked = (stack([batch] * PATHS) for batch in batches())
        step = make_stacked_step(make_step(loss_fn, settings), "map")
        rates = learning_rates(settings, 8, 0, 3)
        return run_phase(
            stack(states()),
            map(spoil, itertools.count(1), stacked),
            rates,
            step,
            on_step=lambda number, losses: told.append(losses),
        )

    def spoil_path_1_at_step_2(number, batch):
        if number == 2:
            batch["y"][1] = np.nan
        return batch

    np.testing.assert_array_equal(run(lambda _, batch: batch).losses, np.float32(told))
    with pytest.raises(Diverged, match="nan at step 2"):
        run(spoil_path_1_at_step_2)


def test_stacking_is_one_of_two_and_of_at_least_one_path():
    with pytest.raises(BadSetting, match=r"`inner\.stacking` is 'scan'.*map, vmap"):
        InnerSettings(stacking="scan")
    with pytest.raises(BadSetting, match=r"`inner\.stacked_paths`"):
        InnerSettings(stacked_paths=0)
