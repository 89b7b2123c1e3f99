"""Losses that are not finite: a model that has diverged is told to the owner, and locks nobody out;
a peer that only says so changes nothing.
"""

import asyncio
import math

import jax
import msgspec
import numpy as np
import pytest

from dipaco.errors import Diverged
from dipaco.swarm.network.messages import StatePosition
from dipaco.swarm.roles.volunteer import Volunteer
from tests.support.swarm_rig import assert_replayed, first_state


async def test_where_the_model_has_diverged_the_owner_is_told_and_no_volunteer_is_banned(group):
    parts = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), first_state().parts)
    diverged = first_state()._replace(parts=parts)
    group.holder.set_state(diverged, StatePosition("test", 4, "diverged"), [3.0] * 4)
    group.leader.begin_phase((group.wire.address,))
    for name in ("ana", "bo", "cy"):
        await group.join(name)
    with pytest.raises(Diverged, match="at step 5 of the phase"):
        await asyncio.wait_for(group.step(), 20)
    assert group.leader.group.banned == {}
    assert not any(task.done() for _, task in group.volunteers.values())


class SaysNan(Volunteer):
    """Computes what it should, and says that its losses are NaN."""

    async def _request_work(self, work):
        done = tuple(msgspec.structs.replace(one, loss=math.nan) for one in work.done)
        return await super()._request_work(msgspec.structs.replace(work, done=done))


async def test_a_loss_that_only_its_sender_has_is_left_out_of_the_steps(group):
    await group.join("ana", slow=0.02)
    eve = await group.join("eve", kind=SaysNan, slow=0.02)
    while eve.wire.name not in (await group.step()).blocks_by_peer:
        await asyncio.sleep(0)
    assert group.leader.group.banned == {}
    assert all(2.0 < outcome.closed.loss < 6.0 for outcome in group.outcomes)
    assert_replayed(group)


class SendsNan(Volunteer):
    """Its gradient is not finite, though that of its rows is."""

    def gradient_sum(self, plan):
        vector = super().gradient_sum(plan)
        return None if vector is None else vector * np.float32(np.nan)


async def test_a_nan_that_the_leader_does_not_find_in_the_same_rows_is_not_the_models(group):
    eve = await group.join("eve", kind=SendsNan, slow=0.02)
    step = asyncio.ensure_future(group.step())
    while not any("NaN" in sentence for sentence in group.said):
        await asyncio.sleep(0.02)
    await group.join("ana", slow=0.02)
    await step
    while eve.wire.name not in group.leader.group.banned:
        await group.step()
    assert_replayed(group)
