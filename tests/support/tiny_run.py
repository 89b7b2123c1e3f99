"""One tiny finished run for the whole session, and `dipaco` as a process that may be killed.

Fixtures: `dipaco` runs a command line, `tiny` is the finished run (never write to it), `half` the
same run stopped in the middle of its first phase; `copy_of` gives a test its own copy of either.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from support.fault_points import Fault

from dipaco.caches import cache_folder
from dipaco.overrides import load_config
from dipaco.runs.version import described_version

HOME = Path(__file__).parents[2]
FORK_SERVER = HOME / "tools" / "fork_server.py"

TOY_FILE = HOME / "configs" / "toy.py"
CONFIG = TOY_FILE.read_text()
TOY = load_config(TOY_FILE)

KEPT_DAYS = 14  # for which compiled programs are kept
DAY_SECONDS = 86_400


class Ended(NamedTuple):
    """How a command ended: exit code (-9: killed), what it said, and the fault that was passed."""

    code: int
    out: str
    err: str
    fired: str | None


class Run(NamedTuple):
    """A run folder and the config file it was made with."""

    folder: Path
    config: Path


class Started(NamedTuple):
    """A command that runs beside the test, until the commands end."""

    process: int
    folder: Path
    ask: Callable[[dict[str, Any]], dict[str, Any]]

    @property
    def has_fired(self) -> bool:
        """Whether its fault was passed."""
        return (self.folder / "fired").exists()

    @property
    def state(self) -> str:
        """Of the process, as Linux writes it: R, S, D, T (stopped), Z (killed, or ended)."""
        return Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]

    def signal(self, number: int) -> None:
        os.kill(self.process, number)

    def wait(self) -> Ended:
        """How it has ended. Nothing else can be started meanwhile."""
        return Ended(**self.ask({"waits_for": self.process, "folder": str(self.folder)}))


class Command(Protocol):
    """`dipaco` command lines, each in a process of its own; compiled programs are kept."""

    def __call__(self, *arguments: object, fault: Fault | None = None, **request: Any) -> Ended:
        """Runs one, as a request to `tools/fork_server.py`."""
        ...

    def start(self, *arguments: object, fault: Fault | None = None, **request: Any) -> Started:
        """Starts one."""
        ...

    def call(self, module: str, **settings: Any) -> Started:
        """Starts a program of the tests: `main(folder, **settings)` of a module."""
        ...


@pytest.fixture(scope="session", autouse=True)
def _version_of_this_session():
    """Looked up once: sources that are edited meanwhile are not what runs here."""
    described_version()


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory) -> Path:
    """Programs that any process of these tests has compiled. Later sessions of this user go on with
    them (`DIPACO_TESTS_COMPILED` names another folder). A program is kept for `KEPT_DAYS`.
    """
    import jax

    folder = Path(os.environ.get("DIPACO_TESTS_COMPILED") or cache_folder() / "tests")
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        _forget_old_programs(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder / "tests"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return folder


def _forget_old_programs(folder: Path) -> None:
    """Each edit of a program leaves one that nobody asks for again."""
    oldest = time.time() - KEPT_DAYS * DAY_SECONDS
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another session is doing the same
            if file.is_file() and file.stat().st_mtime < oldest:
                file.unlink()


def of_all(tmp_path_factory) -> Path:
    """The folder that all processes of this session share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def made_once(tmp_path_factory, name: str, make: Callable[[Path], None]) -> Path:
    """A copy, for this process, of a folder that one process of the session makes.

    Args:
      make: is given the folder, which is not there yet.
    """
    original = of_all(tmp_path_factory) / "made_once" / name
    original.parent.mkdir(exist_ok=True)
    with original.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not original.exists():
            make(original)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return original
    return Path(shutil.copytree(original, tmp_path_factory.mktemp("copies") / name))


@pytest.fixture(name="run")
def toy_run(tmp_path) -> Iterator:
    """A run of the toy corpus in which nothing is done yet, for tests that import this."""
    from dipaco.runs.opening import create_or_open

    run, _ = create_or_open(tmp_path / "run", TOY)
    yield run
    run.ledger.close()


@pytest.fixture(scope="session")
def command_cache(tmp_path_factory, compiled) -> Path:
    """The cache folder of all commands, with the programs that they compile."""
    folder = tmp_path_factory.mktemp("cache")
    compiled.mkdir(parents=True, exist_ok=True)
    (folder / "compiled").symlink_to(compiled)
    return folder


