"""With delayed updates peers compute while gradients are averaged; the steps are those of one
machine whose gradients are as late.
"""

import asyncio
import dataclasses
import functools
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.swarm.leading.leasing import lease_rows, should_begin_again
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.leading.step_rows import StepRows
from dipaco.swarm.network.messages import JoinRequest
from dipaco.swarm.planning import checks
from dipaco.swarm.roles.volunteer import Volunteer
from tests.support import backbone_rig
from tests.support.swarm_clock import until
from tests.support.swarm_rig import (
    COMPUTE,
    SETTINGS,
    Group,
    assert_replayed,
    delayed_states,
    issue,
    largest_difference,
    plain_states,
    sending,
)

LATE = dataclasses.replace(SETTINGS, delayed_updates=True)


@pytest.fixture(autouse=True)
def compiled_once(monkeypatch):
    """The programs are those of a group without delayed updates."""
    monkeypatch.setattr(COMPUTE, "settings", LATE)


class Late(Group):
    """A group with delayed updates."""

    def __init__(self, settings=LATE):
        super().__init__(SETTINGS)
        self.settings = self.compute.settings = settings

    @property
    def delays(self):
        return [outcome.closed.delay for outcome in self.outcomes]


@pytest.fixture
def group():
    return Late()


def hold_rounds_until(group, condition):
    """Every averaging takes until then. Returns what ends this."""
    rounds = group.leader._rounds
    hold = rounds.hold

    async def held(plan):
        outcome = await hold(plan)
        await until(condition)
        return outcome

    rounds.hold = held
    return functools.partial(setattr, rounds, "hold", hold)


class Gated:
    """A machine that ends no block until it may."""

    def __init__(self, compute, may_go_on):
        self._compute, self._may_go_on = compute, may_go_on

    def __getattr__(self, name):
        return getattr(self._compute, name)

    def gradient(self, *of_rows):
        self._may_go_on.wait(240)
        return self._compute.gradient(*of_rows)


def test_a_delayed_step_is_another_than_a_plain_one():
    late, plain = delayed_states([0, 1, 1]), plain_states(3)
    assert largest_difference(late[1], plain[1]) < 1e-6
    assert largest_difference(late[2], plain[2]) > 1e-4
    plain_again = delayed_states([0, 0, 0])
    assert all(largest_difference(a, b) < 1e-6 for a, b in zip(plain_again, plain, strict=True))


async def test_peers_compute_rows_of_the_next_step_while_those_of_this_one_are_averaged(group):
    for name, slow in (("ana", 0.0), ("bo", 0.02), ("cy", 0.08)):
        await group.join(name, slow=slow)
    leader = group.leader.group
    hold_rounds_until(group, lambda: leader.next_rows.ledger.num_done > 0)
    await group.steps(6)
    assert group.delays == [0, 1, 1, 1, 1, 1]
    assert_replayed(group)


async def test_a_peer_that_dies_with_rows_of_two_steps_costs_its_rows_and_no_step(group):
    await group.join("ana", slow=0.15)  # so bo has rows of both steps
    bo = (await group.join("bo", slow=0.03)).wire.name
    leader = group.leader.group
    await group.step()

    def has_none():  # on a busy machine the other may have done all rows of a step
        return any(
            one.ledger.is_complete and not one.ledger.done_by(bo) for one in leader.open_rows
        )

    def has_two():
        return len(leader.open_rows) == 2 and all(
            one.ledger.done_by(bo) for one in leader.open_rows
        )

    is_dead, step = threading.Event(), None
    go_on = hold_rounds_until(group, lambda: is_dead.is_set() or has_none())
    while step is None or step.done():
        step = asyncio.ensure_future(group.step())
        await until(lambda at=step: at.done() or has_two())
    await group.kill("bo")
    go_on()
    is_dead.set()
    await step
    while bo in leader.members:
        await group.step()
    assert not any(one.ledger.done_by(bo) for one in leader.open_rows)
    await group.step()
    assert bo not in group.outcomes[-1].record.blocks
    assert group.delays == [0, *[1] * (len(group.outcomes) - 1)]
    assert_replayed(group)


