"""Another process of this machine, which says which one it is and does nothing more."""

import subprocess
import sys

import pytest

from dipaco.control.process_id import ProcessId

PROGRAM = (
    "from dipaco.control.process_id import ProcessId; print(ProcessId.here(), flush=True); input()"
)


@pytest.fixture
def other_process():
    command = [sys.executable, "-c", PROGRAM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        process.process_id = ProcessId.parse(process.stdout.readline())
        yield process
        process.kill()
