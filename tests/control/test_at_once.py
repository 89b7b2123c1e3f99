"""What two workers do at the same moment on PostgreSQL, where neither sees what the other has not
committed yet. On SQLite there is one writer at a time.
"""

import contextlib
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.made_up_facts import receipt
from support.servers import fresh_schemas

from dipaco.control.claims.queue import add_tasks
from dipaco.control.database.postgresql import PostgreSQL
from dipaco.control.database.retry import with_retry
from dipaco.control.errors import CannotClean, RunCleaned
from dipaco.control.facts.commit import Commit
from dipaco.control.facts.facts import PartialSnapshot
from dipaco.control.facts.quorums import Quorums
from dipaco.control.facts.recording import of_modules_ready
from dipaco.control.ledger import open_ledger
from dipaco.control.planning.tasks import Task
from dipaco.control.process_id import ProcessId
from dipaco.errors import WorkersActive
from dipaco.topology import ModuleId
from tests.control.conftest import (
    claim_all,
    do,
    do_all,
    do_all_but,
    do_one,
    do_until,
    inside_of_this,
)
from tests.control.test_rollback import TRAIN
from tests.support.members import join
from tests.support.waiting import until

DEADLINE_SECONDS = 60.0
LOOKERS = 24


@pytest.fixture
def place(postgresql_server):
    return postgresql_server.url, next(fresh_schemas)


@contextlib.contextmanager
def beside(place):
    """`begin(act)`: starts something on a connection of its own, and comes back when it has ended,
    or waits for a lock. What it gives is in `.result()`.
    """

    def on_its_own(act):
        with open_ledger(*place) as other:
            return act(other)

    def begin(act):
        later = thread.submit(on_its_own, act)
        until(lambda: later.done() or is_waiting(looking), said="it neither ends nor waits")
        return later

    with ThreadPoolExecutor(1) as thread, psycopg.connect(place[0], autocommit=True) as looking:
        yield begin


@pytest.fixture
def at_once(ledger, place):
    """`at_once(first, second)`: `second` begins when `first` is done and not committed; what
    `first` did is committed when `second` has ended, or waits for it. What both give.
    """

    def at_once(first, second):
        with beside(place) as begin:
            with ledger._database.transaction():
                with inside_of_this(ledger._database):
                    of_first = first(ledger)
                later = begin(second)
            return of_first, later.result(DEADLINE_SECONDS)

    return at_once


def is_waiting(looking):
    ((count,),) = looking.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchall()
    return bool(count)


def test_two_workers_that_claim_at_once_get_two_tasks(ledger, plan, at_once):
    ledger.queue.give_back(do_until(ledger, plan, "train"))  # all paths are ready
    one, other = at_once(*[lambda at: at.queue.claim("w")] * 2)
    assert one.task != other.task


def test_when_the_last_two_paths_of_a_module_finish_at_once_it_steps(ledger, plan, at_once):
    claims = [do_until(ledger, plan, "train"), ledger.queue.claim("other")]
    topology = plan.arm("modular").topology
    both = set.intersection(*({*topology.modules_of(claim.task.path)} for claim in claims))
    (module,) = both  # of two paths, which are these
    assert {*topology.paths_through(module)} == {claim.task.path for claim in claims}
    at_once(*(finishing(plan, claim) for claim in claims))
    due = [each.task for each in ledger.queue.unfinished()]
    assert Task("outer", "modular", str(module), 0) in due


def test_when_the_last_two_scores_of_a_release_come_at_once_it_is_evaluated(ledger, plan, at_once):
    claim = do_until(ledger, plan, "score")
    while claim.task.arm != "modular":
        do(ledger, plan, claim)
        claim = do_until(ledger, plan, "score")
    for _ in range(2):
        do_one(ledger, plan)
    claims = [claim, ledger.queue.claim("other")]
    assert {claim.task.kind for claim in claims} == {"score"}
    at_once(*(finishing(plan, claim) for claim in claims))
    due = [each.task for each in ledger.queue.unfinished()]
    assert Task("evaluate", "modular", "", claim.task.phase) in due


def test_of_many_that_look_at_once_one_gets_the_backup_of_an_overdue_task(ledger, plan, place):
    """Each on a connection of its own, all let go at the same moment, and again."""
    quick = do_until(ledger, plan, "train")
    held = [claim for claim in claim_all(ledger, "slow") if claim.task.arm == quick.task.arm]
    do(ledger, plan, quick)  # says what is usual
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


