"""One short question says what an idle worker would find if it asked for everything; and workers
watch those that follow them in a ring, so that each is watched and none watches thousands.
"""

from dipaco.control import clock
from dipaco.control.claims import silent_workers
from dipaco.control.claims.queue import ALL_KINDS
from tests.control.conftest import do_one, do_until
from tests.support.members import join, process_of


def test_it_says_what_the_long_questions_find_at_every_moment_of_a_run(ledger, plan):
    seen = set()
    while True:
        for kinds in (ALL_KINDS, ("outer",), ("train", "score")):
            summary = ledger.meta.work_summary(kinds)
            assert summary.command == ledger.meta.command()
            assert summary.has_unfinished == bool(ledger.queue.unfinished_kinds())
            states = {(each.task.kind, each.state) for each in ledger.queue.unfinished()}
            assert summary.has_ready == any((kind, "ready") in states for kind in kinds)
            assert not summary.has_delayed_or_failed
            seen.add(summary[1:])
        if do_one(ledger, plan) is None:
            break
    assert seen == {(True, False, True), (False, False, True), (False, False, False)}


def test_it_sees_delays_failures_and_commands(ledger, plan):
    claim = do_until(ledger, plan, "train")
    ledger.failures.fail(claim, "why")
    assert ledger.meta.work_summary(ALL_KINDS).has_delayed_or_failed
    ledger.failures.retry()
    assert not ledger.meta.work_summary(ALL_KINDS).has_delayed_or_failed
    ledger.failures.fail(ledger.queue.claim("w"), "why", is_lasting=True)
    assert ledger.meta.work_summary(ALL_KINDS).has_delayed_or_failed
    ledger.meta.set_command("drain")
    assert ledger.meta.work_summary(ALL_KINDS).command.name == "drain"


def test_a_worker_watches_those_that_follow_it_and_the_first_follow_the_last(ledger, monkeypatch):
    monkeypatch.setattr(silent_workers, "WATCHED", 2)
    for name in "abcde":
        join(ledger, name)
    watched = lambda name: {  # noqa: E731
        row[0]
        for row in ledger._database.rows("heard_after", name=name, limit=silent_workers.WATCHED)
    }
    assert watched("b") == {"c", "d", "a", "b"}
    assert watched("e") == {"a", "b"}
    assert watched("") == {"a", "b"}


def test_one_worker_alone_finds_out_that_all_others_are_dead(ledger, monkeypatch):
    monkeypatch.setattr(silent_workers, "WATCHED", 2)
    now = 1000.0
    monkeypatch.setattr(clock, "now_seconds", lambda: now)
    for name in "abcdefgh":
        join(ledger, name)
    heard = lambda: {row[0] for row in ledger._database.rows("heard_workers")}  # noqa: E731
    seen = []
    for _ in range(5 * 8):
        ledger.members.heartbeat("d", process_of("d"))
        ledger.reaper.reap("d")
        seen.append(len(heard()))
        now += silent_workers.LEASE_SECONDS / 4
    assert heard() == {"d"}
    assert seen[:4] == [8] * 4, "it must have looked for a lease"
