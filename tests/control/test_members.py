"""Members: one worker to a name, and backbones that live; on both databases."""

import pytest

from dipaco.control import clock
from dipaco.control.members.swarms import PROVED
from tests.control.conftest import do, do_until
from tests.support.members import join, process_of


def test_of_two_workers_that_find_a_name_free_one_gets_it(ledger):
    members = ledger.members
    join(ledger, "back", process_id="1")
    join(ledger, "back", process_id="2", is_taken=True)
    (dead,) = members.list()
    join(ledger, "back", process_id="3", after=dead)
    join(ledger, "back", process_id="4", after=dead, is_taken=True)
    assert [member.process_id for member in members.list()] == ["3"]
    members.leave("back", "3")
    join(ledger, "back", process_id="5")
    assert [(member.process_id, member.state) for member in members.list()] == [("5", "here")]


def test_a_worker_whose_name_was_taken_learns_it_and_speaks_for_the_other_no_more(ledger):
    """Both have one host's name and one process number, as two containers may."""
    members = ledger.members
    join(ledger, "back", process_id="1")
    assert members.heartbeat("back", "1")
    (silent,) = members.list()
    join(ledger, "back", process_id="2", after=silent)
    before = members.list()
    assert not members.heartbeat("back", "1")
    members.leave("back", "1")
    assert [(m.state, m.live_seconds) for m in members.list()] == [("here", before[0].live_seconds)]
    assert members.heartbeat("back", "2")


def test_a_worker_that_takes_over_a_name_stays_registered_and_the_dead_ones_tasks_are_ready(ledger):
    join(ledger, "back", process_id="1")
    assert ledger.queue.claim("back") is not None
    assert ledger.queue.give_back_of_namesake("back") == 1
    assert [member.state for member in ledger.members.list()] == ["here"]
    assert ledger.queue.claim("other") is not None
    assert ledger.queue.give_back_of("back") == 0
    assert [member.state for member in ledger.members.list()] == ["lost"]


def test_a_backbone_without_volunteers_leaves_its_path_and_takes_it_back(ledger):
    swarms = ledger.swarms
    for number, name in enumerate(("back", "plain")):
        join(ledger, name, process_id=str(number))
    with ledger._database.transaction():
        for path in (0, 1):
            values = {"kind": "train", "arm": "modular", "subject": str(path), "phase": 0}
            ledger._database.change("add_task", **values, priority=path)

    def claims(worker):
        found = ledger.queue.claim(worker, ("train",))
        if found is not None:
            ledger.queue.give_back(found)
        return None if found is None else found.task.path

    swarms.put_backbone("back", "modular", 0, "here:1", is_staffed=False)
    assert (claims("back"), claims("plain")) == (None, 0)
    assert not swarms.wants("modular", 0, "plain")
    assert swarms.backbones("modular", 0) == {"back": "here:1"}
    assert swarms.backbones("modular", 0, is_staffed=True) == {}
    assert swarms.addresses() == ["here:1"], "to join there"
    swarms.put_backbone("back", "modular", 0, "here:1", is_staffed=True)
    assert (claims("back"), claims("plain")) == (0, 1)
    assert swarms.wants("modular", 0, "plain")
    assert not swarms.wants("modular", 1, "plain")
    assert not swarms.wants("modular", 0, "back")
    assert swarms.backbones("modular", 0, is_staffed=False) == {}
    ledger.members.leave("back", "0")
    assert not swarms.wants("modular", 0, "plain")
    assert swarms.backbones("modular", 0) == {}, "one that left does not count"
    assert swarms.addresses() == []