def finishing(plan, claim):
    return lambda ledger: do(ledger, plan, claim)


def claim_backup(ledger):
    return ledger.queue.claim_backup("other", factor=0.0)


@pytest.mark.parametrize("statements", ["one", "several"])
def test_a_task_that_is_finished_while_it_gets_a_backup_leaves_no_claim(
    ledger, plan, at_once, statements, monkeypatch
):
    """The backup's worker would train on, renewing a claim on a task that is done."""
    if statements == "several":  # as arms with a quorum are committed
        monkeypatch.setattr(Commit, "_finish_training", lambda *_: False)
    quick = do_until(ledger, plan, "train")
    slow = ledger.queue.claim("slow")
    do(ledger, plan, quick)  # says what is usual
    backup, _ = at_once(claim_backup, finishing(plan, slow))
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
    ledger, plan, at_once, first_to_come
):
    """Else it would wait for ever, and the run with it."""
    step = do_until(ledger, plan, "outer")
    path = plan.arm("modular").topology.paths_through(step.task.module)[0]
    cause = Task("train", "modular", str(path), 0)
    waiter = ledger.queue.claim("waiting")
    ledger.redos.redo(step, cause, "objects/one", "damaged")
    redone = do_until(ledger, plan, cause, "training", ["train"])
    both = [
        lambda at: at.redos.redo(waiter, cause, "objects/one", "damaged"),
        finishing(plan, redone),
    ]
    at_once(*(both if first_to_come == "who waits" else reversed(both)))
    do_all(ledger, plan)
    assert ledger.queue.is_finished()


@pytest.mark.parametrize("how", ["given back", "silent", "failed"])
def test_a_task_that_is_given_up_while_it_gets_a_backup_is_the_backups(ledger, plan, at_once, how):
    """Else a third worker would take it, and the backup's work might count for nothing."""
    quick = do_until(ledger, plan, "train")
    slow = ledger.queue.claim("slow", lease_seconds=-1.0)
    do(ledger, plan, quick)  # says what is usual
    give_up = {
        "given back": lambda at: at.queue.give_back(slow),
        "silent": lambda at: at.reaper.reap(),
        "failed": lambda at: at.failures.fail(slow, "why"),
    }[how]
    backup, _ = at_once(claim_backup, give_up)
    assert backup.task == slow.task
    third = ledger.queue.claim("third", [slow.task.kind])
    assert third is None or third.task != slow.task
    do(ledger, plan, backup)


def record_cleaning(ledger):
    ledger.cleanings.record({})


def go_back(ledger):
    ledger.rollbacks.go_back("modular", 1, TRAIN)


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [(record_cleaning, go_back, RunCleaned), (go_back, record_cleaning, CannotClean)],
)
def test_a_run_is_cleaned_or_goes_back_and_not_both(finished, at_once, first, second, refused):
    with pytest.raises(refused):
        at_once(first, second)
    is_back = first is go_back
    assert ({each.task for each in finished.queue.unfinished()} == set(TRAIN)) == is_back
    assert (finished.cleanings.removed() is None) == is_back


def begin_deleting(ledger):
    of = ("modular", ModuleId("early", 0), 0)
    retention = ledger.retention
    return retention.begin_deleting(lambda: retention.superseded_modules(*of, newest=2))


@pytest.mark.parametrize("is_first", [True, False])
def test_objects_are_deleted_or_the_run_goes_back_and_not_both(finished, at_once, is_first):
    join(finished, "w", process_id=str(ProcessId.here()))
    if is_first:
        with pytest.raises(WorkersActive, match="w is deleting"):
            at_once(begin_deleting, go_back)
        assert finished.queue.is_finished()
    else:
        _, names = at_once(go_back, begin_deleting)
        assert names == [], "they are needed again"