async def test_a_volunteer_that_leaves_in_an_averaging_stays_for_the_next_step(group):
    _, bo = await group.join_all(ana=0.03, bo=0.03)
    leader, name = group.leader.group, bo.wire.name

    def leaves():
        if bo._sums and leader.next_rows.ledger.done_by(name):
            bo.leave()
        return bo._is_leaving.is_set()

    await group.step()
    hold_rounds_until(group, leaves)
    await group.steps(2)
    await group.volunteers["bo"][1]
    await group.step()
    assert [name in one.record.blocks for one in group.outcomes[1:]] == [True, True, False]
    assert_replayed(group)
    assert not group.refused


async def test_a_backbone_that_has_only_the_newest_state_takes_one_step_that_is_not_late(group):
    await group.join("ana", slow=0.1)
    await group.join("bo", slow=0.1, listens=False)
    await group.steps(2)
    step = asyncio.ensure_future(group.step())
    leader = group.leader.group
    names = [volunteer.wire.name for volunteer, _ in group.volunteers.values()]
    await until(lambda: leader.ledger.step == 2 and leader.next_rows is not None)
    await until(lambda: all(leader.ledger.done_by(name) for name in names))
    step.cancel()
    await group.new_leader()
    await group.steps(3)
    assert group.delays == [0, 1, 0, 1, 1]
    assert_replayed(group)
    assert not group.refused, group.refused


async def new_leader_with_both_states(group):
    """The next leader has the state before the newest as well, as one that has followed."""
    before, set_state = group.holder.before, type(group.holder).set_state

    def keep(holder, *state, **more):
        set_state(holder, *state, **more)
        if holder is group.holder:
            holder.before = before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(group.holder), "set_state", keep)
        await group.new_leader()


async def test_the_sums_of_both_steps_are_brought_to_the_next_leader_before_rows_are_asked_for(
    group,
):
    ana = await group.join("ana", slow=0.02)
    await group.steps(2)
    name, leader = ana.wire.name, group.leader.group
    hold_rounds_until(group, lambda: False)
    step = asyncio.ensure_future(group.step())
    await until(lambda: leader.next_rows and leader.next_rows.ledger.done_by(name))
    assert ana.last_senders == {name}
    step.cancel()
    await new_leader_with_both_states(group)
    step = asyncio.ensure_future(group.step())
    brought = f"{name} comes with"
    await until(lambda: sum(one.startswith(brought) for one in group.said) == 2)
    await step
    await group.step()
    assert group.delays == [0, 1, 1, 1]
    assert_replayed(group)
    assert not group.refused, group.refused


class MissesTheLastBoard(Volunteer):
    """Of the leader that dies; and it fetches the state only when the next one has led for long."""

    def _apply(self, state):
        if state.leader.startswith("back/") and state.step > 1:
            self.leader.add_backbones(state.backbones)
            return
        super()._apply(state)

    async def _fetch_state(self):
        if self.group_state.leader.startswith("second"):
            await until(lambda: self.behind & {*self._sums[2].summed} if 2 in self._sums else 0)
        await super()._fetch_state()

    def on_leader_lost(self):
        super().on_leader_lost()
        self._kept = {}  # it has none of the step

    behind = frozenset()  # blocks that the next leader leased while it was behind

    async def _sum_of(self, lease):
        if self.group_state.leader.startswith("second") and (lease.step, self.holder.step) == (
            2,
            1,
        ):
            self.behind |= set(lease.blocks)
        return await super()._sum_of(lease)


async def test_a_peer_that_is_a_step_behind_the_next_leader_computes_at_the_same_parameters(
    group, monkeypatch
):
    monkeypatch.setattr(checks, "MEAN_GAP", 1)
    await group.join("ana", slow=0.3)
    bo = await group.join("bo", kind=MissesTheLastBoard, slow=0.2)
    await until(lambda: bo.holder.step == 0)
    await group.steps(2)
    assert bo.holder.step == 1
    await new_leader_with_both_states(group)
    await group.steps(2)
    assert not group.leader.group.banned, group.said
    assert bo.behind & set(group.outcomes[2].record.blocks[bo.wire.name])
    assert_replayed(group)


def offer_the_newest_state(group):
    """A newcomer fetches it; else an older one, and means, so that it has the state before, too."""
    group.leader._service._offered = None


