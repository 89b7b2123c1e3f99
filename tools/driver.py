"""Runs `dipaco` command lines, each in a process of its own, and kills it where it is told to.

    python tools/driver.py        one JSON request a line in, one JSON answer a line out

A process that has imported everything and computed nothing forks one child for each command line:
a real process with its own exit code, streams and death, without the three seconds of imports.
Faults are put in by wrapping functions of `dipaco` here; the product has no hooks for them.
"""

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

import dipaco.cli.console
import dipaco.cli.main
import dipaco.workers.loop
from dipaco import files
from dipaco.control.ledger import Ledger
from dipaco.control.queue import Queue
from dipaco.control.sqlite import SQLite
from dipaco.data import prepare, staging
from dipaco.data.packages import domains as packages
from dipaco.data.token_files import TokenWriter
from dipaco.evaluation import plots
from dipaco.model import huggingface
from dipaco.runs import programs
from dipaco.serving import dispatch
from dipaco.serving.decoding import loop
from dipaco.store import objects
from dipaco.store.objects import Objects
from dipaco.sweeps import jobs as crew
from dipaco.workers import origin
from dipaco.workers.tasks import report as reporter
from dipaco.workers.tasks import train as trainer

LOADED_BEFORE_THE_FORK = (packages, plots, huggingface, dispatch, loop, origin)


class Fault:
    """A signal to ourselves at a named point: the nth time that it is passed while a task of some
    kind is done.
    """

    def __init__(self, where: str, kind: str | None, nth: int, number: int, marker: Path):
        self.where, self.kind, self.left = where, kind, nth
        self.number, self.marker = number, marker
        self.doing: str | None = None  # the kind of the task that is being done
        self.is_recording = False

    def passed(self, where: str) -> None:
        """Called at every point; does not come back from a SIGKILL."""
        if where != self.where or self.kind not in (None, self.doing):
            return
        self.left -= 1
        if self.left == 0:
            self.marker.write_text(f"{where} {self.doing}")
            os.kill(os.getpid(), self.number)

    def put_in(self) -> None:
        """Names the points, by wrapping what stands there."""

        def claimed(claims):
            self.doing = claims[0].task.kind if claims else None
            self.passed("after claim")

        def record(begins: bool):
            self.is_recording = begins
            self.passed("before record" if begins else "after record")

        def changed(_):
            if self.is_recording:
                self.passed("inside record")

        wrap(Ledger, "start", before=lambda: self.passed("before begin"))
        wrap(Queue, "claim_stack", after=claimed)
        wrap(Ledger, "finish", before=lambda: record(True), after=lambda _: record(False))
        wrap(SQLite, "change", after=changed)
        wrap(Objects, "write", before=lambda: self.passed("before save"))
        wrap(Objects, "delete", before=lambda: self.passed("before sweep"))
        for room in (objects, files):  # of an object, and of `write_atomically`
            wrap(room, "install_file", before=lambda: self.passed("inside save"))
        wrap(trainer, "save_snapshot", before=lambda: self.passed("before save"))
        wrap(reporter, "write_atomically", after=lambda _: self.passed("inside save"))
        # Orbax writes in the background: when `save` returns, the snapshot is not there yet.
        wrap(
            orbax.checkpoint.StandardCheckpointer,
            "save",
            after=lambda _: self.passed("inside snapshot"),
        )
        wrap(crew.LocalEngine, "start", after=lambda _: self.passed("after start"))
        wrap(staging, "write_arrays", before=lambda: self.passed("inside staging"))
        wrap(TokenWriter, "write", after=lambda _: self.passed("inside tokens"))
        wrap(prepare, "_finish", before=lambda: self.passed("before manifest"))
        wrap(prepare.shutil, "rmtree", before=lambda: self.passed("after manifest"))
        run_phase: Any = trainer.run_phase

        def watched(*arguments, on_step, **settings):
            def told(step, loss):
                on_step(step, loss)
                self.passed("inside steps")

            return run_phase(*arguments, on_step=told, **settings)

        vars(trainer)["run_phase"] = watched


def wrap(owner: Any, name: str, before=lambda: None, after=lambda result: None) -> None:
    """Puts a function before and after another."""
    inner = getattr(owner, name)

    def wrapped(*arguments, **settings):
        before()
        result = inner(*arguments, **settings)
        after(result)
        return result

    setattr(owner, name, wrapped)


def keep_all_compiled() -> None:
    """Even what compiles fast is kept, in the cache of the tests: it is made again fifty times."""
    update = lambda _: jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # noqa: E731
    wrap(programs, "keep_compiled", after=update)


class Forked:
    """What the product asks of `subprocess.Popen` for a process of its own command line; forked."""

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
        if self.poll() is None:  # what has ended is not asked again, as there
            os.kill(self.pid, number)


def child(request: dict[str, Any], folder: Path) -> None:
    """Becomes the process of one command line; ends it."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(request.get("environment", {}))
    if limit := request.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if fault := request.get("fault"):
        Fault(**fault, marker=folder / "fired").put_in()
    keep_all_compiled()
    if request.get("forks"):  # its own processes as well
        subprocess.Popen = Forked  # ty: ignore[invalid-assignment]
    sys.exit(dipaco.cli.main.main(request["arguments"]))


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        process = os.fork()
        if not process:
            return child(request, folder)
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
    main()
