"""`dipaco status` says in one line why nothing happens, for every way to stand still."""

import pytest

from dipaco.control.facts.quorums import StepInGrace
from dipaco.control.planning.tasks import Task
from dipaco.runs.reading import blocked
from dipaco.runs.reading.blocked import situation_of, why
from dipaco.topology import ModuleId
from tests.support.members import join, process_of


@pytest.fixture
def said(ledger, tmp_path):
    """`said()`: (state, sentence) of the run as it is now."""

    def said(*graces):
        return why(situation_of(ledger, tmp_path, graces))

    return said


def silence(ledger, seconds, name="w"):
    change = "UPDATE workers SET heartbeat = heartbeat - ? WHERE name = ?"
    ledger._database._connection.execute(change, (seconds, name))


def here_for(ledger, seconds, name):
    change = "UPDATE workers SET joined = joined - ? WHERE name = ?"
    ledger._database._connection.execute(change, (seconds, name))


def test_no_worker(ledger, said):
    assert said() == ("no_worker", "no worker is here: 1 task is ready, start some.")


def test_no_worker_since_the_disk_of_the_last_was_full(ledger, said):
    join(ledger)
    ledger.members.leave("w", process_of("w"), "DiskFull: No space left on the disk of x.")
    state, sentence = said()
    assert state == "no_worker"
    assert sentence.endswith("w left with DiskFull: No space left on the disk of x.")


def test_all_workers_are_silent(ledger, said):
    for name, seconds in (("w", 75), ("v", 90)):
        join(ledger, name)
        silence(ledger, seconds, name)
    state, sentence = said()
    assert state == "silent"
    assert "all 2 workers are silent, w for the shortest time (7" in sentence


def test_all_workers_were_here_before_the_machine_was_restarted(ledger, said):
    join(ledger)
    change = "UPDATE workers SET epoch = 'before', heartbeat = heartbeat + 9999999"
    ledger._database._connection.execute(change)
    assert said().state == "silent"


def test_a_lease_of_a_dead_worker(ledger, said):
    for name in ("dead", "w"):
        join(ledger, name)
    assert ledger.queue.claim("dead", lease_seconds=60.0) is not None
    silence(ledger, 40, "dead")
    here_for(ledger, 100, "w")
    assert said() == (
        "lease",
        "`prepare` is held by dead, which is silent for 40 s: free in about 20 s",
    )


def test_a_lease_of_a_worker_that_died_before_the_others_came(ledger, said):
    """Who ends it must have seen it stand still for as long as the lease."""
    for name in ("dead", "w", "v"):
        join(ledger, name)
    assert ledger.queue.claim("dead", lease_seconds=60.0) is not None
    silence(ledger, 300, "dead")
    here_for(ledger, 12, "w")
    assert said().sentence.endswith("which is silent for 300 s: free in about 48 s")


def test_a_task_that_is_tried_again_later(ledger, said):
    join(ledger)
    ledger.failures.fail(ledger.queue.claim("w"), "Diverged: nan")
    state, sentence = said()
    assert state == "delayed"
    assert "`prepare` went wrong 1 time and is tried again in 1 s: Diverged: nan" in sentence


def test_a_failed_task(ledger, said):
    join(ledger)
    ledger.failures.fail(ledger.queue.claim("w"), "BadSource: no text", is_lasting=True)
    state, sentence = said()
    assert state == "failed"
    assert sentence.startswith("cannot go on: `prepare` failed, at last on w; `dipaco retry`")
    assert sentence.endswith("BadSource: no text")


def test_a_failed_task_while_others_go_on(ledger, said):
    join(ledger)
    ledger.failures.fail(ledger.queue.claim("w"), "BadSource: no text", is_lasting=True)
    ledger._database.change("add_task", **Task("report")._asdict(), priority=9)
    assert ledger.queue.claim("w") is not None
    state, sentence = said()
    assert state == "working"
    assert "`prepare` failed" in sentence


@pytest.mark.parametrize(
    ("command", "state"), [("pause", "paused"), ("drain", "draining")], ids=["pause", "drain"]
)
def test_paused_or_draining(ledger, said, command, state):
    ledger.meta.set_command(command)
    found, sentence = said()
    assert found == state
    assert sentence.endswith("`dipaco resume` goes on")


def test_a_quorum_that_waits_for_the_rest(ledger, said):
    join(ledger)
    ledger._database._connection.execute("UPDATE tasks SET state = 'waiting'")
    early, late = (ModuleId(level, 0) for level in ("early", "late"))
    assert said(StepInGrace(early, 3, 40.0), StepInGrace(late, 3, 50.0)) == (
        "quorum",
        "early/0000 phase 3 has its quorum and waits 40 s for the rest",
    )


def test_no_worker_of_the_kind_that_is_needed(ledger, said):
    join(ledger, kinds=("outer",))
    state, sentence = said()
    assert state == "no_such_worker"
    assert "none of 1 worker here does prepare" in sentence


def test_a_full_disk(ledger, said, tmp_path, monkeypatch):
    join(ledger)
    monkeypatch.setattr(blocked, "FULL_BYTES", 1 << 62)
    assert said() == ("disk_full", f"the disk of {tmp_path} is full: free some space")


def test_at_work_and_finished(ledger, said):
    join(ledger)
    assert said() == ("working", "1 task is ready for 1 worker")
    assert ledger.queue.claim("w") is not None
    assert said() == ("working", "1 task is held by 1 worker, 0 are ready")
    ledger._database._connection.execute("UPDATE tasks SET state = 'done'")
    assert said().state == "finished"
    assert said() == ("finished", "finished: every task is done")


def test_a_task_that_may_hang(ledger, said):
    """Its worker lives, and renews its lease."""
    join(ledger)
    claim = ledger.queue.claim("w")
    assert ledger.queue.renew(claim, stalled_seconds=299.0)
    assert said().state == "working"
    assert ledger.queue.renew(claim, stalled_seconds=301.0)
    assert said() == (
        "stalled",
        "1 task is held by 1 worker, 0 are ready; `prepare` has made no progress on w for 301 s "
        "and may hang: another worker takes it over after 600 s; with no other, end that process",
    )


def test_a_run_without_texts_is_finished_and_says_what_failed(ledger, said):
    execute = ledger._database._connection.execute
    execute("UPDATE tasks SET kind = 'sample', arm = 'modular', phase = 1")
    ledger.failures.fail(ledger.queue.claim("w"), "XlaRuntimeError: no memory", is_lasting=True)
    assert said().state == "finished"
    sentence = said().sentence
    assert "but 1 text: `sample modular phase 1` failed, at last on w" in sentence
    assert sentence.endswith("`dipaco retry` has it done again: XlaRuntimeError: no memory")
