"""The supervisor keeps the wanted number of workers, and gives back the tasks of a dead one."""

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from dipaco.control.process_id import ProcessId
from dipaco.errors import NOT_NOW, DiskFull
from dipaco.launch import supervisor as file
from dipaco.launch.engine import UNSEEN, EndedWorker
from dipaco.launch.errors import LauncherElsewhere, WorkersEnded, WorkersNeverJoined
from dipaco.launch.process_spec import ProcessSpec, variables_for
from dipaco.launch.supervisor import Supervisor, WorkerGroup
from dipaco.workers.errors import NameTaken, TaskFailed
from tests.support.members import join

WORKER, EXECUTOR = ProcessSpec("worker", "runs/one"), ProcessSpec("executor", "runs/one")
HOME = str(Path(file.__file__).parents[2])


class FakeEngine:
    """An engine without processes: the test says which workers end."""

    def __init__(self):
        self.alive, self.ended = [], []

    def start(self, spec, name):
        self.alive.append(name)

    def end(self, name):
        self.die(name, 0)

    def poll(self):
        ended, self.ended = self.ended, []
        return ended

    def stop(self, grace_seconds):
        for name in list(self.alive):
            self.die(name, -9)
        return self.poll()

    def die(self, name, code, last_line=""):
        self.alive.remove(name)
        self.ended.append(EndedWorker(name, code, last_line))


