"""A reducer: rounds of two leaders, and sums that are too large."""

import asyncio

import msgspec
import numpy as np
import pytest

from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.network.messages import Sender, round_number_of
from dipaco.swarm.training.reducer import Reducer, overlap_mostly
from tests.support.swarm_rig import round_plan


def plan(number, start=0, stop=3, senders=("ana",)):
    return round_plan(number, senders, [(start, stop, "bo", "")], step=4)


async def test_a_push_for_a_new_leaders_round_waits_for_its_plan_and_is_not_mixed_with_old_ones():
    reducer = Reducer("bo")
    for count in range(7, 10):
        reducer.begin(plan(round_number_of(900, count)))
    with pytest.raises(SwarmRefuses, match="over"):  # it is not told as a bad message
        await reducer.slice_sum(round_number_of(900, 6), 0, 3)
    # Its first round: not over, though its number is smaller than all that are known.
    first = asyncio.ensure_future(reducer.slice_sum(round_number_of(800, 1), 0, 3))
    await asyncio.sleep(0.01)
    assert not first.done()
    reducer.begin(plan(round_number_of(800, 1)))
    slot = await first
    assert slot.plan.number == round_number_of(800, 1)
    assert not slot.parts
    assert reducer.arrived(round_number_of(900, 9)) == ()


def added_up(reducer, number, start, stop, sizes):
    """The senders that are refused when each sends values of that size."""
    number = round_number_of(900, number)
    reducer.begin(plan(number, start, stop, sizes))
    slot = reducer._sums[number]
    for name, size in sizes.items():
        reducer.push(slot, name, np.full(stop - start, size, np.float32).tobytes())
    return set(slot.refused)


def test_a_far_too_large_sum_is_refused_and_one_of_another_slice_is_not():
    """The head's gradient is tens of times the embedding's; a slice moves when a peer joins."""
    reducer = Reducer("bo")
    honest = {"ana": 1e-3, "cy": 1.1e-3}
    for number in range(1, 6):
        assert added_up(reducer, number, 0, 100, honest) == set()
    assert added_up(reducer, 6, 4, 104, honest) == set()  # about the same slice
    assert added_up(reducer, 7, 4, 104, {"ana": 1e-3, "cy": 60e-3}) == {"cy"}
    assert added_up(reducer, 8, 4, 104, {"ana": 60e-3}) == {"ana"}  # against rounds before
    assert added_up(reducer, 9, 300, 400, {"ana": 60e-3, "cy": 61e-3}) == set()
    assert added_up(reducer, 10, 300, 400, {"ana": 60e-3}) == set()
    assert added_up(reducer, 11, 0, 100, {"ana": 1e-3, "cy": 60e-3, "di": 1e-3}) == {"cy"}


def test_of_sums_that_are_not_finite_all_are_named_at_once():
    """So that a leader can tell a faulty sender from a model that has diverged."""
    nan = float("nan")
    assert added_up(Reducer("bo"), 1, 0, 9, {"ana": nan, "cy": 1.0, "di": nan}) == {"ana", "di"}


def test_a_sum_over_rows_without_a_target_is_added_up():
    """Rows of padding: their gradient is zero, and so is their count."""
    reducer, number = Reducer("bo"), round_number_of(900, 1)
    senders = (
        Sender(name="ana", blocks=(0,), targets=0.0),
        Sender(name="cy", blocks=(1,), targets=4.0),
    )
    reducer.begin(msgspec.structs.replace(plan(number), senders=senders))
    slot = reducer._sums[number]
    reducer.push(slot, "ana", np.zeros(3, np.float32).tobytes())
    reducer.push(slot, "cy", np.full(3, 8.0, np.float32).tobytes())
    assert not slot.refused
    assert np.frombuffer(slot.mean, "<f4").tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((0, 100), (0, 100), True),
        ((0, 100), (5, 105), True),
        ((0, 100), (10, 110), False),
        ((0, 100), (0, 50), False),
        ((0, 100), (200, 300), False),
    ],
)
def test_slices_that_share_nine_tenths_are_about_the_same(one, other, same):
    assert overlap_mostly(one, other) == overlap_mostly(other, one) == same


async def test_a_round_that_is_held_again_keeps_no_parts_and_lets_those_go_that_wait_for_its_mean():
    """A peer that vanished without a goodbye would wait, and have it all kept, for ever."""
    reducer = Reducer("bo")
    rounds = [round_number_of(900, count) for count in (1, 2, 3)]
    values = np.ones(3, np.float32).tobytes()

    def begun(number):
        reducer.begin(plan(number, senders=("ana", "cy")))
        return reducer.sum_of(number)

    done = begun(rounds[0])
    for name in ("ana", "cy"):
        reducer.push(done, name, values)
    failed = begun(rounds[1])
    reducer.push(failed, "ana", values)
    waiting = asyncio.ensure_future(reducer.mean(failed))
    last = begun(rounds[2])
    with pytest.raises(SwarmRefuses, match="over"):
        await waiting
    with pytest.raises(SwarmRefuses, match="over"):
        reducer.push(failed, "cy", values)
    assert not failed.parts
    assert not failed.signed
    with pytest.raises(SwarmRefuses, match="over"):
        await reducer.slice_sum(rounds[1], 0, 3)
    assert (await reducer.mean(done)).content == values, "one that ended is still given out"
    another_term = asyncio.ensure_future(reducer.mean(last))
    await asyncio.sleep(0)
    reducer.begin(plan(round_number_of(800, 1)))
    with pytest.raises(SwarmRefuses, match="over"):
        await another_term
