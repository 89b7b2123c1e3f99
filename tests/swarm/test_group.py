"""Which sums a leader adopts: of members that it removed, and of the last leader's."""

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.leading.group import QUIET_SECONDS, SwarmGroup
from dipaco.swarm.leading.leasing import MIN_WAIT_SECONDS
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.network.messages import BlockResult
from dipaco.swarm.planning.shares import cut, shares_of_links
from tests.support.swarm_rig import SETTINGS, asks_to_join, issue

CERTIFICATE = issue("peer").certificate


def joined(group, name="ana"):
    group.add_member(name, issue(name.partition("/")[0]).certificate, asks_to_join())
    return group.member(name)


def keeps_rounds_from_ending(group, name, times, step_seconds=3.0):
    """A member that joins, and as often is removed for it and joins again."""
    member = joined(group, name)
    for _ in range(times):
        group.rows.began_at -= step_seconds
        group.remove_failed(name, "its part did not arrive")
        member = joined(group, name)
    return member


def test_a_peer_that_counts_other_targets_than_the_leader_is_out(group):
    member = joined(group)
    block = group.lease(member).blocks[0]
    with pytest.raises(SwarmRefuses, match="counts 0 targets in block 0, of 46"):
        group.accept(member, BlockResult(block=block, loss=1.0, targets=0.0))
    assert list(group.banned) == ["ana"]
    assert group.ledger.num_free == 8


@pytest.mark.parametrize("leaves_before", [False, True])
def test_the_third_refused_session_locks_a_credential_and_no_other(group, leaves_before):
    """A session counts once, however often it is refused."""
    pass_of_eve, other = issue("eve").certificate, issue("eve").certificate
    group.add_member("eve/9", pass_of_eve, asks_to_join(None))
    group.add_member("eve/other", other, asks_to_join(None))
    for number in range(3):
        group.check_not_locked(pass_of_eve)
        group.add_member(f"eve/{number}", pass_of_eve, asks_to_join(None))
        if leaves_before:
            group.remove(f"eve/{number}", "it has left")
        for _ in range(1 + leaves_before):
            group.ban(f"eve/{number}", "the gradient holds a NaN or an infinity")
        assert len(group.refusals[pass_of_eve.serial]) == number + 1
    with pytest.raises(SwarmRefuses, match=r"locked: 3 of its sessions were refused.*NaN"):
        group.check_not_locked(pass_of_eve)
    group.check_not_locked(other)
    assert list(group.members) == ["eve/other"], "no session goes on under a locked credential"


NUMBERS = st.floats() | st.sampled_from([float("nan"), float("inf"), -1.0, 0.0, 1e308, 5e-324])


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=5))
def test_whatever_peers_say_of_their_links_the_gradient_is_shared_out(said):
    links = []
    for number, (declared, up, down) in enumerate(said):
        request = asks_to_join(bytes_per_second=declared)
        member = GroupMember(f"peer{number}", CERTIFICATE, request)
        member.last_poll = SimpleNamespace(up_bytes_per_second=up, down_bytes_per_second=down)
        links.append(member.link(sends=True, can_reduce=True))
    slices = cut(shares_of_links(links), 1000)
    assert sum(part.stop - part.start for part in slices) == 1000
    assert all(part.stop >= part.start for part in slices)


def done(*blocks):
    return [BlockResult(block=b, loss=float(b), targets=46.0) for b in blocks]


@pytest.fixture
def group():
    made = SwarmGroup("back", SETTINGS, lambda sentence: None, lambda sender, reason: None)
    made.begin_step(3, [46.0] * 8)
    return made


@pytest.mark.parametrize(("hung_up", "seconds"), [(True, MIN_WAIT_SECONDS), (False, QUIET_SECONDS)])
def test_a_member_whose_poll_was_cut_off_is_silent_sooner_than_one_that_was_answered(
    group, hung_up, seconds
):
    """The first has died, mostly; the other's link may be busy with what it sends."""
    member = joined(group)
    for _ in range(40):
        member.silences.add(0.01)
    member.open_polls, member.has_hung_up = 1, hung_up
    member.poll_ends()
    group._checked_at = time.monotonic()
    member.silent_since -= seconds - 0.3
    assert not group.silent_members()
    member.silent_since -= 0.4
    assert group.silent_members() == ["ana"]


