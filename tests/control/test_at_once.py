"""What two workers do at the same moment on PostgreSQL, where neither sees what the other has not
committed yet. On SQLite there is one writer at a time.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.servers import fresh_schemas

from dipaco.control.errors import CannotClean, RunCleaned
from dipaco.control.facts.commit import Commit
from dipaco.control.ledger import open_ledger
from dipaco.control.planning.tasks import Task
from dipaco.control.process_id import ProcessId
from dipaco.errors import WorkersActive
from dipaco.topology import ModuleId
from tests.control.conftest import do_one, do_until, facts_of, inside_of_this
from tests.control.test_rollback import TRAIN

DEADLINE_SECONDS = 60.0
LOOKERS = 24


@pytest.fixture
def place(postgresql_server):
    return postgresql_server.url, next(fresh_schemas)


def at_once(ledger, place, first, second):
    """`second`, on a connection of its own, begins when `first` is done and not committed; what
    `first` did is committed when `second` has ended, or waits for it.
    """

    def beside():
        with open_ledger(*place) as other:
            return second(other)

    with ThreadPoolExecutor(1) as thread, psycopg.connect(place[0], autocommit=True) as looking:
        with ledger._database.transaction():
            with inside_of_this(ledger._database):
                of_first = first(ledger)
            later = thread.submit(beside)
            deadline = time.monotonic() + DEADLINE_SECONDS
            while not later.done() and not is_waiting(looking):
                assert time.monotonic() < deadline, "it neither ends nor waits"
                time.sleep(0.01)
        return of_first, later.result(DEADLINE_SECONDS)


def is_waiting(looking):
    ((count,),) = looking.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchall()
    return bool(count)


def test_two_workers_that_claim_at_once_get_two_tasks(ledger, plan, place):
    ledger.queue.give_back(do_until(ledger, plan, "train"))  # all paths are ready
    one, other = at_once(ledger, place, *[lambda at: at.queue.claim("w")] * 2)
    assert one.task != other.task


def test_when_the_last_two_paths_of_a_module_finish_at_once_it_steps(ledger, plan, place):
    claims = [do_until(ledger, plan, "train"), ledger.queue.claim("other")]
    topology = plan.arm("modular").topology
    both = set.intersection(*({*topology.modules_of(claim.task.path)} for claim in claims))
    (module,) = both  # of two paths, which are these
    assert {*topology.paths_through(module)} == {claim.task.path for claim in claims}
    finish = [
        lambda at, claim=claim: at.commit.finish(plan, claim, facts_of(plan, claim.task))
        for claim in claims
    ]
    at_once(ledger, place, *finish)
    due = [each.task for each in ledger.queue.unfinished()]
    assert Task("outer", "modular", str(module), 0) in due


def test_when_the_last_two_scores_of_a_release_come_at_once_it_is_evaluated(ledger, plan, place):
    claim = do_until(ledger, plan, "score")
    while claim.task.arm != "modular":
        ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
        claim = do_until(ledger, plan, "score")
    for _ in range(2):
        do_one(ledger, plan)
    claims = [claim, ledger.queue.claim("other")]
    assert {claim.task.kind for claim in claims} == {"score"}
    finish = [
        lambda at, claim=claim: at.commit.finish(plan, claim, facts_of(plan, claim.task))
        for claim in claims
    ]
    at_once(ledger, place, *finish)
    due = [each.task for each in ledger.queue.unfinished()]
    assert Task("evaluate", "modular", "", claim.task.phase) in due


def test_of_many_that_look_at_once_one_gets_the_backup_of_a_late_task(ledger, plan, place):
    """Each on a connection of its own, all let go at the same moment, and again."""
    quick = do_until(ledger, plan, "train")
    claims = iter(lambda: ledger.queue.claim("slow"), None)
    held = [claim for claim in claims if claim.task.arm == quick.task.arm]
    ledger.commit.finish(plan, quick, facts_of(plan, quick.task))  # says what is usual
    go = threading.Barrier(LOOKERS)

    def look(number):
        with open_ledger(*place) as other:
            found = []
            for _ in held:
                go.wait(DEADLINE_SECONDS)
                found.append(other.queue.claim_backup(f"looker {number}", factor=0.0))
            return found

    with ThreadPoolExecutor(LOOKERS) as threads:
        backups = [claim for found in threads.map(look, range(LOOKERS)) for claim in found if claim]
    assert sorted(claim.task for claim in backups) == sorted(claim.task for claim in held)
    late = [held.task for held in ledger.queue.held() if held.task.arm == quick.task.arm]
    assert len(late) == 2 * len(held)


@pytest.mark.parametrize("statements", ["one", "several"])
def test_a_task_that_is_finished_while_it_gets_a_backup_leaves_no_claim(
    ledger, plan, place, statements, monkeypatch
):
    """The backup's worker would train on, renewing a claim on a task that is done."""
    if statements == "several":  # as arms with a quorum are committed
        monkeypatch.setattr(Commit, "_finish_training", lambda *_: False)
    quick = do_until(ledger, plan, "train")
    slow = ledger.queue.claim("slow")
    ledger.commit.finish(plan, quick, facts_of(plan, quick.task))  # says what is usual
    backup, _ = at_once(
        ledger,
        place,
        lambda at: at.queue.claim_backup("other", factor=0.0),
        lambda at: at.commit.finish(plan, slow, facts_of(plan, slow.task)),
    )
    assert backup.task == slow.task
    assert ledger.queue.held() == []
    assert not ledger.queue.renew(backup)
    told = [(e.attempt, e.worker, e.outcome) for e in ledger.history.after() if e.task == slow.task]
    assert sorted(told) == [
        (slow.attempt, slow.worker, "done"),
        (backup.attempt, "other", "superseded"),
    ]


