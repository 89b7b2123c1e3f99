"""Rounds of two leaders at one reducer."""

import asyncio

import pytest

from dipaco.errors import BadMessage
from dipaco.swarm.messages import Plan, Sender, Slice, number_of_round
from dipaco.swarm.reducing import Reducer


def plan(number):
    return Plan(
        number=number,
        step=4,
        senders=(Sender(name="ana", blocks=(0,), targets=1.0),),
        slices=(Slice(start=0, stop=3, reducer="bo", address=""),),
        codec="none",
        within_seconds=9.0,
    )


def test_a_push_for_a_new_leaders_round_waits_for_its_plan_and_meets_no_round_of_the_old_one():
    async def scenario():
        reducer = Reducer("bo")
        for count in range(7, 10):
            reducer.begin(plan(number_of_round(900, count)))
        with pytest.raises(BadMessage, match="over"):
            await reducer.slot(number_of_round(900, 6), 0, 3)
        # Its first round: not over, though its number is smaller than all that are known.
        first = asyncio.ensure_future(reducer.slot(number_of_round(800, 1), 0, 3))
        await asyncio.sleep(0.01)
        assert not first.done()
        reducer.begin(plan(number_of_round(800, 1)))
        slot = await first
        assert slot.plan.number == number_of_round(800, 1)
        assert not slot.parts
        assert reducer.arrived(number_of_round(900, 9)) == ()

    asyncio.run(asyncio.wait_for(scenario(), 20))