def test_a_silent_members_sum_is_adopted_and_that_of_one_that_failed_a_round_is_not(group):
    member = joined(group)
    blocks = group.lease(member).blocks
    assert all(group.accept(member, one) for one in done(*blocks))
    group.remove("ana", "it fell silent")
    assert group.adopt(joined(group), done(*blocks))
    assert group.ledger.done_by("ana") == blocks
    assert set(group.rows.losses) == set(blocks)
    group.remove_failed("ana", "its part did not arrive")
    assert not group.adopt(joined(group), done(*blocks))
    assert not group.rows.losses
    group.begin_step(4, [46.0] * 8)
    assert not group.adopt(group.member("ana"), done(*blocks))


def does(group):
    return [peer["does"] for peer in group.status()["peers"].values()]


def test_status_says_what_each_machine_does_now(group):
    ana, bo = joined(group), joined(group, "bo")
    group.add_member("cy", issue("cy").certificate, asks_to_join(computes=False))

    assert does(group) == ["waits", "waits", "adds up"]
    while blocks := group.lease(ana).blocks:
        assert does(group) == ["computes", "waits", "adds up"]
        assert all(group.accept(ana, one) for one in done(*blocks))
    bo.parked_since = (3, 0.0)
    assert does(group) == ["averages", "is parked", "adds up"]


def test_after_a_change_of_leader_sums_are_adopted_and_no_rows_are_leased_meanwhile(group):
    group.begin_step(3, [46.0] * 8, last_senders=set())
    ana, bo = joined(group), joined(group, "bo")
    assert group.lease(ana).blocks == ()
    assert group.adopt(ana, done(0, 5))
    assert not group.adopt(bo, done(5, 6))
    assert group.ledger.blocks_by_peer == {"ana": (0, 5)}
    with pytest.raises(SwarmRefuses, match="a loss of -1"):
        group.adopt(bo, [BlockResult(block=6, loss=-1.0, targets=46.0)])
    assert "bo" in group.banned
    assert not group.should_wake()
    group._adoption_ends = 1e-9
    assert group.should_wake()
    assert group.lease(ana).blocks


def test_adoption_ends_when_all_that_sent_to_the_last_leader_have_asked_for_rows(group):
    """One that asks has brought before what it had summed."""
    group.begin_step(3, [46.0] * 8, last_senders={"ana", "bo"})
    ana, bo, cy = joined(group), joined(group, "bo"), joined(group, "cy")
    assert group.lease(cy).blocks == ()
    assert group.lease(ana).blocks == ()
    assert group.adopt(bo, done(0, 5))
    assert not group.should_wake()
    assert group.lease(bo).blocks
    assert group.should_wake()
    assert group.lease(ana).blocks
    assert not group.adopt(cy, done(6))


def test_who_keeps_two_rounds_from_ending_gets_no_rows_for_a_while_where_others_do(group):
    ana, eve = joined(group), joined(group, "eve")
    for _ in range(2):
        assert group.lease(eve).blocks
        group.rows.began_at -= 3.0
        group.remove_failed("eve", "its part did not arrive")
        eve = joined(group, "eve")
    assert group.lease(eve).blocks, "ana may still be fetching the state"
    ana.time_block(0.1)
    assert not group.lease(eve).blocks
    assert group.lease(ana).blocks
    group.remove("ana", "it has left")
    assert group.lease(eve).blocks, "nobody else is there"


def test_that_one_rests_is_in_its_lease_and_in_the_status_where_others_compute(group):
    ana, eve = joined(group), keeps_rounds_from_ending(group, "eve", times=2)
    adds = keeps_rounds_from_ending(group, "zoe", times=2)
    adds.join_request = asks_to_join(None, computes=False)

    assert does(group) == ["waits", "waits", "adds up"], "ana has not computed yet"
    ana.time_block(0.1)
    assert does(group) == ["waits", "is suspended", "adds up"]
    assert group.lease(eve).why == "is suspended"
    assert not group.lease(ana).why
    kinds = [peer["kind"] for peer in group.status()["peers"].values()]
    assert kinds == [
        "computes",
        "computes, suspended: two averagings in a row did not end with it",
        "a backbone",
    ]


