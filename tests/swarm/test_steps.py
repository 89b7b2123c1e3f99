"""A group of peers takes exactly the steps of one large machine, whichever come, go and die."""

import asyncio
import dataclasses
import functools
import time

import numpy as np
import pytest

from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.leading import rounds
from dipaco.swarm.leading.group import QUIET_SECONDS
from dipaco.swarm.leading.leasing import MIN_WAIT_SECONDS
from dipaco.swarm.network.messages import HeldStateRequest, StateManifest
from dipaco.swarm.roles.leader import Leader
from dipaco.swarm.roles.peer import STEP_SECONDS
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.state_download import StateDownload
from dipaco.swarm.training.state_holder import StateHolder
from tests.support.swarm_clock import until
from tests.support.swarm_rig import (
    SETTINGS,
    Group,
    OnlyAddsUp,
    assert_replayed,
    issue,
    largest_difference,
    plain_states,
    wire_of,
)


def summed(volunteer):
    """The blocks in its sum of the step that the group takes now."""
    mine = volunteer._sum_of(volunteer.holder.step)
    return mine and mine.summed


async def test_peers_of_different_speeds_take_the_steps_of_one_machine(group):
    await group.join_all(ana=0.0, bo=0.02, cy=0.08)
    await group.steps(6)
    assert_replayed(group)
    blocks = dict.fromkeys(group.volunteers, 0)
    for outcome in group.outcomes[1:]:
        for sender, done in outcome.record.blocks.items():
            blocks[sender.partition("/")[0]] += len(done)
    assert blocks["ana"] > blocks["cy"]


async def test_a_member_that_goes_as_a_round_ends_is_recorded_in_the_step_that_has_its_rows(group):
    """The ledger has what the means were made of, though the group has removed the member."""
    await group.join_all(ana=0.01, bo=0.01)
    await group.step()
    leader, hold = group.leader, group.leader._rounds.hold

    async def hold_and_lose(plan):
        outcome = await hold(plan)
        for one in plan.senders:
            leader.group.remove(one.name, "it has left")
        return outcome

    leader._rounds.hold = hold_and_lose
    outcome = await group.step()
    assert len(outcome.record.blocks) == 2
    assert outcome.closed.loss > 1.0
    assert_replayed(group)


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_leader_that_dies_costs_no_row_that_is_summed(group, monkeypatch, in_time):
    """Unless its sum comes too late: others may have the rows by then; they are computed again."""
    if not in_time:
        monkeypatch.setattr("dipaco.swarm.leading.group.ADOPTION_SECONDS", 0.0)
    await group.join("ana", slow=0.2)
    await group.join("bo", slow=0.2, listens=False)
    await group.step()
    step = asyncio.ensure_future(group.step())
    names = [volunteer.wire.name for volunteer, _ in group.volunteers.values()]
    await until(lambda: group.leader.group.ledger.step == 1)
    ledger = group.leader.group.ledger
    await until(lambda: all(ledger.done_by(name) for name in names))
    step.cancel()
    before = {name: set(ledger.done_by(name)) for name in names}
    await group.new_leader()
    await group.step()
    for name, blocks in before.items():
        assert any(f"{name} comes with" in said for said in group.said) == in_time
        assert not in_time or blocks <= set(group.outcomes[-1].record.blocks[name])
    await group.step()
    assert_replayed(group)
    assert not group.refused, group.refused


async def test_a_restarted_backbone_fetches_the_state_that_another_holds(group):
    await group.join("ana")
    await group.steps(2)
    wire = await wire_of(issue("second", "backbone"))
    holder = StateHolder(wire, group.compute)
    Leader(wire, holder)
    ask = functools.partial(
        wire.ask, group.wire.address, "held", reply=StateManifest, within_seconds=5.0
    )
    with pytest.raises(SwarmRefuses, match="nothing of that phase"):
        await ask(body=HeldStateRequest(origin="another phase"))
    manifest, _ = await ask(body=HeldStateRequest(origin="test"))
    assert await StateDownload(wire, holder, lambda _: None).fetch(manifest)
    assert holder.position == group.holder.position
    assert holder.losses == group.holder.losses
    assert largest_difference(holder.state, group.holder.state) == 0.0
    volunteer = group.volunteers["ana"][0]
    with pytest.raises(SwarmRefuses, match="only a backbone"):
        await volunteer.wire.ask(
            group.wire.address,
            "held",
            HeldStateRequest(origin="test"),
            StateManifest,
            within_seconds=5.0,
        )
    await wire.transport.close()


