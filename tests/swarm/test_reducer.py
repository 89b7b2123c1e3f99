"""A reducer: rounds of two leaders, and parts that its senders had committed themselves to."""

import asyncio

import msgspec
import numpy as np
import pytest

from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.network.messages import Sender, digest, round_number_of
from dipaco.swarm.training.slices import Reducer
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
    assert np.frombuffer(slot.mean, "<f4").tolist() == [2.0, 2.0, 2.0]


async def test_a_part_is_taken_once_all_are_committed_and_only_as_it_was_then():
    reducer, number = Reducer("bo"), round_number_of(900, 1)
    values = {
        name: np.full(3, size, np.float32).tobytes() for name, size in (("ana", 1), ("cy", 2))
    }
    announced = msgspec.structs.replace(plan(number, senders=("ana", "cy")), commitments=None)
    reducer.begin(announced)
    waiting = asyncio.ensure_future(reducer.slice_sum(number, 0, 3))
    await asyncio.sleep(0)
    assert not waiting.done(), "it could see other parts before its own is fixed"
    commitments = tuple(digest(values[name]) for name in ("ana", "cy"))
    reducer.begin(msgspec.structs.replace(announced, commitments=commitments))
    slot = await waiting
    reducer.push(slot, "ana", values["ana"])
    with pytest.raises(BadMessage, match="committed itself to another"):
        reducer.push(slot, "cy", values["ana"])
    reducer.push(slot, "cy", values["cy"])
    assert np.frombuffer(slot.mean, "<f4").tolist() == [1.5, 1.5, 1.5]
    assert reducer.part_of(number, "ana") == values["ana"]


async def test_a_round_that_is_held_again_keeps_no_parts_and_lets_those_go_that_wait_for_its_mean():
    """A peer that vanished without a goodbye would wait, and have it all kept, for ever."""
    reducer = Reducer("bo")
    rounds = [round_number_of(900, count) for count in (1, 2, 3)]
    values = np.ones(3, np.float32).tobytes()

    def begun(number):
        reducer.begin(plan(number, senders=("ana", "cy")))
        return reducer._sums[number]

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
    with pytest.raises(SwarmRefuses, match="over"):
        await reducer.slice_sum(rounds[1], 0, 3)
    assert (await reducer.mean(done)) == values, "one that ended is still given out"
    another_term = asyncio.ensure_future(reducer.mean(last))
    await asyncio.sleep(0)
    reducer.begin(plan(round_number_of(800, 1)))
    with pytest.raises(SwarmRefuses, match="over"):
        await another_term
