"""A run, opened: its config and plan, its facts and its bytes, and what every task needs of
them.
"""

import contextlib
import dataclasses
import fcntl
import functools
import json
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import dipaco
from dipaco import overrides
from dipaco.config import RunConfig
from dipaco.control.database_location import DatabaseLocation, place_of
from dipaco.control.errors import NotAvailable
from dipaco.control.ledger import Ledger, open_ledger
from dipaco.control.plan import Plan
from dipaco.control.release import Release
from dipaco.control.tasks import StageDone
from dipaco.errors import CorpusMissing, LedgerDamaged, RunBusy, RunOfOtherVersion
from dipaco.files import install_file, translate_os_errors, write_atomically
from dipaco.receipt import Receipt
from dipaco.routing.router import Router
from dipaco.routing.router import load as load_router
from dipaco.runs.errors import (
    CorpusChanged,
    DatabaseNeeded,
    FolderHoldsSweep,
    NoSuchRun,
    RunOfOtherConfig,
    RunOfOtherDatabase,
)
from dipaco.store.address import Address
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.layout import Layout, SweepLayout, shard_tokens_folder
from dipaco.store.tensors import load_tree
from dipaco.topology import ModuleId, assemble

if TYPE_CHECKING:
    from dipaco.data.corpus import Corpus, TokenReader
    from dipaco.runs.programs import Programs


MOST_OPEN_SHARDS = 4  # whose files are open at once
SETTING_UP_SECONDS = 60.0  # beginning a run takes less, unless it copies a large checkpoint


class ShardIndex(NamedTuple):
    """The shards of the paths, in path order."""

    plans: list[Receipt]  # row plans
    documents: list[int]  # |D_i|, how many documents each has


class Run:
    """One run, open for reading and, with the lock of its folder held, for work."""

    def __init__(
        self,
        address: Address,
        asked: RunConfig,
        database_location: DatabaseLocation,
        ledger: Ledger,
    ):
        self.address = address
        self.layout = Layout(address.folder)
        self.asked = asked  # the config as it was given
        self.database_location = database_location
        self.ledger = ledger
        self.objects = address.objects()
        self._shard_tokens: dict[str, TokenReader] = {}  # open for reading, the oldest first
        self._routers: dict[str, Router] = {}  # by digest

    def open_ledger(self) -> Ledger:
        """Another connection, for another thread."""
        return Ledger(*self.database_location)

    @functools.cached_property
    def config(self) -> RunConfig:
        """The config as it is run: a base model that was trained elsewhere is not trained again."""
        if self.given("base_is_trained"):
            base = dataclasses.replace(self.asked.base, steps=0)
            return dataclasses.replace(self.asked, base=base)
        return self.asked

    @property
    def database(self) -> str | None:
        """Where its facts are, as it was begun with: fit to be shown. None = in its folder."""
        begun = _begun(self.address)
        return None if begun is None else begun.database

    @property
    def plan(self) -> Plan:
        return self.config.plan

    @functools.cached_property
    def corpus(self) -> "Corpus":
        """The prepared corpus. Raises `CorpusMissing` before the stage `prepare` is done, and
        `CorpusChanged` where it is not the one that the run has trained on.
        """
        from dipaco.data.corpus import Corpus

        fetch = None if self.address.url is None else self._fetch_corpus_file
        corpus = Corpus.open(self.layout.corpus, fetch)
        if corpus.digest != self.stage("prepare").artifacts["corpus"].digest:
            raise CorpusChanged(folder=self.layout.corpus)
        return corpus

    @functools.cached_property
    def _corpus_files(self) -> dict[str, Receipt]:
        try:
            files = self.stage("prepare").artifacts["corpus_files"]
        except NotAvailable as error:
            raise CorpusMissing(folder=self.layout.corpus) from error
        receipts = [Receipt(*file) for file in json.loads(self.objects.read_bytes(files))]
        return {Path(receipt.name).name: receipt for receipt in receipts}

    def _fetch_corpus_file(self, name: str) -> None:
        """Sees to it that a file of the corpus is here, and whole."""
        self.objects.file(self._corpus_files[name])

    def tokens_of(self, documents: np.ndarray) -> "TokenReader":
        """Reads the tokens of some documents (rising numbers): from the shard's own files if the run
        is in a bucket and has them, else from the corpus.
        """
        if self.address.url is None:
            return self.corpus
        from dipaco.data.shard_tokens import ShardTokens, shard_tokens_digest

        name = shard_tokens_digest(self.stage("prepare").artifacts["corpus"].digest, documents)
        if name not in self._shard_tokens:
            try:
                folder = self.objects.folder(shard_tokens_folder(name))
            except (ObjectMissing, ObjectDamaged):
                return self.corpus  # each of whose files is checked as well
            while len(self._shard_tokens) >= MOST_OPEN_SHARDS:
                del self._shard_tokens[next(iter(self._shard_tokens))]
            self._shard_tokens[name] = ShardTokens(folder, documents)
        return self._shard_tokens[name]

    @functools.cached_property
    def programs(self) -> "Programs":
        from dipaco.runs.programs import Programs

        return Programs(self.config)

    def stage(self, name: str, phase: int = 0) -> StageDone:
        return self.ledger.facts.stage(name, phase)

    def routing_of(self, arm: str, phase: int) -> StageDone:
        """How documents were routed for a phase of an arm: its router, shards and hold-outs are
        those of the last alternation. Raises `NotAvailable`.
        """
        return self.stage("route", self.plan.arm(arm).routed_at(phase))

    def router_of(self, routing: StageDone) -> Router:
        """The router that a stage `route` made."""
        receipt = routing.artifacts["router"]
        if receipt.digest not in self._routers:
            self._routers[receipt.digest] = load_router(self.objects.read_bytes(receipt))
        return self._routers[receipt.digest]

    def shards_of(self, routing: StageDone) -> ShardIndex:
        """Where the shard of every path lies, as a stage `route` made them."""
        index = json.loads(self.objects.read_bytes(routing.artifacts["shards"]))
        plans = [Receipt(*receipt) for receipt in index["plans"]]
        return ShardIndex(plans, index["documents"])

    def parts_at(self, arm: str, path: int, phase: int) -> dict[str, Any]:
        """A path as it is at the start of a phase, assembled."""
        topology = self.plan.arm(arm).topology
        modules = {m: self.parameters(arm, m, phase) for m in topology.modules_of(path)}
        return assemble(modules, topology.modules_of(path))

    def parameters(self, arm: str, module: ModuleId, phase: int) -> dict[str, Any]:
        """A module's parameters at the start of a phase, checked against their digest."""
        return load_tree(self.objects, self.ledger.facts.module(arm, module, phase).parameters)

    def base_parts(self) -> dict[str, Any]:
        """The base model, pre-trained. Raises `NotAvailable`."""
        base = self.plan.base
        (module,) = base.topology.modules
        return self.parameters(base.name, module, base.phases)

    @functools.cached_property
    def base_hidden(self) -> Any:
        """tokens int32 [B, T] -> hidden states [B, T, D] of the base model: what the router
        looks at.
        """
        return self.programs.hidden(self.base_parts())

    def path_of(self, release: Release, path: int) -> dict[str, Any]:
        """One path of a release, assembled."""
        receipts = release.modules_of(path)
        modules = {module: load_tree(self.objects, receipt) for module, receipt in receipts.items()}
        return assemble(modules, tuple(receipts))

    def given(self, key: str) -> Any:
        """What the run was started from (`--init-from`, `--from`): JSON, or None."""
        text = self.ledger.meta.get(key)
        return None if text is None else json.loads(text)

    def seed_for(self, *names: str | int) -> int:
        """A seed for one purpose, from the run's seed: 32 bits."""
        words = [int.from_bytes(str(name).encode(), "little") for name in names]
        return int(np.random.SeedSequence([self.config.seed, *words]).generate_state(1)[0])


