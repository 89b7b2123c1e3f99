"""The outer step of one module, against the recurrence by hand; each switch with its number."""

import jax
import ml_dtypes
import numpy as np
import pytest

from dipaco.outer.config import OuterSettings
from dipaco.outer.step import first_outer_state, outer_step

PLAIN = OuterSettings(learning_rate=1.0, momentum=0.0, rescale_by_fan_in=False)


def module(first, second):
    return {"block_00": {"w": np.float32(first)}, "head": {"w": np.float32(second)}}


def step(settings, before, mean, momentum=None, fan_in=1):
    return outer_step(
        settings, before, mean, momentum or first_outer_state(settings, before), fan_in
    )


def test_three_nesterov_steps_by_hand():
    """u <- mu u + g; theta <- theta - lr (g + mu u)."""
    settings = OuterSettings(learning_rate=0.7, momentum=0.9, rescale_by_fan_in=False)
    theta, u, momentum = 5.0, 0.0, None
    for g in (1.0, -2.0, 0.5):
        u = 0.9 * u + g
        theta_next = theta - 0.7 * (g + 0.9 * u)
        result = step(settings, module([theta], [0]), module([g], [0]), momentum)
        np.testing.assert_allclose(result.after["block_00"]["w"], [theta_next], rtol=1e-6)
        theta, momentum = float(result.after["block_00"]["w"][0]), result.momentum


def test_without_momentum_it_is_plain_descent_and_carries_no_state_from_step_to_step():
    settings = OuterSettings(learning_rate=0.5, momentum=0.0, rescale_by_fan_in=False)
    first = step(settings, module([1, 2], [3]), module([2, 2], [2]))
    again = step(settings, module([1, 2], [3]), module([2, 2], [2]), first.momentum)
    for result in (first, again):
        np.testing.assert_array_equal(result.after["block_00"]["w"], np.float32([0, 1]))
        np.testing.assert_array_equal(result.after["head"]["w"], np.float32([2]))


@pytest.mark.parametrize(("rescale", "moved"), [(True, 4.0 * 3.0), (False, 3.0)])
def test_the_rescale_multiplies_the_mean_by_the_root_of_the_fan_in(rescale, moved):
    settings = OuterSettings(learning_rate=1.0, momentum=0.0, rescale_by_fan_in=rescale)
    result = step(settings, module([100], [0]), module([3], [0]), fan_in=16)
    np.testing.assert_allclose(result.after["block_00"]["w"], [100 - moved])


def test_the_rescale_goes_through_the_momentum_too():
    settings = OuterSettings(learning_rate=1.0, momentum=0.5, rescale_by_fan_in=True)
    first = step(settings, module([0], [0]), module([1], [0]), fan_in=4)
    second = step(settings, module([0], [0]), module([0], [0]), first.momentum, fan_in=4)
    np.testing.assert_allclose(first.after["block_00"]["w"], [-(2 + 0.5 * 2)])
    np.testing.assert_allclose(second.after["block_00"]["w"], [-0.5 * 0.5 * 2])


def test_the_reported_norm_is_that_of_the_mean_over_all_parts_before_the_rescale():
    result = step(OuterSettings(), module([0, 0], [0]), module([1, 2], [2]), fan_in=16)
    assert result.gradient_norm == pytest.approx(3.0)


def test_momentum_starts_at_zero_in_float32_whatever_the_parameters_are():
    parts = {"head": {"w": np.ones((2, 3), ml_dtypes.bfloat16)}}
    (trace,) = jax.tree.leaves(first_outer_state(OuterSettings(), parts)["head"])
    assert (trace.dtype, trace.shape) == (np.float32, (2, 3))
    assert not trace.any()


def test_bfloat16_parameters_step_in_float32_and_stay_bfloat16():
    before = {"head": {"w": np.ones(1, ml_dtypes.bfloat16)}}
    settings = OuterSettings(learning_rate=0.7, momentum=0.9, rescale_by_fan_in=False)
    result = step(settings, before, {"head": {"w": np.float32([0.001])}})
    assert result.after["head"]["w"].dtype == ml_dtypes.bfloat16
    (trace,) = jax.tree.leaves(result.momentum["head"])
    assert trace.dtype == np.float32
    np.testing.assert_allclose(trace, [0.001])


def test_inputs_are_emptied_part_by_part():
    """So that a step holds three module sizes and a part, not six."""
    settings = OuterSettings()
    before, mean = module([1], [2]), module([1], [1])
    momentum = first_outer_state(settings, before)
    result = outer_step(settings, before, mean, momentum, 1)
    assert (before, mean, momentum) == ({}, {}, {})
    assert sorted(result.after) == sorted(result.momentum) == ["block_00", "head"]