@pytest.mark.parametrize("first_to_come", ["who waits", "what is waited for"])
def test_a_task_that_begins_to_wait_as_its_input_is_made_again_is_woken(
    ledger, plan, place, first_to_come
):
    """Else it would wait for ever, and the run with it."""
    step = do_until(ledger, plan, "outer")
    path = plan.arm("modular").topology.paths_through(step.task.module)[0]
    cause = Task("train", "modular", str(path), 0)
    ledger.redos.redo(step, cause, "objects/one", "damaged")
    with ledger._database.transaction():
        ledger._database.change("wake_tasks")  # as when another task has been done again
    step = ledger.queue.claim("stepping", ["outer"])
    redone = ledger.queue.claim("training", ["train"])
    while redone.task != cause:
        ledger.commit.finish(plan, redone, facts_of(plan, redone.task))
        redone = ledger.queue.claim("training", ["train"])
    both = [
        lambda at: at.redos.redo(step, cause, "objects/one", "damaged"),
        lambda at: at.commit.finish(plan, redone, facts_of(plan, redone.task)),
    ]
    at_once(ledger, place, *(both if first_to_come == "who waits" else reversed(both)))
    while do_one(ledger, plan) is not None:
        pass
    assert ledger.queue.is_finished()


@pytest.mark.parametrize("how", ["given back", "silent", "failed"])
def test_a_task_that_is_given_up_while_it_gets_a_backup_is_the_backups(ledger, plan, place, how):
    """Else a third worker would take it, and the backup's work might count for nothing."""
    quick = do_until(ledger, plan, "train")
    slow = ledger.queue.claim("slow", lease_seconds=-1.0)
    ledger.commit.finish(plan, quick, facts_of(plan, quick.task))  # says what is usual
    give_up = {
        "given back": lambda at: at.queue.give_back(slow),
        "silent": lambda at: at.reaper.reap(),
        "failed": lambda at: at.failures.fail(slow, "why"),
    }[how]
    backup, _ = at_once(
        ledger, place, lambda at: at.queue.claim_backup("other", factor=0.0), give_up
    )
    assert backup.task == slow.task
    third = ledger.queue.claim("third", [slow.task.kind])
    assert third is None or third.task != slow.task
    ledger.commit.finish(plan, backup, facts_of(plan, backup.task))


def record_cleaning(ledger):
    ledger.cleanings.record({})


def go_back(ledger):
    ledger.rollbacks.go_back("modular", 1, TRAIN)


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [(record_cleaning, go_back, RunCleaned), (go_back, record_cleaning, CannotClean)],
)
def test_a_run_is_cleaned_or_goes_back_and_not_both(finished, place, first, second, refused):
    with pytest.raises(refused):
        at_once(finished, place, first, second)
    is_back = first is go_back
    assert ({each.task for each in finished.queue.unfinished()} == set(TRAIN)) == is_back
    assert (finished.cleanings.removed() is None) == is_back


def begin_deleting(ledger):
    of = ("modular", ModuleId("early", 0), 0)
    retention = ledger.retention
    return retention.begin_deleting(lambda: retention.superseded_modules(*of, newest=2))


@pytest.mark.parametrize("is_first", [True, False])
def test_objects_are_deleted_or_the_run_goes_back_and_not_both(finished, place, is_first):
    at = {"host": "here", "pid": 1, "machine": "cpu", "version": "0"}
    finished.members.join("w", process_id=str(ProcessId.here()), **at)
    if is_first:
        with pytest.raises(WorkersActive, match="w is deleting"):
            at_once(finished, place, begin_deleting, go_back)
        assert finished.queue.is_finished()
    else:
        _, names = at_once(finished, place, go_back, begin_deleting)
        assert names == [], "they are needed again"