def test_the_third_refused_session_of_a_credential_locks_it(ledger):
    swarms = ledger.swarms
    for serial in ("s1", "s2"):
        swarms.issue(serial, "eve", "volunteer", 2e9)
    assert swarms.refuse("s1", "eve/1", "a NaN") == ("a NaN",)
    for _ in range(3):  # the reply may be lost: it counts once
        assert swarms.refuse("s1", "eve/2", "too large") == ("a NaN", "too large")
    assert swarms.locked() == []
    swarms.refuse("s2", "eve/3", "a NaN")
    assert swarms.refuse("s1", "eve/4", "a NaN") == ("a NaN", "too large", "a NaN")
    assert [(one.serial, one.name) for one in swarms.locked()] == [("s1", "eve")]
    assert {one.serial: one.is_revoked for one in swarms.credentials()} == {"s1": True, "s2": False}
    assert swarms.refusals()["s2"] == ("a NaN",)


def test_one_session_that_was_found_to_lie_locks_its_credential_and_what_shows_it_is_kept(ledger):
    swarms = ledger.swarms
    swarms.issue("s1", "eve", "volunteer", 2e9)
    found = {"kind": "sum", "step": 3, "claimed": [1.01], "found": [1.0]}
    swarms.refuse("s1", "eve/1", f"{PROVED} at step 4: 1.01 times", found)
    swarms.refuse("s1", "eve/1", f"{PROVED} at step 4: 1.01 times", found | {"step": 9})
    assert [one.serial for one in swarms.locked()] == ["s1"]
    assert swarms.evidence() == [{"session": "eve/1", "serial": "s1", **found}]
    assert [one.is_revoked for one in swarms.credentials()] == [True]


def test_a_worker_that_was_preempted_is_not_here(ledger):
    """It never leaves: with each preemption there would seem to be one more."""
    for name in ("preempted", "live"):
        join(ledger, name)
    (_, preempted) = ledger.members.list()
    ledger._database.change("mark_silent", name="preempted", heartbeats=preempted.heartbeats)
    assert [(m.name, m.presence) for m in ledger.members.list()] == [
        ("live", "here"),
        ("preempted", "silent"),
    ]
    assert [member.name for member in ledger.members.here()] == ["live"]
    assert ledger.members.heartbeat(
        "preempted", process_of("preempted")
    )  # its machine was only suspended
    assert [member.name for member in ledger.members.here()] == ["live", "preempted"]


def test_a_worker_of_before_a_reboot_is_silent_since_then(ledger):
    """The clock of a file starts at zero: the worker would seem to have a heartbeat to come."""
    join(ledger, "w")
    execute = ledger._database._connection.execute
    execute("UPDATE workers SET epoch = 'before', heartbeat = heartbeat + 9999999")
    (member,) = ledger.members.list()
    assert member.presence == "silent"
    assert member.silent_seconds > 0


@pytest.fixture
def pass_time(ledger, monkeypatch):
    """`pass_time(seconds)`: this process's clock passes, and the server's."""
    passed, now_seconds = [0.0], clock.now_seconds
    monkeypatch.setattr(clock, "now_seconds", lambda: now_seconds() + passed[0])

    def pass_time(seconds):
        passed[0] += seconds
        if ledger._database.is_remote:  # as if everything had happened that much earlier
            columns = ("joined", "heartbeat")
            changes = ", ".join(f"{name} = {name} - {seconds}" for name in columns)
            ledger._database._connection.execute(f"UPDATE workers SET {changes}")

    return pass_time


def member(ledger, name):
    return {member.name: member for member in ledger.members.list()}[name]


def test_time_of_a_worker_counts_over_all_its_lives(ledger, plan, pass_time):
    """A worker that comes back and does nothing takes less part, not all."""
    claim = do_until(ledger, plan, "train")
    join(ledger, "w", process_id="1")
    ledger.queue.give_back(claim)
    claim = ledger.queue.claim("w")
    pass_time(100)
    do(ledger, plan, claim)
    ledger.members.heartbeat("w", "1")
    assert member(ledger, "w").participation == pytest.approx(1.0, abs=0.05)
    ledger.members.leave("w", "1")
    pass_time(1000)  # it is not there, and that is not its time
    join(ledger, "w", process_id="2")
    pass_time(300)
    ledger.members.heartbeat("w", "2")
    assert member(ledger, "w").live_seconds == pytest.approx(400, abs=5)
    assert member(ledger, "w").participation == pytest.approx(1 / 4, abs=0.05)
