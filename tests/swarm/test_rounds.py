"""How a leader judges a round that does not end."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from dipaco.swarm.leading import rounds as module
from dipaco.swarm.leading.group import SwarmGroup
from dipaco.swarm.leading.rounds import RoundFailed, Rounds
from dipaco.swarm.network.limits import LinkMeter
from dipaco.swarm.planning.track_records import MAX_SLOWDOWN
from dipaco.swarm.training.slices import Reducer
from tests.support.swarm_clock import run
from tests.support.swarm_rig import SETTINGS, asks_to_join, issue, round_plan

BACK, PEERS = "back/1", ("ana/1", "bo/1", "eve/1")
MEAN = bytes(8)  # of two values


class Round:
    """A round of `PEERS`, each of which sends and has a slice; the leader has the first one."""

    def __init__(self, monkeypatch):
        self.banned, self.published = [], []
        self.group = SwarmGroup(
            BACK,
            SETTINGS,
            lambda sentence: None,
            lambda sender, reason: None,
            lambda *what: self.banned.append(what) or (),
        )
        self.group.begin_step(3, [46.0] * 8)
        for name in PEERS:
            self.group.add_member(
                name, issue(name.split("/")[0]).certificate, asks_to_join(f"{name}")
            )
        wire = SimpleNamespace(name=BACK, address="back", ask=self._ask)
        holder = SimpleNamespace(reducer=Reducer(BACK), compute=object())
        self.rounds = Rounds(wire, holder, self.group, self.published.append)
        self.rounds.begin_term()
        self.ends = dict.fromkeys((BACK, *PEERS), MEAN)  # reducer -> its reply; None = never
        self.asked = []

        async def fetch_mean(wire, reducer, plan, part, *, within_seconds):
            if self.ends[part.reducer] is None:
                await asyncio.sleep(within_seconds)
            return self.ends[part.reducer]

        monkeypatch.setattr(module, "fetch_mean", fetch_mean)

    async def _ask(self, address, *request, **more):
        self.asked.append(address)
        raise TimeoutError

    def hold(self, within_seconds=30.0, senders=PEERS):
        plan = round_plan(
            module.round_number_of(self.rounds._term, self.rounds.past.count),
            senders,
            [(2 * i, 2 * i + 2, one, f"{one}") for i, one in enumerate((BACK, *PEERS))],
            within_seconds=within_seconds,
        )
        self.rounds.publish(plan)

        async def outcome():
            try:
                return SimpleNamespace(contents=await self.rounds.hold(plan), failed={})
            except RoundFailed as error:
                return SimpleNamespace(contents=[], failed=error.failed)

        return run(outcome)


@pytest.fixture
def held(monkeypatch):
    return Round(monkeypatch)


def without(held, outcome, senders=PEERS):
    """As the leader goes on after a round with failures; the members join again."""
    for name, reason in outcome.failed.items():
        request = held.group.members[name].join_request
        held.group.remove_failed(name, reason, counts=name in senders)
        held.group.add_member(name, issue(name.split("/")[0]).certificate, request)
        held.group.members[name].time_block(1.0)


def test_who_sends_nothing_never_rests_nor_do_its_holders_other_machines(held):
    """No step is closed with rows of it, so that it could make nothing good."""
    held.ends["eve/1"] = None
    for _ in range(2):
        held.group.rows.began_at -= 60.0
        held.group.members["ana/1"].time_block(1.0)
        outcome = held.hold(within_seconds=0.2, senders=PEERS[:2])
        assert set(outcome.failed) == {"eve/1"}
        without(held, outcome, PEERS[:2])
    request = held.group.members["eve/1"].join_request
    held.group.add_member("eve/2", issue("eve").certificate, request)
    assert {"eve/1", "eve/2"} <= held.group.active_members().keys()
    for _ in range(2):
        outcome = held.hold(within_seconds=0.2)
        without(held, outcome)
    assert "eve/1" not in held.group.active_members()


async def test_a_step_counts_no_failure_of_one_that_sends_nothing(group, monkeypatch):
    members = group.leader.group
    mean = bytes(4 * group.compute.num_values)
    outcomes = [True, True, False]

    async def hold(plan):
        if "bo/1" not in members.members:
            group.add_timed("bo/1")
        if outcomes.pop(0):
            raise RoundFailed({"bo/1": "it does not give the sum"})
        return [mean]

    group.add_timed("ana/1")
    group.holds(monkeypatch, hold)
    step = asyncio.ensure_future(group.step())
    await group.adopt_all("ana/1")
    members.rows.began_at -= 60.0
    members.changed.set()
    await step
    assert not outcomes
    assert "bo/1" in members.active_members()


def test_a_reducer_without_a_part_that_the_leader_has_is_set_aside_and_blames_nobody(held):
    """So a reducer that says that it has not got a part puts nobody out."""

    async def ask(*request, **more):
        held.rounds._forwarded = {("eve/1", "ana/1")}  # it was told, and sent it to the leader
        return SimpleNamespace(senders=("ana/1", "bo/1")), b""

    held.rounds._wire.ask = ask
    held.ends["ana/1"] = None
    outcome = held.hold(within_seconds=0.2)
    assert (outcome.contents, outcome.failed) == ([], {})
    assert set(held.rounds.past.last_aside) == {"ana/1"}
    assert held.published[-1].missing == (("eve/1", "ana/1"),)
    assert not held.rounds.past.faults
    held.rounds.begin_term()
    assert not held.rounds.past.last_aside, "its numbers were those of the last term"


def test_when_time_is_up_a_reducer_that_does_not_answer_is_at_fault(held):
    held.ends["ana/1"] = None
    failed = held.hold(within_seconds=0.2).failed
    assert failed == {"ana/1": "it took a slice and does not answer"}
    assert held.rounds.past.faults == {"ana/1": 1}


def of_values(held, num_values):
    """The group's rounds, of so many values, at a state where its members are not."""
    rounds = held.rounds
    rounds._compute = SimpleNamespace(num_values=num_values, settings=SETTINGS)
    rounds._holder = SimpleNamespace(
        step=3, lineage="lineage 3", reducer=Reducer(BACK), compute=rounds._compute
    )
    rounds._wire.meter = LinkMeter(None)
    return rounds


