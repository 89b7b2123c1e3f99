"""Runs `dipaco` command lines, each in its own process, and kills it at the requested point.

    python tools/fork_server.py      one JSON request a line in, one JSON answer a line out

    {"arguments": [...], "folder": F}                    how the command has ended
    {"arguments": [...], "folder": F, "starts": true}    its process; it runs beside what comes next
    {"waits_for": PROCESS, "folder": F}                  how that one has ended

With `"module": M` and `"settings": {...}` in place of arguments it is a test's own program: `main`
of that module is called with the folder and the settings.

A process that has imported everything and computed nothing forks one child for each command line:
a real process with its own exit code, streams and death, without the three seconds of imports.
Faults are at the named points of `support/fault_points.py`.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint
from support.fault_points import Fault, install, wrap
from support.hosts import enter

import dipaco.cli.main
import dipaco.library.console
import dipaco.workers.loop
from dipaco.data import prepare
from dipaco.data.packages import source
from dipaco.evaluation import plots
from dipaco.launch.parent_death import PR_SET_PDEATHSIG
from dipaco.model import huggingface
from dipaco.runs import programs
from dipaco.runs.reading import report
from dipaco.runs.version import described_version
from dipaco.serving import dispatch
from dipaco.serving.decoding import loop
from dipaco.sweeps import jobs
from dipaco.workers import origin

LOADED_BEFORE_THE_FORK = (
    *(orbax.checkpoint, prepare, source, plots, huggingface, dispatch, loop, jobs, origin, report),
)


def keep_all_compiled() -> None:
    """Even what compiles fast is kept, in the cache of the tests: it is made again fifty times."""
    update = lambda _: jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # noqa: E731
    wrap(programs, "use_compilation_cache", after=update)


class Forked:
    """A forked process with the methods of `subprocess.Popen` that the product uses."""

    def __init__(self, command: list[str], *, stdin: int, stdout: Any, stderr: Any, **_: Any):
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(stdout.fileno(), 1)
        os.dup2(stderr.fileno(), 2)
        os.closerange(3, 1024)  # locks of the parent among them
        code = 1
        try:
            code = dipaco.cli.main.main(command[command.index("dipaco.cli.main") + 1 :])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            process, status = os.waitpid(self.pid, os.WNOHANG)
            if process:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 60.0)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("forked", timeout or 60.0)
            time.sleep(0.02)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:  # As with `Popen`, an ended process is not asked again.
            os.kill(self.pid, number)


def child(request: dict[str, Any], folder: Path) -> None:
    """Becomes the process of one command line, and ends with it."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    if request.get("starts"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if network := request.get("network"):  # a host of `support/hosts.py`
        enter(network)
    os.environ.update(request.get("environment", {}))
    sys.path[:0] = request.get("path", [])  # PYTHONPATH does this when a process starts.
    if limit := request.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if fault := request.get("fault"):
        install(Fault(**fault), marker=folder / "fired")
    keep_all_compiled()
    if request.get("forks"):  # its own processes as well
        subprocess.Popen = Forked  # ty: ignore[invalid-assignment]
    if module := request.get("module"):
        sys.exit(importlib.import_module(module).main(folder, **request["settings"]))
    sys.exit(dipaco.cli.main.main(request["arguments"]))


def main() -> None:
    described_version()  # once for all: sources that are edited meanwhile are not what runs here
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        if not (process := request.get("waits_for") or os.fork()):
            return child(request, folder)
        if request.get("starts"):
            print(json.dumps({"process": process}), flush=True)
            continue
        _, status = os.waitpid(process, 0)
        answer = {
            "code": os.waitstatus_to_exitcode(status),
            **{name: (folder / name).read_text() for name in ("out", "err")},
            "fired": (folder / "fired").read_text() if (folder / "fired").exists() else None,
        }
        print(json.dumps(answer), flush=True)
    return None


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A killed process loses nothing that it has written.
    os.fsync = lambda _: None  # ty: ignore[invalid-assignment]
    main()
