"""A task that fails is counted and given up; the others go on. A machine that fails is another
matter.
"""

import errno
import os
from types import SimpleNamespace

import pytest

from dipaco.config import MODULAR
from dipaco.control.claims import failures
from dipaco.control.claims.failures import MOST_ERRORS
from dipaco.control.planning.tasks import Task
from dipaco.errors import DiskFull, Diverged, ExtraMissing, NotWritable
from dipaco.workers import loop
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.errors import EmptyHoldOut, ManyTasksFailed, TaskFailed
from dipaco.workers.failing import reason_of
from dipaco.workers.hosts import HostGroupBroken
from dipaco.workers.runners import runner_of
from tests.support.members import join
from tests.workers.conftest import CONFIG, RecordingCallbacks, worker_of

POISON, *_ = ALL = [Task("train", MODULAR, str(path), 1) for path in range(4)]


@pytest.fixture
def poison(monkeypatch):
    """`poison(error, *tasks)`: these tasks raise it, until `poison(None)`."""
    execute, raised = loop.execute, {}

    def execute_or_raise(run, claim, *others):
        if claim.task in raised:
            raise raised[claim.task]
        return execute(run, claim, *others)

    def set_to(error, *tasks):
        raised.clear()
        raised.update({task: error for task in tasks if error is not None})

    monkeypatch.setattr(loop, "execute", execute_or_raise)
    monkeypatch.setattr(failures, "wait_seconds", lambda errors, deaths: 0.01)
    return set_to


def diverged():
    return Diverged(loss=float("nan"), step=3)


def trained(run, phase):
    return run.ledger.facts.trained(MODULAR, phase)


def test_a_poison_task_fails_and_all_others_are_done(begin, poison):
    run, told = begin(CONFIG, until=1), RecordingCallbacks()
    poison(diverged(), POISON)
    with pytest.raises(TaskFailed, match=r"train modular path 0 phase 1.*3 times.*Diverged"):
        worker_of(run, callbacks=told).run_until_finished()
    assert [(task, final) for task, _, final in told.failed] == [
        (POISON, number == MOST_ERRORS - 1) for number in range(MOST_ERRORS)
    ]
    done = {task.path for task in told.finished if task.kind == "train" and task.phase == 1}
    assert done == {1, 2, 3}
    (failure,) = run.ledger.failures.list()
    assert (failure.task, failure.state) == (POISON, "failed")
    assert failure.reason.startswith("Diverged: The loss became nan at step 3")
    poison(None)  # the cause is put right
    assert run.ledger.failures.retry(POISON) == [POISON]
    assert worker_of(run).run_until_finished()
    assert run.ledger.failures.list() == []


def test_an_error_that_lasts_is_met_once_and_said_by_name(begin, poison):
    run, told = begin(CONFIG, until=1), RecordingCallbacks()
    poison(EmptyHoldOut(path=0, documents=1), POISON)
    with pytest.raises(EmptyHoldOut):
        worker_of(run, callbacks=told).run_until_finished()
    assert len(told.failed) == 1
    with pytest.raises(TaskFailed, match=r"failed once.*EmptyHoldOut"):
        worker_of(run, "another").run_until_finished()


def test_an_error_that_passes_costs_a_try(begin, poison):
    run = begin(CONFIG, until=1)

    class Once(RecordingCallbacks):
        def task_failed(self, claim, reason, *, is_final):
            super().task_failed(claim, reason, is_final=is_final)
            poison(None)

    told = Once()
    poison(diverged(), POISON)  # on one machine only
    assert worker_of(run, callbacks=told).run_until_finished()
    assert [task for task, _, _ in told.failed] == [POISON]
    assert POISON in told.finished


def test_a_reason_can_be_printed_whatever_the_error_quotes():
    error = ValueError("cannot read " + os.fsdecode(b"caf\xe9.txt"))
    assert reason_of(error) == r"ValueError: cannot read caf\udce9.txt"


@pytest.mark.parametrize("error", [DiskFull(file="x"), HostGroupBroken("gone")], ids=repr)
def test_a_fault_of_the_machine_is_not_counted_against_the_task(begin, poison, error):
    run = begin(CONFIG, until=1)
    poison(error, *ALL)
    with pytest.raises(type(error)):
        worker_of(run).run_until_finished()
    assert run.ledger.failures.list() == []
    assert run.ledger.queue.held() == []


def test_nor_is_a_package_that_a_machine_for_serving_goes_without(begin, poison):
    run = begin(CONFIG, until=1)
    poison(ModuleNotFoundError("No module named 'grain'", name="grain"), POISON)
    with pytest.raises(ExtraMissing, match="`grain`, which is not installed"):
        worker_of(run).run_until_finished()
    assert run.ledger.failures.list() == []


@pytest.mark.parametrize(("number", "said"), [(errno.EDQUOT, DiskFull), (errno.EIO, NotWritable)])
def test_nor_is_a_disk_on_which_its_log_does_not_fit(begin, number, said):
    """The store is elsewhere; the events are written here. Others would find their tasks failed."""
    run = begin(CONFIG, until=1)

    class OnAFullDisk(Callbacks):
        def step_taken(self, claim, loss, tokens):
            raise OSError(number, os.strerror(number))

    with pytest.raises(said):
        worker_of(run, callbacks=OnAFullDisk()).run_until_finished()
    assert run.ledger.failures.list() == []
    assert run.ledger.queue.held() == []


def test_a_crash_of_the_program_is_counted_and_ends_the_worker(begin, poison):
    run = begin(CONFIG, until=1)
    poison(RuntimeError("a\ndefect"), *ALL)
    with pytest.raises(RuntimeError):
        worker_of(run).run_until_finished()
    (failure,) = run.ledger.failures.list()
    assert (failure.state, failure.reason) == ("delayed", "RuntimeError: a defect")
    assert run.ledger.queue.held() == []


def test_when_another_host_of_the_worker_dies_the_task_has_not_failed(begin, poison):
    """A collective raises an error then, as a defect would."""
    run = begin(CONFIG, until=1)
    poison(RuntimeError("Gloo: peer closed"), *ALL)
    for number in range(MOST_ERRORS + 1):
        hosts = SimpleNamespace(count=2, is_stop_requested=False)
        worker = worker_of(run, f"w{number}", runner=runner_of(run, hosts))
        with pytest.raises(RuntimeError):
            worker.run_once()
    assert {failure.errors for failure in run.ledger.failures.list()} == {0}
    assert {failure.state for failure in run.ledger.failures.list()} <= {"ready", "delayed"}


def test_a_worker_on_which_everything_fails_leaves_if_there_are_others(begin, poison):
    run = begin(CONFIG, until=1)
    join(run.ledger, "other")
    poison(diverged(), *ALL)
    with pytest.raises(ManyTasksFailed, match="3 tasks in a row"):
        worker_of(run).run_until_finished()
    assert all(failure.state == "delayed" for failure in run.ledger.failures.list())


def test_others_that_are_silent_do_not_count(begin, poison):
    """The last worker of a fleet that was preempted goes on with what can be done."""
    run = begin(CONFIG, until=1)
    join(run.ledger, "other")
    run.ledger._database.change("mark_silent", name="other", heartbeats=0)
    poison(diverged(), *ALL)
    with pytest.raises(TaskFailed):
        worker_of(run).run_until_finished()