@pytest.mark.parametrize("first_to_come", ["who looks", "its last module"])
def test_a_path_that_looks_for_its_modules_as_the_last_one_comes_goes_on(
    ledger, plan, at_once, first_to_come
):
    """Neither saw the other without a lock, and the path waited for ever."""
    arm = dataclasses.replace(plan.arm("modular"), delay=1)
    plan = dataclasses.replace(plan, arms=(arm,))
    ahead, steps = {}, []
    while (claim := ledger.queue.claim("w")) is not None:
        if (claim.task.arm, claim.task.kind, claim.task.phase) == ("modular", "train", 1):
            ahead[claim.task.path] = claim
        elif claim.task.kind == "outer":
            steps.append(claim)
        else:
            do(ledger, plan, claim)
    for step in steps[1:]:
        do(ledger, plan, step)
    saved = PartialSnapshot(receipt("partial"), 11, "rows", (), 1.0)
    needed = arm.topology.modules_of(0)
    both = [
        lambda at: at.commit.release_with_snapshot(ahead[0], saved, needed),
        finishing(plan, steps[0]),
    ]
    at_once(*(both if first_to_come == "who looks" else reversed(both)))
    claim = ledger.queue.claim("w", ["train"])
    assert claim is not None
    assert claim.task == ahead[0].task


@pytest.fixture
def crossing(ledger, place, monkeypatch, caplog):
    """`crossing(owner, name, after=, first=, second=)`: `first` stops in its transaction, before
    call `after` of `owner.name` (with this query, if one is given), until `second` has ended or
    waits for it. Neither is undone by the server.
    """

    def crossing(owner, name, *, after, first, second, query=None):
        act, calls, later, here = getattr(owner, name), [], [], threading.get_ident()

        def stopping(*arguments, **values):
            if query in (None, *arguments[1:]):
                calls.append(threading.get_ident())
                if calls.count(here) == after + 1 and calls[-1] == here and not later:
                    later.append(begin(second))
            return act(*arguments, **values)

        monkeypatch.setattr(owner, name, stopping)
        with beside(place) as begin:
            first(ledger)
            later[0].result(DEADLINE_SECONDS)
        assert not caplog.messages

    return crossing


def test_the_end_of_a_grace_and_the_contributions_it_waited_for_take_their_locks_in_one_order(
    ledger, plan, crossing
):
    """They deadlocked, and the log said that the database could not be reached."""
    arm = dataclasses.replace(plan.arm("modular"), phases=3, quorum=0.5, grace_seconds=0.0)
    plan = dataclasses.replace(plan, arms=(arm,))
    held = do_all_but(ledger, plan, lambda task: task.kind == "train")
    claims = {claim.task.path: claim for claim in held}
    for path in (2, 1):  # the grace of the later module begins first
        do(ledger, plan, claims[path])
    crossing(
        Quorums,
        "update",
        after=2,
        first=finishing(plan, claims[0]),
        second=lambda at: at.quorums.end_grace(plan),
    )
    due = [each.task.subject for each in ledger.queue.unfinished() if each.task.kind == "outer"]
    assert {"early/0000", "late/0000"} <= set(due)


def test_a_task_done_again_and_one_that_makes_others_due_take_their_locks_in_one_order(
    ledger, plan, crossing
):
    held = do_all_but(ledger, plan, lambda task: task.subject in ("early/0000", "late/0000"))
    steps = {claim.task.subject: claim for claim in held}
    with ledger._database.transaction():  # path 1 waits; a step is done again
        execute = ledger._database._connection.execute
        execute(
            "INSERT INTO tasks (kind, arm, subject, phase, priority, state) "
            "VALUES ('train', 'modular', '1', 1, 6, 'waiting')"
        )
        execute(f"UPDATE tasks SET redo = 1 WHERE id = {steps['late/0000'].task_id}")
    first, second = steps["late/0000"], steps["early/0000"]
    crossing(
        PostgreSQL, "lock", after=0, first=finishing(plan, first), second=finishing(plan, second)
    )


def test_a_transaction_that_the_server_undoes_is_no_server_that_is_away(ledger, caplog):
    raised = []

    def ask():
        if not raised:
            raised.append(True)
            raise_it = "DO $$ BEGIN RAISE deadlock_detected; END $$"
            ledger._database._connection.execute_as_written(raise_it)

    with_retry(ask, ledger._database.reconnect)
    assert "has undone a transaction" in caplog.text
    assert "cannot be reached" not in caplog.text


def test_a_commit_that_waits_for_its_turn_has_changed_no_task(ledger, plan, crossing):
    """What is done again makes due what others finish, and waited for them while they waited."""
    step = do_until(ledger, plan, "outer")

    def makes_it_due_again(at):
        with at._database.transaction():
            at._database.lock(of_modules_ready("modular", 1))
            add_tasks(at._database, [step.task])

    crossing(PostgreSQL, "lock", after=0, first=finishing(plan, step), second=makes_it_due_again)