@pytest.fixture(scope="session")
def dipaco(tmp_path_factory, command_cache) -> Iterator[Command]:
    """`dipaco("train", config, "--run", folder, fault=...)` -> `Ended`; `dipaco.start(...)`."""
    folder = tmp_path_factory.mktemp("commands")
    # One device, as a user has, and not the eight of the other tests.
    environment = os.environ | {
        "DIPACO_CACHE": str(command_cache),
        "XLA_FLAGS": "",
        "PYTHONPATH": str(HOME),
    }
    server = subprocess.Popen(
        [sys.executable, str(FORK_SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert server.stdin
    assert server.stdout
    questions, answers = server.stdin, server.stdout

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        print(json.dumps(request), file=questions, flush=True)
        return json.loads(answers.readline())

    class Commands:
        def __call__(self, *arguments: object, **request: Any) -> Ended:
            return Ended(**ask(self._request(arguments, request)))

        def start(self, *arguments: object, **request: Any) -> Started:
            request = self._request(arguments, request | {"starts": True})
            return Started(ask(request)["process"], Path(request["folder"]), ask)

        def call(self, module: str, **settings: Any) -> Started:
            return self.start(module=module, settings=settings)

        def _request(self, arguments: tuple, request: dict[str, Any]) -> dict[str, Any]:
            place = folder / uuid.uuid4().hex
            place.mkdir()
            if (fault := request.pop("fault", None)) is not None:
                request["fault"] = fault._asdict()
            return request | {"arguments": [str(each) for each in arguments], "folder": str(place)}

    try:
        yield Commands()
    finally:
        questions.close()
        answers.close()
        server.wait(timeout=30)


@pytest.fixture(scope="session")
def config_file() -> Path:
    return TOY_FILE


@pytest.fixture(scope="session")
def tiny(dipaco, config_file, tmp_path_factory) -> Run:
    """The finished run. No test writes to it."""

    def make(folder):
        ended = dipaco("train", config_file, "--run", folder)
        assert ended.code == 0, ended.err

    return Run(made_once(tmp_path_factory, "tiny", make), config_file)


@pytest.fixture(scope="session")
def half(dipaco, config_file, tmp_path_factory) -> Run:
    """Stopped in the second phase, before a module is stepped: contributions and snapshots wait.
    No test writes to it.
    """

    def make(folder):
        fault = Fault("after claim", "outer", nth=6)
        ended = dipaco("train", config_file, "--run", folder, fault=fault)
        assert (ended.code, ended.fired) == (-signal.SIGKILL, "after claim outer"), ended.err

    return Run(made_once(tmp_path_factory, "half", make), config_file)


@pytest.fixture
def copy_of(tmp_path) -> Callable[[Run], Run]:
    """A copy that a test may spoil."""

    def copy(run: Run) -> Run:
        folder = tmp_path / run.folder.name
        shutil.copytree(run.folder, folder)
        return Run(folder, run.config)

    return copy


FACTS = {
    "tasks": "SELECT kind, arm, subject, phase FROM tasks WHERE state = 'done'",
    "modules": "SELECT * FROM modules",
    "contributions": "SELECT * FROM contributions",
    "trained": "SELECT arm, path, phase, digest, num_bytes, step, batches, losses, tokens,"
    " norm_mean, norm_largest, bytes_down, bytes_up FROM trained",
    "scores": "SELECT arm, path, phase, name, digest, num_bytes FROM scores",
    "labels": "SELECT arm, path, phase, name, digest, num_bytes FROM labels",
    "checks": "SELECT arm, path, phase, loss, best_phase FROM checks",
    "releases": "SELECT * FROM releases",
    "evaluations": "SELECT arm, phase, perplexity, best_path_perplexity, documents, tokens"
    " FROM evaluations",
    "samples": "SELECT * FROM samples",
    "stages": "SELECT stage, CASE stage WHEN 'report' THEN '' ELSE artifacts END, summary"
    " FROM stages",
}


def in_ledger(folder: Path, statement: str) -> list[tuple]:
    """The rows that a statement gives, in the ledger of a run's folder; what it changes stays."""
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        return ledger.execute(statement).fetchall()


def facts(folder: Path) -> dict[str, set[tuple]]:
    """All rows of the ledger, but for what a clock or the number of an attempt decided."""
    if not (folder / "ledger.sqlite").exists():
        return {table: set() for table in FACTS}
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        if not ledger.execute("SELECT 1 FROM sqlite_master WHERE name = 'tasks'").fetchall():
            return {table: set() for table in FACTS}
        return {table: set(ledger.execute(query)) for table, query in FACTS.items()}


def facts_on_server(url: str, schema: str) -> dict[str, set[tuple]]:
    """The same of a run whose ledger is in PostgreSQL."""
    import psycopg

    with psycopg.connect(url, options=f'-c search_path="{schema}"') as ledger:
        return {table: set(ledger.execute(query).fetchall()) for table, query in FACTS.items()}


def report(folder: Path) -> dict:
    """report.json without its clock."""
    content = json.loads((folder / "report.json").read_bytes())
    content["equal_seconds"] = content["equal_seconds"] is not None
    for row in content["rows"]:
        del row["seconds"], row["machine_seconds"], row["link_seconds"]
    return content