async def test_a_volunteer_that_was_removed_too_early_brings_its_sum_back(group):
    ana = await group.join("ana", slow=0.1)
    await group.step()
    step = asyncio.ensure_future(group.step())
    await until(lambda: group.leader.group.ledger.step == 1)
    await until(lambda: len(group.leader.group.ledger.done_by(ana.wire.name)) >= 3)
    group.leader.group.remove(ana.wire.name, "it fell silent")
    await step
    assert any("comes with" in said for said in group.said)
    assert_replayed(group)


class DiesAtPush(Volunteer):
    """Dies when it should send its sum, and with it the slice that it adds up."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)

        async def nothing(plan, part):
            return b""

        self._means._fetch = nothing
        self._sender.begin = lambda *arguments: self._spawn(self.wire.transport.close())


async def test_a_sender_and_reducer_that_dies_inside_a_round_costs_its_rows_and_no_step(group):
    await group.join("ana", slow=0.05)
    await group.step()
    bo = await group.join("bo", kind=DiesAtPush, slow=0.01)
    await until(lambda: bo.is_current)
    step = asyncio.ensure_future(group.step())
    await until(lambda: group.leader.group_state.plan is not None)
    await asyncio.sleep(0.05)
    await group.kill("bo")
    await step
    await group.step()
    assert_replayed(group)


async def test_a_late_volunteer_fetches_the_state_in_chunks_and_then_takes_part(group):
    await group.join("ana", slow=0.03)
    await group.steps(3)
    bo = await group.join("bo")
    await group.step_until(lambda: bo.wire.name in group.outcomes[-1].record.blocks, most=30)
    assert_replayed(group)
    await until(lambda: bo.holder.position == group.holder.position)
    assert largest_difference(bo.holder.state, group.holder.state) == 0.0


async def test_a_volunteer_that_leaves_stays_for_the_step_that_it_computes(group):
    await group.join_all(ana=0.1, bo=0.1)
    await group.step()
    step = asyncio.ensure_future(group.step())
    bo, task = group.volunteers["bo"]
    await until(lambda: bo.holder.position == group.holder.position and summed(bo))
    bo.leave()
    await step
    await task
    await group.step()
    assert [bo.wire.name in one.record.blocks for one in group.outcomes[1:]] == [True, False]
    assert group.leader.group.departed[bo.wire.name] == "it has left"
    assert_replayed(group)


async def test_the_only_volunteer_that_leaves_takes_its_step_to_the_end(group):
    ana = await group.join("ana", slow=0.05)
    step = asyncio.ensure_future(group.step())
    await until(lambda: summed(ana))
    ana.leave()
    await step
    await group.volunteers["ana"][1]
    assert_replayed(group)


async def test_clients_reduce_nothing_and_one_that_computes_nothing_reduces(group):
    await group.join("ana", listens=False)
    await group.join("bo", listens=False, slow=0.01)
    await group.join("aux", kind=OnlyAddsUp)
    await group.steps(3)
    adding = {part.reducer for outcome in group.outcomes for part in outcome.closed.slices}
    assert {name.partition("/")[0] for name in adding} == {"back", "aux"}
    assert_replayed(group)


async def test_a_poll_says_the_state_after_the_step_that_its_peer_was_told_of(group):
    """By that the leader chooses who adds up and who gives the state to newcomers. A poll that
    begins as the step is still being taken says the state before it until the next round.
    """
    ana = await group.join("ana")
    request, behind = ana._poll_request, []

    def spied(known):
        behind.append(known is not None and ana._next_step(known) is not None)
        return request(known)

    ana._poll_request = spied
    await group.steps(4)
    assert len(behind) >= 4
    assert not any(behind)


async def test_a_peer_whose_polls_take_long_while_it_sends_is_not_taken_for_one_that_fell_silent(
    group,
    monkeypatch,
):
    """A router at home has a long queue then, and a poll needs three round trips."""
    monkeypatch.setattr(rounds, "MIN_WAIT_SECONDS", 20.0)  # for the parts to come
    _, bo = await group.join_all(ana=0.1, bo=0.1)
    for _ in range(8):
        await group.step()  # its polls are quick
    opened = bo.wire.transport.open

    async def queued(address):
        if group.leader.group_state.plan is not None:
            await asyncio.sleep(2.5)
        return await opened(address)

    bo.wire.transport.open = queued
    await group.step()
    assert bo.wire.name in group.outcomes[-1].record.blocks
    assert not group.leader.group.departed
    assert_replayed(group)


async def test_a_peer_that_dies_is_noticed_soon_and_others_compute_its_rows(group):
    """Sooner than one whose polls take long."""
    ana, bo = await group.join_all(ana=0.1, bo=0.1)
    await group.step()
    step = asyncio.ensure_future(group.step())
    name, members = bo.wire.name, group.leader.group
    await until(lambda: members.ledger.step == 1 and members.ledger.done_by(name))
    started = time.monotonic()
    await group.kill("bo")
    await until(lambda: name in members.departed)
    assert time.monotonic() - started < QUIET_SECONDS - 1.0
    await step
    assert set(group.outcomes[-1].record.blocks) == {ana.wire.name}
    await group.step()
    assert_replayed(group)


async def test_a_peer_that_takes_a_step_slowly_is_not_taken_for_one_that_fell_silent(group):
    assert STEP_SECONDS < MIN_WAIT_SECONDS / 2
    _, bo = await group.join_all(ana=0.1, bo=0.0)
    advance = bo._advance

    async def slow_advance(closed):
        await asyncio.sleep(2.5)
        await advance(closed)

    bo._advance = slow_advance
    await group.steps(5)
    assert not any("silent" in sentence for sentence in group.said), group.said
    assert_replayed(group)


async def test_a_peer_that_missed_steps_catches_up_by_their_means(group):
    states = []
    late = await group.join("ana", say=states.append)
    await group.step()
    await group.join("bo")
    states.clear()
    held = asyncio.Event()
    advance = late._advance

    async def slow_advance(closed):
        await held.wait()
        await advance(closed)

    late._advance = slow_advance
    await group.steps(3)
    held.set()
    await until(lambda: late.holder.position == group.holder.position)
    assert not any("state" in sentence for sentence in states)
    assert largest_difference(late.holder.state, group.holder.state) == 0.0


async def test_codecs_send_fewer_bytes_and_all_peers_stay_equal():
    async with Group(dataclasses.replace(SETTINGS, codec="int8")) as group:
        ana, _ = await group.join_all(ana=0.0, bo=0.0)
        await group.steps(2)
        await until(lambda: ana.holder.position == group.holder.position)
        assert largest_difference(ana.holder.state, group.holder.state) == 0.0
        assert mean_difference(plain_states(2)[-1], group.states[-1]) < 1e-2


def mean_difference(a, b):
    """Of embeddings. AdamW's first steps are signs: that of a value near zero may change."""
    return np.mean(np.abs(a.parts["embed"]["table"] - b.parts["embed"]["table"]))


