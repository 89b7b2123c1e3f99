"""`dipaco launch` on this machine, by real processes."""

import os
import signal
import subprocess
import sys

import pytest

from dipaco.control.process_id import ProcessId
from dipaco.errors import NOT_NOW
from dipaco.runs.opening import reading
from tests.support.tiny_run import facts
from tests.support.waiting import until


@pytest.fixture
def launch(half, copy_of, command_cache, tmp_path):
    """`launch(...)` -> a launcher of one copy of the run that was stopped half-way."""
    run = copy_of(half)
    processes = []

    def start(*more):
        words = ["launch", run.config, "--run", run.folder, *more]
        log = tmp_path / f"launcher-{len(processes)}.log"
        environment = {"DIPACO_CACHE": str(command_cache), "XLA_FLAGS": ""}
        with log.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "dipaco.cli.main", *map(str, words)],
                stdout=stream, stderr=stream, env=os.environ | environment,
            )  # fmt: skip
        processes.append(process)
        return process, log

    start.folder = run.folder
    yield start
    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.wait()


@pytest.mark.slow
def test_two_launchers_share_one_run_and_no_work_is_counted_twice(dipaco, launch, tiny):
    """One launcher has no worker until `dipaco scale`; the worker of the other is killed."""
    first, first_log = launch("--workers", 1, "--executors", 1, "--name", "first")
    second, second_log = launch("--workers", 0, "--name", "second")

    def members():
        with reading(launch.folder) as run:
            return {m.name: m.pid for m in run.ledger.members.list() if m.state == "here"}

    until(lambda: "launcher second" in second_log.read_text(), 240, "the second is there")
    until(lambda: "first-worker-0" in members(), 240, "the first has its worker")
    os.kill(members()["first-worker-0"], signal.SIGKILL)
    scaled = dipaco("scale", "--run", launch.folder, "--workers", 1, "--launcher", "second")
    assert (scaled.code, scaled.err) == (0, "")
    assert "wanted of launcher second: 1." in scaled.out

    for process, log in ((first, first_log), (second, second_log)):
        assert process.wait(timeout=240) == 0, log.read_text()
        assert "modular_best_path" in log.read_text()
    assert "first-worker-0 ended (signal 9)" in first_log.read_text()
    assert "second-worker-0 started" in second_log.read_text()
    assert facts(launch.folder) == facts(tiny.folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", [["--name", "here"], []], ids=["named", "unnamed"])
def test_a_restarted_launcher_leaves_the_running_workers_alone(launch, tiny, name):
    first, _ = launch("--workers", 1, *name)

    def members():
        with reading(launch.folder) as run:
            here = run.ledger.members.here()
            return {m.name: m.pid for m in here if not ProcessId.parse(m.process_id).is_over()}

    until(members, 240, "the worker is there")
    ((worker, pid),) = members().items()
    os.kill(pid, signal.SIGSTOP)  # so that it does not finish meanwhile
    first.kill()
    assert first.wait() == -signal.SIGKILL
    second, log = launch("--workers", 1, *name)
    until(lambda: f"{worker} started" in log.read_text(), 240, "it is tried again")
    os.kill(pid, signal.SIGCONT)
    assert second.wait(timeout=240) == 0, log.read_text()
    assert facts(launch.folder) == facts(tiny.folder)


@pytest.mark.slow
def test_a_drain_ends_all_workers_and_the_monitor_and_none_is_reported_as_failed(dipaco, launch):
    assert dipaco("pause", "--run", launch.folder).code == 0  # so that it is not finished first
    with reading(launch.folder) as run:  # a monitor waits for the killed worker, for 60 s
        for member in run.ledger.members.list():
            run.ledger.members.leave(member.name, member.process_id)
    process, log = launch("--workers", 1, "--monitor", "--name", "here")

    def is_there():
        with reading(launch.folder) as run:
            return any(m.state == "here" for m in run.ledger.members.list())

    until(lambda: "here-monitor-0 started" in log.read_text() and is_there(), 240, "both are there")
    assert "Workers here: 1. Each will save" in dipaco("drain", "--run", launch.folder).out
    assert process.wait(timeout=120) == NOT_NOW, log.read_text()
    said = log.read_text()
    for name in ("here-worker-0", "here-monitor-0"):
        assert f"{name} has left: the run was told to drain" in said
    assert "the next one starts" not in said
    assert "Stopped. The run was told to drain: `dipaco resume` first" in said


def test_counts_that_cannot_be_are_refused_before_a_run_is_begun(here, config_file, tmp_path):
    for options, says in {
        "--workers -1": "BadSetting: `--workers` is -1. Expected 0 to 10000.",
        "--workers 1 --hosts-per-worker 0": "`--hosts-per-worker` is 0.",
        "--workers 1 --hosts-per-worker 2": "`--devices-per-worker` is left out.",
        "--workers 1 --memory-fraction 1.5": "`--memory-fraction` is 1.5.",
    }.items():
        ended = here("launch", config_file, "--run", tmp_path / "run", *options.split())
        assert (ended.code, says in ended.err) == (2, True), (options, ended.err)
    assert not (tmp_path / "run").exists()
