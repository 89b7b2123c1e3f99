"""The queue: a task has one holder, the most urgent is first, done is done; on both databases."""

import pytest
from support.made_up_facts import stage

from dipaco.control.ledger import open_ledger
from dipaco.control.planning.tasks import PRIORITY, Task
from tests.control.conftest import DATABASES, IntegrityError, do, do_one, do_until

pytestmark = pytest.mark.parametrize("place", DATABASES, indirect=True)


def test_two_programs_on_one_ledger_never_hold_the_same_task(ledger, plan, place):
    for _ in range(4):
        do_one(ledger, plan)
    with open_ledger(*place) as other:
        claims = [each.queue.claim("w") for _ in range(3) for each in (ledger, other)]
    ids = [claim.task_id for claim in claims if claim]
    assert len(ids) == len(set(ids)) >= 5


def test_the_most_urgent_task_is_claimed_first_until_every_task_is_done(ledger, plan):
    while not ledger.queue.is_finished():
        kinds = {each.task.kind for each in ledger.queue.unfinished()}
        assert ledger.queue.unfinished_kinds() == kinds
        claim = do_one(ledger, plan)
        assert PRIORITY[claim.task.kind] == min(PRIORITY[kind] for kind in kinds)
    assert claim.task == Task("report")
    assert ledger.queue.unfinished() == []
    assert ledger.queue.unfinished_kinds() == set()


def test_a_task_that_is_given_back_is_claimed_again_under_a_higher_attempt(ledger):
    first = ledger.queue.claim("one")
    ledger.queue.give_back(first)
    second = ledger.queue.claim("two")
    assert second.task_id == first.task_id
    assert second.attempt == first.attempt + 1


def test_after_a_crash_giving_everything_back_is_enough(ledger, plan):
    for _ in range(4):
        do_one(ledger, plan)
    held = [ledger.queue.claim("dead"), ledger.queue.claim("dead too")]
    assert all(held)
    assert ledger.queue.give_back_all() == 2
    again = [ledger.queue.claim("next"), ledger.queue.claim("next")]
    assert [claim.task for claim in again] == [claim.task for claim in held]


def test_the_schema_itself_refuses_to_open_a_finished_task(ledger, plan):
    """The rule is the database's, not the program's."""
    do_one(ledger, plan)
    connection = ledger._database._connection
    for state in ("ready", "claimed"):
        with pytest.raises(IntegrityError, match="cannot be opened again"):
            connection.execute(f"UPDATE tasks SET state = '{state}' WHERE kind = 'prepare'")


def test_a_stale_claim_cannot_give_back_what_another_holds(ledger, plan):
    stale = ledger.queue.claim("slow")
    ledger.queue.give_back_all()
    current = ledger.queue.claim("quick")
    ledger.queue.give_back(stale)
    assert ledger.queue.claim("third") is None
    ledger.commit.finish(plan, current, [stage("prepare")])


def test_a_look_that_finds_nothing_takes_no_lock(ledger, plan, monkeypatch):
    """Many idle workers must not keep those waiting that have something to record."""
    claim = do_until(ledger, plan, "train")
    while ledger.queue.claim("others") is not None:
        pass

    def locked(*_, **__):
        raise AssertionError("it took the lock")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._database, "transaction", locked)
        assert ledger.queue.claim("idle") is None
        assert ledger.queue.claim_backup("idle", factor=0.0) is None  # nothing is usual yet
        assert ledger.reaper.reap() == []
        assert not ledger.queue.is_finished()
        assert ledger.queue.unfinished_kinds() == {"train"}
        ledger.failures.end_delays()
    do(ledger, plan, claim)
    with monkeypatch.context() as patch:
        patch.setattr(ledger._database, "transaction", locked)
        assert ledger.queue.claim_backup("idle") is None  # now something is, and nothing is late
    assert ledger.queue.claim_backup("idle", factor=0.0) is not None