async def test_a_newcomer_fetches_a_new_state_and_not_every_mean_since_an_old_one(group):
    await group.join("ana")
    await group.step()
    bo = await group.join("bo")
    await until(lambda: bo.holder.step == group.holder.step)
    await group.steps(5)
    cy = await group.join("cy")
    await until(lambda: cy.holder.step == group.holder.step)
    assert cy.holder.steps_taken == 0


async def test_a_state_that_a_slow_peer_still_fetches_stays_the_one_that_is_offered(group):
    await group.join("ana")
    bo = await group.join("bo", kind=FetchesForLong)
    await until(lambda: bo.is_fetching)
    await group.steps(5)
    cy = await group.join("cy")
    await until(lambda: cy.holder.step == group.holder.step)
    assert cy.holder.steps_taken == 5
    bo.may_go_on.set()
    await until(lambda: bo.holder.step == group.holder.step)
    assert bo.holder.steps_taken == 5


class FetchesForLong(Volunteer):
    """It knows which state it fetches, and has it when it may."""

    is_fetching = False

    async def _fetch_state(self):
        self.may_go_on = asyncio.Event()
        fetch = StateDownload.fetch

        async def slowly(download, manifest):
            if download._holder is self.holder:
                self.is_fetching = True
                await self.may_go_on.wait()
            return await fetch(download, manifest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StateDownload, "fetch", slowly)
            await super()._fetch_state()