def test_a_new_session_makes_good_what_the_last_of_its_holder_did(group):
    ana = joined(group)
    keeps_rounds_from_ending(group, "eve/1", times=4)
    group.remove("eve/1", "it has left")
    eve = joined(group, "eve/2")
    ana.time_block(0.1)
    assert not group.lease(eve).blocks
    for _ in range(4):
        group.count({"eve/2": (0,)})
    group.remove("eve/2", "it has left")
    eve = joined(group, "eve/3")
    group.remove_failed("eve/3", "its part did not arrive")
    assert group.lease(joined(group, "eve/3")).blocks, "its first stall"


@pytest.fixture
def now(monkeypatch):
    """The time, in a list."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def test_nobody_becomes_faster_by_reporting_a_block_again_nor_by_late_ones_of_an_open_step(
    now, group
):
    """It would be leased all rows, and the honest would be parked."""
    eve = joined(group)
    (block,) = group.lease(eve).blocks
    eve.time_late_block(group.rows.step)
    assert not eve.seconds_per_block
    now[0] += 2.0
    for _ in range(9):
        group.accept(eve, *done(block))
        assert eve.seconds_per_block == pytest.approx(2.0)
        now[0] += 1e-3
    group.lease(eve)
    now[0] += 2.0
    for _ in range(9):
        eve.time_late_block(group.rows.step + 1)
        assert eve.seconds_per_block == pytest.approx(2.0)
        now[0] += 1e-3


def test_who_holds_blocks_back_until_others_have_computed_them_counts_as_that_slow(now, group):
    ana, eve = joined(group), joined(group, "eve")
    for one in (ana, eve):
        one.time_block(1.0)
        assert group.lease(one).blocks
    for block in ana.untimed:
        now[0] += 1.0
        group.accept(ana, *done(block))
    useful_at = eve.useful_at
    now[0] += 60.0
    group.count({})
    assert ana.seconds_per_block == pytest.approx(1.0)
    assert eve.seconds_per_block > 20
    assert eve.useful_at == useful_at


def test_a_step_does_not_wait_for_one_that_hangs_until_another_has_rested(now, group):
    """The one that hangs goes on polling, and was timed once."""
    group.begin_step(3, [46.0] * 8)
    ana, eve = joined(group), joined(group, "eve")
    ana.time_block(1.0)
    for _ in range(8):
        group.rows.began_at -= 60.0
        group.remove_failed("eve", "its part did not arrive")
        eve = joined(group, "eve")
        eve.time_block(1.0)
    assert group.lease(ana).blocks

    def waited_seconds(leased_to_eve):
        since = now[0]
        while now[0] < since + 4000.0:
            now[0] += 1.0
            ana.silent_since = eve.silent_since = now[0]
            group.check_members()
            if lease := group.lease(eve).blocks:
                leased_to_eve.extend(lease)
                break
        return now[0] - since

    leased = []
    assert 60.0 < waited_seconds(leased) < 400.0
    eve.time_block(1.0)
    assert waited_seconds(leased) < 60.0, "until a block of ana comes"
    now[0] += 1.0
    ana.time_block(1.0)
    group.check_members()
    assert not group.lease(eve).blocks


def test_an_averaging_and_the_fetching_of_the_mean_is_no_hanging(now, group):
    group.begin_step(3, [46.0] * 8)
    ana, eve = joined(group), keeps_rounds_from_ending(group, "eve", 2, step_seconds=900.0)
    for _ in range(64):
        ana.time_block(1.0)
    group.check_members()
    now[0] += 300.0  # in a round
    group.count({"ana": tuple(range(8))})
    group.begin_step(4, [46.0] * 8)
    for _ in range(250):
        now[0] += 1.0
        ana.silent_since = eve.silent_since = now[0]
        group.check_members()
        assert not group.lease(eve).blocks