async def test_a_newcomer_without_the_state_before_computes_rows_of_the_next_step(group):

    await group.join("ana", slow=0.05)
    await group.steps(2)
    offer_the_newest_state(group)
    bo, leader = await group.join("bo"), group.leader.group
    hold_rounds_until(group, lambda: bo.wire.name in leader.next_rows.ledger.blocks_by_peer)
    await until(lambda: bo.holder.step == 2)
    assert bo.holder.before is None
    await group.step()
    assert bo.wire.name not in group.outcomes[-1].record.blocks
    await group.step()
    assert bo.wire.name in group.outcomes[-1].record.blocks
    assert_replayed(group)
    assert group.delays == [0, 1, 1, 1]


async def test_where_only_newcomers_are_left_the_step_is_not_late(group):
    await group.join("ana", slow=0.02)
    await group.steps(2)
    await group.kill("ana")
    offer_the_newest_state(group)
    await group.join("bo")
    await group.steps(2)
    assert group.delays == [0, 1, 0, 1]
    assert any("begins again" in said for said in group.said)
    assert_replayed(group)


class MissesMeans(Volunteer):
    """In the second step: it fetches the state instead, and has computed rows of the third."""

    fetched, discarded = 0, ()

    async def _advance(self, closed):
        if closed.step == 1:
            self.holder.lineage = ""
        else:
            await super()._advance(closed)

    def on_state_fetched(self):
        super().on_state_fetched()
        self.fetched += 1

    def _discard_sum(self, step):
        self.discarded = (*self.discarded, step)
        super()._discard_sum(step)


async def test_a_peer_that_fetches_the_state_again_keeps_what_it_has_summed_of_the_next_step(group):
    await group.join("ana", slow=0.02)
    bo = await group.join("bo", kind=MissesMeans, slow=0.02)
    leader, name = group.leader.group, bo.wire.name
    await until(lambda: bo.holder.step == 0)
    before = bo.fetched
    hold_rounds_until(group, lambda: leader.next_rows.ledger.done_by(name))
    await group.step()
    await group.step()
    offer_the_newest_state(group)
    await until(lambda: bo.fetched > before)
    await group.step()
    assert name in group.outcomes[2].record.blocks
    assert bo.discarded == ()
    assert_replayed(group)


# --- what is checked --------------------------------------------------------------------------


async def test_no_honest_peer_is_accused_whichever_step_is_checked(group, monkeypatch):
    monkeypatch.setattr(checks, "MEAN_GAP", 1)
    await group.join_all(ana=0.01, bo=0.02)
    await group.steps(5)
    await until(lambda: not group.leader._checks._judging)
    assert group.leader._checks.num_checked > 5
    assert not group.leader.group.banned, group.said
    assert not [sentence for sentence in group.said if "differed" in sentence]


async def test_a_wrong_gradient_is_found_before_it_counts(group):
    await group.join("ana", slow=0.02)
    eve = await group.join("eve", kind=sending(np.negative), slow=0.02)
    while not group.evidence:
        await asyncio.wait_for(group.step(), 30)
    assert list(group.leader.group.banned) == [eve.wire.name], group.said
    await group.step()
    assert_replayed(group)


async def test_what_a_codec_loses_is_added_once():
    """Each round has the rest of the one before it, also where it begins at once."""
    async with Late(dataclasses.replace(LATE, codec="int8")) as group:
        ana, _ = await group.join("ana"), await group.join("bo")
        sent, lost = [], []
        added_to = ana._residual.added_to

        def noted(vector, plan):
            total = added_to(vector, plan)
            lost.append(np.asarray(total) - np.asarray(vector))
            sent.append(plan.number)
            return total

        ana._residual.added_to = noted
        leader = group.leader.group
        hold_rounds_until(group, lambda: leader.next_rows.ledger.is_complete)
        while len(sent) < 3:  # on a busy machine the other may have done all rows of a step
            await asyncio.wait_for(group.step(), 30)
        assert not lost[0].any()
        assert lost[1].any()
        assert lost[2].any()
        assert not np.array_equal(lost[1], lost[2])
        difference = largest_difference(delayed_states(group.delays)[-1], group.states[-1])
        assert difference < 1e-2