def planning(held, *, per_second=1.25e6):
    """The group's rounds, of a million values, whose members are at its state."""
    rounds = of_values(held, 1_000_000)
    for number, name in enumerate(PEERS):
        held.group.members[name].works_at = "lineage 3"
        held.group.members[name].last_poll = poll(per_second)
        held.group.ledger.adopt(name, {number})
    return rounds


def poll(per_second):
    """One that declares such a link."""
    return SimpleNamespace(up_bytes_per_second=per_second, down_bytes_per_second=per_second)


@pytest.mark.parametrize("has_given_its_mean", [False, True])
def test_a_reducer_that_goes_before_it_gave_its_mean_gets_no_slice_for_a_while(
    held, has_given_its_mean
):
    """One without rows is never suspended, and would keep each round from ending."""
    rounds = planning(held, per_second=12.5e6)
    held.ends["bo/1"] = None
    if not has_given_its_mean:
        held.ends["ana/1"] = None
    request = held.group.members["ana/1"].join_request
    held.group.remove("ana/1", "it fell silent")
    outcome = held.hold(senders=PEERS[1:])
    assert outcome.failed == {"ana/1": "it fell silent"}
    held.group.add_member("ana/1", issue("ana").certificate, request)
    held.group.members["ana/1"].works_at = "lineage 3"
    reducers = {part.reducer for part in rounds.plan().slices}
    assert ("ana/1" in reducers) == has_given_its_mean
    assert {"bo/1", "eve/1"} < reducers


def test_a_late_sender_is_taken_for_slower_each_time_and_less_after_rounds_that_go_well(held):
    async def ask(*request, **more):
        return SimpleNamespace(senders=("ana/1", "bo/1")), b""

    planning(held)._wire.ask = ask
    held.rounds._holder.reducer.arrived = lambda number: {"ana/1", "bo/1"}
    held.ends |= dict.fromkeys((BACK, "bo/1"))
    for _ in range(7):
        assert "eve/1" in held.hold(within_seconds=0.2).failed
    assert held.rounds.past.slowdowns == {"eve/1": MAX_SLOWDOWN}
    held.ends |= dict.fromkeys((BACK, "bo/1"), MEAN)
    assert held.hold().contents
    assert held.rounds.past.slowdowns == {"eve/1": MAX_SLOWDOWN / 2}
    for _ in range(12):
        held.hold()
    assert not held.rounds.past.slowdowns


def test_one_slow_sender_is_waited_for_as_long_as_the_step_has_taken_or_the_others_may_need(held):
    rounds = planning(held)
    usual = rounds.plan().within_seconds
    held.group.members["eve/1"].last_poll = poll(1.0)
    assert rounds.plan().within_seconds <= 1.01 * usual
    rounds.past.slowdowns["eve/1"] = 1024.0
    assert rounds.plan().within_seconds <= 1.01 * usual
    held.group.rows.began_at -= 20 * usual
    assert rounds.plan().within_seconds == pytest.approx(20 * usual, rel=0.01)


def test_a_slow_backbone_and_a_slow_sender_that_is_alone_are_waited_for(held):
    rounds = planning(held)
    usual = rounds.plan().within_seconds
    rounds._wire.meter.sent(1_000_000, 100.0)
    assert rounds.plan().within_seconds > 10 * usual
    rounds._wire.meter = LinkMeter(None)
    for name in ("ana/1", "bo/1"):
        held.group.remove(name, "it has left")
    held.group.members["eve/1"].last_poll = poll(2e4)
    assert rounds.plan().within_seconds > 10 * usual


def test_a_peer_that_computes_from_the_groups_state_may_add_up_whatever_its_last_poll_said(held):
    rounds, ana = of_values(held, 100), held.group.members["ana/1"]
    assert {part.reducer for part in rounds.plan().slices} == {BACK}
    ana.works_at = "lineage 3"
    assert {part.reducer for part in rounds.plan().slices} == {BACK, "ana/1"}


def test_what_took_long_to_compute_is_waited_for_longer_though_never_for_ever(held):
    """On a busy machine a part of 40 s of work comes a second late: it is not computed again."""
    rounds = of_values(held, 100)
    for _ in range(20):
        rounds._durations.add(0.01)  # of what was expected: rounds are quick here
    rows = held.group.rows

    def within_seconds(seconds):
        rows.began_at = time.monotonic() - seconds
        return rounds.plan().within_seconds

    assert within_seconds(0.0) == module.MIN_WAIT_SECONDS
    assert within_seconds(40.0) == pytest.approx(4.0, abs=0.1)
    assert within_seconds(7200.0) == module.MAX_PATIENCE_SECONDS
