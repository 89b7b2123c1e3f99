"""`dipaco launch` on this machine, by real processes."""

import os
import signal
import subprocess
import sys

import pytest
from tiny_run import facts

from dipaco.runs.run import reading
from tests.launch.conftest import wait_until


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


def test_two_launchers_help_one_run_and_no_work_is_counted_twice(dipaco, launch, tiny):
    """One has no worker until it is told to, from elsewhere; of the other, the worker is killed."""
    first, first_log = launch("--workers", 1, "--executors", 1, "--name", "first")
    second, second_log = launch("--workers", 0, "--name", "second")

    def members():
        with reading(launch.folder) as run:
            return {m.name: m.pid for m in run.ledger.roster.members() if m.state == "here"}

    wait_until(lambda: "launcher second" in second_log.read_text(), "the second is there")
    wait_until(lambda: "first-worker-0" in members(), "the first has its worker")
    os.kill(members()["first-worker-0"], signal.SIGKILL)
    told = dipaco("scale", "--run", launch.folder, "--workers", 1, "--launcher", "second")
    assert (told.code, told.err) == (0, "")
    assert "Launcher second keeps 1" in told.out

    for process, log in ((first, first_log), (second, second_log)):
        assert process.wait(timeout=240) == 0, log.read_text()
        assert "modular_best_path" in log.read_text()
    assert "first-worker-0 ended (signal 9)" in first_log.read_text()
    assert "second-worker-0 started" in second_log.read_text()
    assert facts(launch.folder) == facts(tiny.folder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--workers", "-1"), "BadCount: `--workers` is -1. Expected 0 or more."),
        (("--workers", "1", "--hosts-per-worker", "0"), "`--hosts-per-worker` is 0."),
        (("--workers", "1", "--hosts-per-worker", "2"), "`--devices-per-worker` is left out."),
        (("--workers", "1", "--memory-fraction", "1.5"), "`--memory-fraction` is 1.5."),
    ],
)
def test_counts_that_make_no_sense_are_refused_before_anything_is_begun(
    dipaco, config_file, tmp_path, options, says
):
    ended = dipaco("launch", config_file, "--run", tmp_path / "run", *options)
    assert ended.code == 2
    assert says in ended.err
    assert not (tmp_path / "run").exists()
