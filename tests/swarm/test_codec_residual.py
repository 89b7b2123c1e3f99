"""What a codec loses of a sum that was in a step is added to the next one, once."""

from types import SimpleNamespace

import numpy as np

from dipaco.swarm.network.messages import Slice
from dipaco.swarm.roles.volunteer import CodecResidual
from dipaco.swarm.training.slices import rounding

SUM = np.array([1.0, 1.0001, 3.00001], np.float32)
SLICES = (Slice(start=0, stop=3, reducer="bo/1", address="bo"),)
LOST = rounding("int8", SLICES, SUM)


def plan(number, codec="int8"):
    return SimpleNamespace(number=number, codec=codec)


def closed(round_number):
    return SimpleNamespace(round_number=round_number, codec="int8", slices=SLICES)


def test_what_was_lost_of_a_sum_in_a_step_goes_into_the_next():
    residual = CodecResidual()
    np.testing.assert_array_equal(residual.added_to(SUM, plan(4)), SUM)
    residual.on_step(closed(4))
    assert LOST.any()
    np.testing.assert_array_equal(residual.added_to(SUM, plan(5)), SUM + LOST)
    np.testing.assert_array_equal(residual.added_to(SUM, plan(6)), SUM + LOST)  # held again


def test_a_sum_that_went_into_no_step_has_lost_nothing():
    residual = CodecResidual()
    residual.added_to(SUM, plan(4))
    residual.on_step(closed(5))
    np.testing.assert_array_equal(residual.added_to(SUM, plan(6)), SUM)


def test_nothing_is_added_at_another_state_or_without_a_codec():
    residual = CodecResidual()
    residual.added_to(SUM, plan(4))
    residual.on_step(closed(4))
    assert residual.added_to(SUM, plan(5, "none")) is SUM
    residual.forget()
    np.testing.assert_array_equal(residual.added_to(SUM, plan(6)), SUM)