def test_tasks_that_waited_for_one_are_woken_in_the_order_in_which_others_make_them_due(
    ledger, plan, crossing
):
    redone, paths = ledger.queue.claim("w"), [Task("train", "modular", each, 1) for each in "01"]
    with ledger._database.transaction():
        add_tasks(ledger._database, paths)
        execute = ledger._database._connection.execute
        for each in reversed(paths):  # the order in which the server reads them
            execute(f"UPDATE tasks SET state = 'waiting' WHERE subject = '{each.subject}'")
        execute(f"UPDATE tasks SET redo = 1 WHERE id = {redone.task_id}")

    def make_due(at):
        with at._database.transaction():
            add_tasks(at._database, paths)

    crossing(PostgreSQL, "change", after=1, first=make_due, second=finishing(plan, redone))
    ready = {each.task for each in ledger.queue.unfinished() if each.state == "ready"}
    assert ready.issuperset(paths)


@pytest.mark.parametrize("is_made_due", [False, True])
def test_tasks_that_waited_become_due_in_one_order_whatever_makes_them_due(
    ledger, plan, crossing, is_made_due
):
    """A step makes its paths due by number. They began to wait in the other order, or the second of
    them is being finished.
    """
    steps = {}
    while len(steps) < 4:
        claim = ledger.queue.claim("w")
        if claim.task.kind == "outer" and claim.task.arm == "modular":
            steps[claim.task.subject] = claim
        else:
            do(ledger, plan, claim)
    last = steps.pop("early/0000")
    for step in steps.values():
        do(ledger, plan, step)
    paths = [Task("train", "modular", path, 1) for path in "10"]
    if is_made_due:
        with ledger._database.transaction():
            add_tasks(ledger._database, paths[:1])
    redone = do_until(ledger, plan, paths[0] if is_made_due else "train")
    with ledger._database.transaction():
        add_tasks(ledger._database, paths)
        execute = ledger._database._connection.execute
        execute(
            "UPDATE tasks SET state = 'waiting' "
            "WHERE arm = 'modular' AND kind = 'train' AND phase = 1 AND subject IN ('0', '1') "
            "AND state = 'ready'"
        )
        execute(f"UPDATE tasks SET redo = 1 WHERE id = {redone.task_id}")
    crossing(
        PostgreSQL,
        "change",
        query="add_task",
        after=1,
        first=finishing(plan, last),
        second=finishing(plan, redone),
    )
    ready = {each.task for each in ledger.queue.unfinished() if each.state == "ready"}
    assert ready.issuperset(paths[is_made_due:])


def test_watchers_of_the_same_workers_mark_them_in_one_order(ledger, crossing):
    """Each looks at those behind it by name, in a circle."""
    for name in ("ana", "bo"):
        join(ledger, name)
    both = {each.name: each.heartbeats for each in ledger.members.list()}
    crossing(
        PostgreSQL,
        "change",
        after=1,
        first=lambda at: at.reaper._mark_silent(both),
        second=lambda at: at.reaper._mark_silent(dict(reversed(both.items()))),
    )
    assert all(each.is_silent for each in ledger.members.list())


def test_a_worker_that_has_died_and_the_loss_of_its_claim_are_written_in_one_order(
    ledger, plan, crossing
):
    """Its launcher saw it die while another worker found its claim silent."""
    join(ledger, "w")
    claim = do_until(ledger, plan, "train")

    def lose(at):
        with at._database.transaction():
            at._database.rows("drop_claims_of_task", task_id=claim.task_id)
            at._database.change("debit_worker", name="w")

    crossing(
        PostgreSQL,
        "rows",
        after=0,
        first=lambda at: at.queue.give_back_of("w", crash="killed"),
        second=lose,
    )
    assert not ledger.queue.held()


def test_claims_of_several_silent_workers_are_ended_one_by_one(ledger, plan, crossing):
    """One that was ended already waited for one that its worker was just finishing."""
    ended, slow = do_until(ledger, plan, "train"), ledger.queue.claim("another")
    for claim in (ended, slow):
        ledger.queue.renew(claim, 60.0, stalled_seconds=1e9)

    def finish(at):
        with at._database.transaction():
            at._database.rows("drop_claims_of_task", task_id=slow.task_id)
            add_tasks(at._database, [ended.task])

    crossing(PostgreSQL, "change", after=3, first=lambda at: at.reaper.reap(), second=finish)
    assert not ledger.queue.held()
