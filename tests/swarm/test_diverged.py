"""Losses that are not finite: a model that has diverged is told to the owner, and locks nobody out;
a peer that only says so changes nothing.
"""

import asyncio
import math

import jax
import numpy as np
import pytest

from dipaco.errors import Diverged
from dipaco.swarm.network.messages import StatePosition
from tests.support.swarm_rig import (
    assert_replayed,
    batch_of,
    first_state,
    largest_difference,
    saying,
    sending,
)


async def test_where_the_model_has_diverged_the_owner_is_told_and_no_volunteer_is_banned(group):
    parts = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), first_state().parts)
    diverged = first_state()._replace(parts=parts)
    group.holder.set_state(diverged, StatePosition("test", 4, "diverged"), [3.0] * 4)
    group.leader.begin_phase((group.wire.address,))
    await group.join_all(ana=0.0, bo=0.0, cy=0.0)
    with pytest.raises(Diverged, match="at step 5 of the phase"):
        await asyncio.wait_for(group.step(), 20)
    assert group.leader.group.banned == {}
    assert not any(task.done() for _, task in group.volunteers.values())


async def test_a_loss_that_only_its_sender_has_is_left_out_of_the_steps(group):
    await group.join("ana", slow=0.02)
    eve = await group.join("eve", kind=saying(loss=math.nan), slow=0.02)
    while eve.wire.name not in (await group.step()).record.blocks:
        await asyncio.sleep(0)
    assert group.leader.group.banned == {}
    assert all(2.0 < outcome.closed.loss < 6.0 for outcome in group.outcomes)
    assert_replayed(group)


async def test_a_nan_that_the_leader_does_not_find_in_the_same_rows_is_not_the_models(group):
    eve = await group.join("eve", kind=sending(lambda vector: np.nan * vector), slow=0.02)
    step = asyncio.ensure_future(group.step())
    while not any("NaN" in sentence for sentence in group.said):
        await asyncio.sleep(0.02)
    await group.join("ana", slow=0.02)
    await step
    await group.step_until(lambda: eve.wire.name in group.leader.group.banned)
    assert_replayed(group)


async def test_a_step_that_would_leave_a_parameter_that_is_not_finite_is_not_taken(group):
    """It would be saved, and no backbone could go on from it."""
    await group.join("ana")
    await group.step()
    with pytest.raises(Diverged, match="at step 2 of the phase"):
        await asyncio.wait_for(group.leader.take_step(batch_of(1), math.inf, lambda: False), 20)
    assert group.holder.step == 1
    assert largest_difference(group.holder.state, group.states[-1]) == 0.0
    assert group.leader.group_state.step == 1


async def test_where_no_peer_has_a_finite_loss_the_leader_computes_one(group):
    """It would say 0, or a NaN that no database takes."""
    await group.join("eve", kind=saying(loss=math.nan))
    assert 2.0 < (await group.step()).closed.loss < 6.0
    assert_replayed(group)
