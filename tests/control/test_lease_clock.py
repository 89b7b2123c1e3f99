"""Leases are measured by the looks of the process that ends them, on its own clock: whatever the
server's clock does, a silent worker loses its tasks after a lease, and a live one keeps them.
"""

import pytest

from dipaco.control import clock
from dipaco.control.database import postgresql
from dipaco.control.ledger import open_ledger
from dipaco.errors import ClaimLost
from tests.control.conftest import do, do_one
from tests.support.members import join, process_of

LEASE = 60.0
LOOK_SECONDS = LEASE / 4  # as a heartbeat
JUMPS = pytest.mark.parametrize("hours", [-26, 26])


class Time:
    """This process's clock, which passes when told to, and the server's, which may jump."""

    def __init__(self, patch):
        self._patch, self.now = patch, 1000.0
        patch.setattr(clock, "now_seconds", lambda: self.now)

    def jump(self, hours):
        """Sets the server's clock."""
        now = f"({postgresql.NOW} + {hours * 3600})"
        self._patch.setattr(postgresql, "NOW", now)
        postgresql._named.cache_clear()


@pytest.fixture
def time(monkeypatch):
    yield Time(monkeypatch)
    monkeypatch.undo()
    postgresql._named.cache_clear()


def look(ledger, time, seconds, live=()):
    """Looks for expired leases for so long, while the `live` claims are renewed; who lost one."""
    lost = []
    for _ in range(round(seconds / LOOK_SECONDS)):
        time.now += LOOK_SECONDS
        assert all(ledger.queue.renew(claim, LEASE) for claim in live)
        lost += ledger.reaper.reap()
    return lost


def two_claims(ledger, plan):
    """Tasks of two workers."""
    for _ in range(4):
        do_one(ledger, plan)
    return [ledger.queue.claim(name, lease_seconds=LEASE) for name in ("dead", "live")]


@JUMPS
def test_a_clock_that_jumps_ends_no_live_lease_and_keeps_no_dead_one(ledger, plan, time, hours):
    dead, live = two_claims(ledger, plan)
    assert look(ledger, time, LEASE / 2, live=[dead, live]) == []
    time.jump(hours)
    assert ledger.reaper.reap() == []
    assert look(ledger, time, 2 * LEASE, live=[live]) == ["dead"]
    assert not ledger.queue.is_held(dead)
    assert ledger.queue.is_held(live)
    assert ledger.queue.claim("next").task == dead.task
    with pytest.raises(ClaimLost):
        do(ledger, plan, dead)
    do(ledger, plan, live)


@JUMPS
def test_a_process_that_has_just_come_ends_a_lease_after_looking_for_as_long(
    ledger, plan, place, time, hours
):
    _dead, live = two_claims(ledger, plan)
    time.jump(hours)
    with open_ledger(*place) as fresh:
        assert fresh.reaper.reap() == []
        assert look(fresh, time, LEASE - LOOK_SECONDS, live=[live]) == []
        assert look(fresh, time, LOOK_SECONDS, live=[live]) == ["dead"]


def test_a_lease_does_not_end_in_the_time_in_which_nobody_could_look(ledger, plan, time):
    """The database was away, or the machine slept: the holder had no more time than we."""
    _dead, live = two_claims(ledger, plan)
    assert ledger.reaper.reap() == []
    time.now += 3600
    assert ledger.reaper.reap() == []
    assert look(ledger, time, LEASE, live=[live]) == ["dead"]


def test_of_two_processes_that_end_a_lease_one_is_told(ledger, plan, place, time):
    two_claims(ledger, plan)
    with open_ledger(*place) as other:
        lost = []
        for _ in range(5):
            lost += ledger.reaper.reap() + other.reaper.reap()
            time.now += LOOK_SECONDS
    assert lost == ["dead", "live"]


def test_a_claim_that_is_renewed_just_before_its_end_is_kept(ledger, plan, place, time):
    """It is ended only as it was seen."""
    _, live = two_claims(ledger, plan)
    rows, renewed = ledger._database.rows, []

    def renews_after_the_look(query, **values):
        found = rows(query, **values)
        if query == "live_claims" and time.now == 1000 + LEASE:
            with open_ledger(*place) as other:
                renewed.append(other.queue.renew(live, LEASE))
        return found

    assert ledger.reaper.reap() == []
    ledger._database.rows = renews_after_the_look
    assert look(ledger, time, LEASE) == ["dead"]
    assert renewed == [True]
    assert ledger.queue.is_held(live)


@JUMPS
def test_a_backbone_lives_as_long_as_its_heartbeats_are_seen(ledger, time, hours):
    for number, name in enumerate(("dead", "live")):
        join(ledger, name)
        ledger.swarms.put_backbone(name, "modular", 0, f"here:{number}")
    assert ledger.reaper.reap() == []
    time.jump(hours)
    for _ in range(4):
        assert len(ledger.swarms.backbones("modular", 0)) == 2
        time.now += LOOK_SECONDS
        ledger.members.heartbeat("live", process_of("live"))
        ledger.reaper.reap()
    assert ledger.swarms.backbones("modular", 0) == {"live": "here:1"}
    ledger.members.heartbeat("dead", process_of("dead"))  # it was only stopped
    assert len(ledger.swarms.backbones("modular", 0)) == 2


def test_how_long_a_task_was_held_is_counted_by_its_holder(ledger, plan, time):
    _, live = two_claims(ledger, plan)
    time.jump(26)
    time.now += 30
    ledger.queue.renew(live, LEASE)
    held = {held.worker: held.held_seconds for held in ledger.queue.held()}
    assert held == {"dead": 0.0, "live": 30.0}