def create_or_open(
    where: Path | Address,
    config: RunConfig,
    given: Mapping[str, Any] | None = None,
    database: str | None = None,
) -> tuple[Run, bool]:
    """Begins a run, or opens the one that is there; True where it was begun.

    Args:
      where: the run's folder or URL.
      config: what to run; must be that of a run that is there.
      given: what to start from, JSON values; only looked at when a run begins.
      database: where its facts are to be, as `place_of` takes it; None = in the folder.

    Raises:
      RunOfOtherConfig, RunOfOtherVersion, RunOfOtherDatabase: there is another run. It stays as it
        was.
      DatabaseNeeded: a run at a URL cannot have its facts in a folder.
    """
    address = Address.of(where)
    if _begun(address) is not None:
        run = open_run(address, database)
        if run.asked == config:
            return run, False
        has_facts = run.ledger.facts.stages()
        run.ledger.close()
        if has_facts or run.database_location.is_server:
            raise RunOfOtherConfig(folder=address, difference=difference(run.asked, config))
        # It could not even read its text: a corrected config begins anew.
    _begin(address, config, given or {}, database)
    return open_run(address, database), True


def _begin(
    address: Address, config: RunConfig, given: Mapping[str, Any], database: str | None
) -> None:
    """Puts a ledger that knows its run into place, whole or not at all."""
    layout = Layout(address.folder)
    final = layout.ledger
    meta = {
        "config": config.to_json(),
        "version": dipaco.__version__,
        **{key: json.dumps(value) for key, value in given.items()},
    }
    with translate_os_errors(final):
        address.folder.mkdir(parents=True, exist_ok=True)
        if database is not None:
            with open_ledger(*place_of(final, address.identity, database)) as ledger:
                if ledger.meta.get("config") is None:
                    ledger.start(meta)
            if address.remote is None:
                write_atomically(layout.database, database.encode())
            else:  # of two who begin at once, one is first; the other looks where it has begun
                address.remote.write_new(layout.database.name, database.encode())
            return
        if address.url is not None:
            raise DatabaseNeeded(run=address)
        partial = final.with_name(f"{final.name}.partial")
        partial.unlink(missing_ok=True)
        with open_ledger(partial) as ledger:
            ledger.start(meta)
        partial.with_name(f"{partial.name}-turn").unlink(missing_ok=True)
        install_file(partial, final)