def test_the_settings_of_a_group_say_whether_updates_are_delayed():
    assert LATE.digest != SETTINGS.digest
    assert type(LATE).from_json(LATE.to_json()) == LATE


# --- the record -------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_backbones")
def test_the_ledger_says_which_steps_were_late_and_a_saved_phase_goes_on(run):
    """What is saved is the newest state alone: the first step from there is not late. The last step
    of a phase computes nothing ahead.
    """
    swarms, names = run.ledger.swarms, {"one": "backbone", "two": "backbone", "ana": "volunteer"}
    credentials = backbone_rig.issued(run, names)
    state, losses = None, ()
    for name, steps in (("one", 4), ("two", 6)):
        backbone = backbone_rig.backbone_of(run, 0, name, credentials[name], settings=LATE)
        ana = backbone_rig.Lent(backbone.address, credentials["ana"])
        backbone_rig.until(lambda: swarms.backbones(MODULAR, 0, is_staffed=True))
        result = backbone_rig.phase_of(backbone, steps, state, losses)
        state, losses = jax.device_get(result.state), tuple(result.losses.tolist())
        ana.leave()
        backbone.close()
    taken = swarms.steps(MODULAR, 0)
    assert [one.step for one in taken] == list(range(6))
    assert [one.delay for one in taken] == [0, 1, 1, 1, 0, 1]
    for one in taken:
        assert sorted(block for of in one.blocks.values() for block in of) == list(range(8))
    assert largest_difference(state, delayed_states([one.delay for one in taken])[-1]) < 1e-5


# --- which rows a member gets -----------------------------------------------------------------

ROWS = StepRows(4, [46.0] * 8, lineage="before")


def members_of(**named):
    """Name -> a member: (seconds for a block, lineages of the states that it has)."""
    made = {}
    for name, (seconds, lineages) in named.items():
        request = JoinRequest(version="", address=None, computes=True)
        made[name] = GroupMember(name, issue(name).certificate, request)
        made[name].bases = lineages
        made[name].last_poll = SimpleNamespace(lineage="", before="")
        if seconds:
            made[name].time_block(seconds)
    return made


BOTH, NEWEST = ("now", "before"), ("now",)


@pytest.mark.parametrize(
    ("members", "begins_again"),
    [
        ({}, False),
        ({"ana": (1.0, BOTH), "bo": (1.0, NEWEST)}, False),
        ({"bo": (1.0, NEWEST)}, True),
        ({"bo": (0.0, NEWEST)}, True),
        ({"ana": (0.0, BOTH), "bo": (1.0, NEWEST)}, False),
        ({"ana": (50.0, BOTH), "bo": (1.0, NEWEST), "cy": (1.0, NEWEST)}, True),
    ],
    ids=["nobody is there", "as fast", "no one can", "not timed", "is timed soon", "far too slow"],
)
def test_a_step_begins_again_where_all_are_sooner_done_than_those_that_can_go_on(
    members, begins_again
):
    rows = ROWS.at("before", None)
    assert should_begin_again(rows, members_of(**members)) == begins_again
    rows.ledger.lease("x", 8, 10.0)
    assert not should_begin_again(rows, members_of(**members)), "all rows are leased or done"


def test_a_member_gets_rows_of_this_step_then_of_the_next_and_only_then_is_a_backup():
    now, after = ROWS.at("before", None), StepRows(5, [46.0] * 2, lineage="now")
    members = members_of(ana=(1.0, BOTH), bo=(1.0, BOTH), cy=(1.0, NEWEST))
    lease = functools.partial(lease_rows, members=members, say=lambda sentence: None)
    now.ledger.lease("bo", 7, 1e9, now_seconds=time.monotonic(), seconds_per_block=0.25)
    first = lease((now, after), member=members["ana"])
    assert (first.step, first.blocks, first.lineage) == (4, (7,), "before")
    second = lease((now, after), member=members["ana"])
    assert (second.step, second.blocks, second.lineage) == (5, (0,), "now")
    newcomer = lease((after,), member=members["cy"])
    assert (newcomer.step, newcomer.blocks) == (5, (1,))
    backup = lease((now, after), member=members["ana"])
    assert backup.step == 4
    assert len(backup.blocks) == 1
    assert now.ledger.done_by("bo") == ()