@pytest.fixture
def clock(monkeypatch):
    """A clock that `sleep` moves."""
    now = [1000.0]
    monkeypatch.setattr(file.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(file.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


@pytest.fixture
def watched(ledger, clock):
    """`watched(groups, happenings)`: one happening after each poll, until there are no more."""

    def watch(groups, *happenings, name="here"):
        engine, events = FakeEngine(), []
        supervisor = Supervisor(engine, groups, ledger, events.append, name)
        turns = iter(happenings)

        def meanwhile():
            turn = next(turns, None)
            if turn is None:
                supervisor.end()
            else:
                turn(engine)

        assert not supervisor.keep_until_finished(meanwhile)
        return engine, [event.name for event in events]

    return watch


def nothing(engine):
    pass


until_it_looks = [nothing] * round(file.LOOK_SECONDS / file.POLL_SECONDS)


def test_a_dead_worker_gives_its_task_back_and_is_restarted_after_a_wait(ledger, watched):
    def die(engine):
        assert ledger.queue.claim("w-1") is not None
        engine.die("w-1", -9)

    def look(engine):
        assert engine.alive == ["w-0"]
        assert not ledger.queue.held()

    later = [nothing] * 5  # a second, in looks of a fifth
    engine, events = watched([WorkerGroup(WORKER, "w", 2)], die, look, *later)
    assert engine.alive == ["w-0", "w-1"]
    assert events == ["worker_started", "worker_started", "worker_ended", "worker_started"]


def test_a_worker_that_ended_with_an_error_message_ends_the_launch(watched):
    with pytest.raises(WorkersEnded, match="last output of w-0: NoSuchRun: there is none"):
        watched(
            [WorkerGroup(WORKER, "w", 1)],
            lambda engine: engine.die("w-0", 2, "NoSuchRun: there is none"),
        )


def test_one_sick_machine_does_not_end_the_launch(ledger, watched):
    """A full disk, say (exit code 4): it is replaced, and others are left alone."""

    def fall_ill(engine):
        if "w-1" in engine.alive:
            engine.die("w-1", DiskFull.exit_code, "DiskFull: no space")

    engine, events = watched([WorkerGroup(WORKER, "w", 2)], *[fall_ill] * 60)
    assert "w-0" in engine.alive
    assert events.count("worker_ended") == 4  # after 1, 2, 4 and 8 s
    assert events.count("worker_left") == 0


def test_one_worker_that_is_refused_is_replaced_while_others_work(watched):
    """Its machine lacks the run's folder, say."""
    watched(
        [WorkerGroup(WORKER, "w", 2)],
        lambda engine: engine.die("w-1", 2, "NoSuchRun: there is none"),
        *[nothing] * 10,
        lambda engine: engine.die("w-1", 2, "NoSuchRun: there is none"),
    )
    with pytest.raises(WorkersEnded):
        watched(
            [WorkerGroup(WORKER, "w", 2), WorkerGroup(EXECUTOR, "e", 1)],
            lambda engine: engine.die("w-1", 2, "NoSuchRun: there is none"),
            lambda engine: engine.die("w-0", 2, "NoSuchRun: there is none"),
        )


@pytest.mark.parametrize(
    ("code", "crashes"), [(-9, 1), (-11, 1), (-15, 0), (UNSEEN, 0), (1, 0), (4, 0)]
)
def test_only_a_process_that_was_seen_to_die_counts_against_its_task(
    ledger, watched, code, crashes
):
    def die(engine):
        assert ledger.queue.claim("w-0") is not None
        engine.die("w-0", code, "words")

    watched([WorkerGroup(WORKER, "w", 1)], die)
    assert [failure.crashes for failure in ledger.failures.list()] == [1] * crashes


def test_the_last_words_of_a_worker_are_kept(ledger, watched):
    def die(engine):
        join(ledger, "w-0")
        engine.die("w-0", 1, "Segfault")

    watched([WorkerGroup(WORKER, "w", 1)], die)
    assert [member.last_words for member in ledger.members.list()] == ["Segfault"]


def test_a_launcher_ends_when_the_run_cannot_go_on(ledger, watched):
    def fail(engine):
        ledger.failures.fail(ledger.queue.claim("w-0"), "BadSource: no text", is_lasting=True)

    with pytest.raises(TaskFailed, match=r"`prepare` failed once, at last on w-0: BadSource"):
        watched([WorkerGroup(WORKER, "w", 1)], fail, *until_it_looks)


def test_a_taken_name_keeps_its_tasks_and_is_tried_again(ledger, watched):
    """As after a launcher that was killed: its workers are running."""
    held = []

    def refuse(engine):
        join(ledger, "w-0")
        held.append(ledger.queue.claim("w-0"))
        engine.die("w-0", NameTaken.exit_code)

    def look(engine):
        assert not engine.alive
        assert [one.worker for one in ledger.queue.held()] == ["w-0"]
        (member,) = ledger.members.list()
        assert member.state == "here"

    later = [nothing] * 5
    engine, events = watched([WorkerGroup(WORKER, "w", 1)], refuse, look, *later)
    assert held[0] is not None
    assert engine.alive == ["w-0"]
    assert events == ["worker_started", "worker_ended", "worker_started"]


@pytest.mark.parametrize("is_here", [True, False], ids=["here", "elsewhere"])
def test_a_name_that_stays_taken_on_another_machine_is_another_launchers(ledger, watched, is_here):
    """Of two launchers of one name the second's workers were started and refused for ever."""
    process_id = str(ProcessId.here()) if is_here else "another-machine pid:[1] 7 99"
    join(ledger, "w-0", host="h", pid=7, process_id=process_id)

    def refuse(engine):
        if "w-0" in engine.alive:
            engine.die("w-0", NameTaken.exit_code)

    expected = contextlib.nullcontext() if is_here else pytest.raises(
        LauncherElsewhere, match=r"launcher named `here`.*`w-0`.*one on h.*another `--name`"
    )  # fmt: skip
    with expected:
        watched([WorkerGroup(WORKER, "w", 2)], *[refuse] * 100)


@pytest.mark.parametrize("ends", ["killed", "stopped"])
@pytest.mark.parametrize("is_here", [True, False], ids=["here", "elsewhere"])
def test_a_worker_that_waits_for_its_name_has_no_tasks_to_give_back(ledger, clock, ends, is_here):
    """A worker of before has the name, and is alive: its launcher alone was killed."""
    process_id = str(ProcessId.here()) if is_here else "another-machine pid:[1] 7 99"
    join(ledger, "w-0", pid=7, process_id=process_id)
    assert ledger.queue.claim("w-0") is not None
    engine = FakeEngine()
    groups = [WorkerGroup(WORKER, "w", 1), WorkerGroup(EXECUTOR, "e", 1)]
    supervisor = Supervisor(engine, groups, ledger, lambda _: None, "here")

    def end():
        if ends == "killed":
            engine.die("w-0", -9)
        supervisor.end()

    supervisor.keep_until_finished(end)
    supervisor.stop()
    assert [held.worker for held in ledger.queue.held()] == ["w-0"]
    assert [member.state for member in ledger.members.list()] == ["here"]
    assert not ledger.failures.list()


def test_a_worker_that_is_stopped_gives_its_task_back(ledger, clock):
    """One of its machine, whose process is gone; and one that joined while another started."""
    engine = FakeEngine()
    groups = [WorkerGroup(WORKER, "w", 2), WorkerGroup(EXECUTOR, "e", 1)]
    supervisor = Supervisor(engine, groups, ledger, lambda _: None, "here")
    over = ProcessId.here()._replace(began="1")
    turns = iter(range(20))

    def joins():
        match next(turns):
            case 0:
                engine.die("e-0", 0)
                for name, process_id in (
                    ("w-0", str(over)),
                    ("w-1", "another-machine pid:[1] 7 99"),
                ):
                    join(ledger, name, pid=7, process_id=process_id)
                assert ledger.queue.claim("w-1") is not None
            case 19:
                supervisor.end()

    supervisor.keep_until_finished(joins)
    assert "e-0" in engine.alive
    supervisor.stop()
    assert not ledger.queue.held()
    assert [member.state for member in ledger.members.list()] == ["lost", "lost"]


def test_a_worker_that_is_stopped_has_time_to_save_and_to_send(ledger, clock, monkeypatch):
    """Also where something else stops the launcher, as the page has it."""
    engine, given = FakeEngine(), []
    monkeypatch.setattr(engine, "stop", lambda seconds: given.append(seconds) or [])
    Supervisor(engine, [WorkerGroup(WORKER, "w", 1)], ledger, lambda _: None, "here").stop()
    assert given == [90.0]
    page = (Path(HOME) / "dipaco/workers/README.md").read_text()
    (limit,) = re.findall(r"TimeoutStopSec=(\d+)", page)
    assert int(limit) > given[0]


def test_the_number_of_workers_changes_while_the_launcher_runs(ledger, watched):
    seen = []

    def want(number, launcher=None):
        return lambda engine: ledger.meta.want_workers(number, launcher)

    def look(engine):
        seen.append(list(engine.alive))

    scales = [want(3), want(1), want(0, "other-host"), want(2, "here"), want(0)]
    happenings = [each for scale in scales for each in (scale, *until_it_looks, look)]
    watched([WorkerGroup(WORKER, "w", 2), WorkerGroup(EXECUTOR, "e", 1)], *happenings)
    assert seen == [
        ["w-0", "w-1", "e-0", "w-2"],
        ["w-0", "e-0"],
        ["w-0", "e-0"],  # that was for another launcher
        ["w-0", "e-0", "w-1"],
        ["e-0"],
    ]


def test_a_worker_that_is_no_longer_wanted_is_not_restarted(ledger, watched):
    later = [nothing] * 10
    engine, events = watched(
        [WorkerGroup(WORKER, "w", 2)], lambda engine: ledger.meta.want_workers(1), *later
    )
    assert engine.alive == ["w-0"]
    assert events[-2:] == ["workers_wanted", "worker_left"]


def test_a_launcher_asks_the_ledger_once_a_second_and_when_a_worker_has_ended(
    ledger, watched, monkeypatch
):
    asked, ask = [], ledger._database._execute
    monkeypatch.setattr(
        ledger._database,
        "_execute",
        lambda query, values: asked.append(query) or ask(query, values),
    )
    watched([WorkerGroup(WORKER, "w", 2)], *until_it_looks * 10)
    assert 10 <= asked.count("has_unfinished") <= 12
    assert len(asked) <= 60

    def finish(engine):
        asked.clear()
        engine.die("w-0", 0)

    def look(engine):
        assert asked.count("has_unfinished") >= 2  # of this worker's end, and of the run's

    watched([WorkerGroup(WORKER, "w", 2)], finish, nothing, look)


def test_in_a_drain_workers_leave_and_the_launcher_ends_with_the_last(ledger, watched):
    def drain(engine):
        ledger.meta.set_command("drain")
        engine.die("w-0", NOT_NOW)

    def go(engine):
        assert engine.alive == ["w-1"]
        engine.die("w-1", 0)

    def look(engine):
        raise AssertionError("the launcher should have ended")

    _, events = watched([WorkerGroup(WORKER, "w", 2)], drain, go, nothing, look)
    assert events == ["worker_started"] * 2 + ["worker_left"] * 2


@pytest.mark.parametrize("has_joined", [False, True])
def test_workers_that_all_fail_before_they_take_part_end_the_launch(ledger, watched, has_joined):
    """One that joined each time may have met a fault that passes: it is started again."""
    process_ids = iter(range(100))

    def fail(engine):
        for name in list(engine.alive):
            if has_joined:
                after = {each.name: each for each in ledger.members.list()}.get(name)
                join(ledger, name, process_id=str(next(process_ids)), after=after)
            engine.die(name, 1, "ImportError: cannot import name 'releases'")

    tries = [fail] * 60
    if has_joined:
        _, events = watched([WorkerGroup(WORKER, "w", 2)], *tries)
        assert events.count("worker_ended") == 2 * 4
        return
    with pytest.raises(WorkersNeverJoined, match=r"3 times each.*ImportError: cannot import"):
        watched([WorkerGroup(WORKER, "w", 2)], *tries)


def test_processes_do_not_take_a_folder_where_they_start_for_the_package(tmp_path):
    """Such as the folder that holds a clone named `dipaco`."""
    (tmp_path / "dipaco/cli").mkdir(parents=True)
    (tmp_path / "dipaco/__init__.py").touch()
    (tmp_path / "dipaco/cli/main.py").write_text("raise SystemExit('the wrong one')")
    python, *words = WORKER.command("w-0")
    words = [*words[: words.index("worker")], "--version"]
    ended = subprocess.run(
        [python, *words], cwd=tmp_path, env=os.environ | {"PYTHONPATH": HOME}, capture_output=True
    )
    assert (ended.returncode, ended.stdout[:7]) == (0, b"dipaco "), ended.stderr


def test_a_launcher_that_is_started_again_keeps_what_it_was_scaled_to(ledger, watched):
    """Until it is given another number; what was asked before it began never counts."""

    def want(number, launcher=None):
        return [lambda _: ledger.meta.want_workers(number, launcher), *until_it_looks]

    def alive(count, *happenings, name="lab"):
        return watched([WorkerGroup(WORKER, "w", count)], *happenings, name=name)[0].alive

    ledger.meta.want_workers(5)
    assert alive(2, *want(1, "lab"), *want(0)) == []
    assert alive(2, nothing) == []
    assert alive(2, nothing, name="other") == ["w-0", "w-1"]
    assert alive(3, nothing) == ["w-0", "w-1", "w-2"]
    assert alive(3, nothing) == ["w-0", "w-1", "w-2"]
    ledger.meta.want_workers(1)  # while no launcher runs
    assert alive(3, nothing) == ["w-0"]


def test_variables_for_another_machine_are_passed_by_name_and_never_on_the_command_line(
    monkeypatch,
):
    monkeypatch.setenv("RUNS", "postgresql://ana:secret@db/runs")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    variables = variables_for("s3://bucket/one", "env:RUNS")
    assert "AWS_SECRET_ACCESS_KEY" in variables
    assert "AWS_SESSION_TOKEN" not in variables
    spec = ProcessSpec("worker", "s3://bucket/one", variables=variables)
    assert spec.environment["RUNS"].endswith("secret@db/runs")
    assert spec.environment["AWS_SECRET_ACCESS_KEY"] == "hush"
    assert not {word for word in spec.command("w-0") if "secret" in word or "hush" in word}
    assert variables_for("runs/one", None) == ()
    assert variables_for("runs/one", "postgresql://ana@db/runs") == ()