class RunStart(NamedTuple):
    """What is known of a run before its ledger is opened."""

    database: str | None  # as `--database` was given; None = in its folder


def _begun(address: Address) -> RunStart | None:
    """None where there is no run."""
    layout = Layout(address.folder)
    if address.remote is not None:
        there = address.remote.read(layout.database.name)
        return None if there is None else RunStart(there.decode())
    if layout.database.exists():
        return RunStart(layout.database.read_text())
    return RunStart(None) if layout.ledger.exists() else None


def open_run(where: Path | Address, database: str | None = None) -> Run:
    """The run in a folder or at a URL; its facts are where it was begun, which `database` may say
    again.

    Raises:
      NoSuchRun: there is no run.
      RunOfOtherDatabase: its facts are elsewhere.
      RunOfOtherVersion: it is one of another version of the program.
      LedgerOlder: and its tables are.
      LedgerDamaged: its ledger says nothing that can be read.
    """
    address = Address.of(where)
    database_location = place_of_run(address, database)
    if address.url is not None:  # this machine may not have worked on it
        address.folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(*database_location)
    try:
        version, config = ledger.meta.get("version"), ledger.meta.get("config")
        if version is None or config is None:
            raise LedgerDamaged(
                file=database_location.name, problem="it does not say which run it is of"
            )
        if version != dipaco.__version__:
            raise RunOfOtherVersion(folder=address, found=version, here=dipaco.__version__)
        return Run(address, overrides.from_tree(json.loads(config)), database_location, ledger)
    except BaseException:
        ledger.close()
        raise


def place_of_run(where: Path | Address, database: str | None = None) -> DatabaseLocation:
    """Where the facts of a run are. Raises `NoSuchRun`, `FolderHoldsSweep`, `RunOfOtherDatabase`."""
    address = Address.of(where)
    file = Layout(address.folder).ledger
    begun = _begun(address)
    if begun is None:
        _refuse_sweep(address)
        raise NoSuchRun(folder=address)
    if database is not None and database != begun.database:
        place_of(file, address.identity, database)  # refuses a password before one is shown
        there = begun.database or file
        raise RunOfOtherDatabase(folder=address, there=there, given=database)
    return place_of(file, address.identity, begun.database)


def _refuse_sweep(address: Address) -> None:
    if SweepLayout(address.folder).sweep.exists():
        raise FolderHoldsSweep(folder=address)


def has_begun(where: Path | Address, config: RunConfig) -> bool:
    """Whether there is a run that can go on, and is not to be begun (anew)."""
    address = Address.of(where)
    if _begun(address) is None:
        return False
    with reading(address) as run:
        return run.asked == config or bool(run.ledger.facts.stages())


@contextlib.contextmanager
def reading(where: Path | Address) -> Generator[Run]:
    """A run, for commands that only look at it. Raises as `open_run`."""
    run = open_run(where)
    try:
        yield run
    finally:
        run.ledger.close()


class Part:
    """A place among the processes that work on a run from one folder. The system lets go of it when
    the process dies, so whoever comes and finds nobody knows that nobody is left.
    """

    def __init__(self, stream: Any, *, is_alone: bool):
        self._stream = stream
        self.is_alone = is_alone  # and stays so until `let_others_in`

    def let_others_in(self) -> None:
        fcntl.flock(self._stream, fcntl.LOCK_SH)


@contextlib.contextmanager
def taking_part(where: Path | Address) -> Generator[Part]:
    """Joins those who work on a run from this folder, or is the first.

    Raises:
      RunBusy: somebody has been putting the run in order for `SETTING_UP_SECONDS`.
      NotWritable, DiskFull, FolderHoldsSweep: there can be no run in this folder.
    """
    _refuse_sweep(Address.of(where))
    folder = Address.of(where).folder
    lock = Layout(folder).lock
    with translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        stream = lock.open("a")
    with stream:
        deadline = time.monotonic() + SETTING_UP_SECONDS
        while not (is_alone := _locked(stream, fcntl.LOCK_EX)):
            if _locked(stream, fcntl.LOCK_SH):
                break
            if time.monotonic() > deadline:
                raise RunBusy(folder=where)
            time.sleep(0.1)
        yield Part(stream, is_alone=is_alone)


def is_worked_on(where: Path | Address) -> bool:
    """Whether a process works on a run from this folder at this moment."""
    lock = Layout(Address.of(where).folder).lock
    if not lock.exists():
        return False
    with lock.open("a") as stream:
        return not _locked(stream, fcntl.LOCK_EX)


def _locked(stream: Any, kind: int) -> bool:
    """Takes a lock of this kind where that is possible at once."""
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def difference(there: RunConfig, here: RunConfig) -> str:
    """The settings that differ, as a phrase."""
    before, now = overrides.settings(there), overrides.settings(here)
    changed = [
        f"`{name}` was {before.get(name)} and is {now.get(name)}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    return "; ".join(changed[:3]) + (f"; and {len(changed) - 3} more" if len(changed) > 3 else "")
