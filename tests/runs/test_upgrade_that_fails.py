"""An upgrade that fails: the workers of before go on, unless the tables are new already."""

import contextlib
import shutil
from importlib.resources import as_file

import pytest

from dipaco.cli.main import main
from dipaco.control.claims.silent_workers import Reaper
from dipaco.control.database import contract as database
from dipaco.control.database.contract import newest_version
from dipaco.control.database.sqlite import SQLite
from dipaco.control.ledger import Ledger
from dipaco.control.members.meta import Meta
from dipaco.errors import DiskFull, NotWritable, RunBusy
from dipaco.runs import upgrade as upgrades
from dipaco.runs.errors import LeftDraining, UpgradeCame, UpgradeUnfinished
from dipaco.runs.opening import create_or_open
from dipaco.runs.upgrade import upgrade
from dipaco.runs.version import described_version
from tests.runs.test_opening import CONFIG


@pytest.fixture
def begun(tmp_path):
    """A run."""
    run, _ = create_or_open(tmp_path / "run", CONFIG)
    yield run
    run.ledger.close()


@pytest.fixture
def next_tables(begun, tmp_path, monkeypatch):
    """This program has tables of one version more than those of the run."""
    number = newest_version("sqlite") + 1
    with as_file(database.SCHEMA) as schema:
        shutil.copytree(schema, tmp_path / "schema")
    added = tmp_path / "schema" / "sqlite" / f"{number:03}_added.sql"
    added.write_text("CREATE TABLE added (number INTEGER);\n")
    monkeypatch.setattr(database, "SCHEMA", tmp_path / "schema")
    return number


def no_space_left(*_, **__):
    raise DiskFull(file="ledger.sqlite")


def busy(*_, **__):
    raise RunBusy(folder="run")


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("before", ["run", "pause"])
@pytest.mark.parametrize(
    "step", [(SQLite, "upgrade"), (Reaper, "end_all")], ids=lambda step: step[1]
)
@pytest.mark.parametrize("fails", [no_space_left, interrupted])
def test_an_upgrade_that_fails_on_tables_of_before_lets_the_workers_go_on(
    begun, monkeypatch, before, step, fails
):
    begun.ledger.meta.set_command(before)
    told = begun.ledger.meta.command()
    monkeypatch.setattr(*step, fails)
    with pytest.raises(DiskFull if fails is no_space_left else KeyboardInterrupt):
        upgrade(begun.address, 10.0)
    assert begun.ledger.meta.command() == told


@pytest.mark.parametrize("fails", [no_space_left, busy])
def test_an_upgrade_that_cannot_tell_the_workers_to_go_on_says_that_the_run_drains(
    begun, monkeypatch, fails
):
    """The disk is full, or another process holds it up."""
    monkeypatch.setattr(SQLite, "upgrade", fails)
    monkeypatch.setattr(Meta, "end_drain", fails)
    said = r"still told to leave: .*`dipaco resume --run .*run`"
    with pytest.raises(LeftDraining, match=said) as raised:
        upgrade(begun.address, 10.0)
    assert isinstance(raised.value.__cause__, DiskFull if fails is no_space_left else RunBusy)
    assert begun.ledger.meta.command().name == "drain"


def test_the_program_that_is_named_lets_the_workers_of_a_run_that_was_left_draining_go_on(
    begun, next_tables, monkeypatch
):
    """This one cannot read the tables."""
    with monkeypatch.context() as patch:
        patch.setattr(SQLite, "upgrade", no_space_left)
        patch.setattr(Meta, "end_drain", no_space_left)
        with pytest.raises(LeftDraining) as raised:
            upgrade(begun.address, 10.0)
    resume = ["resume", "--run", str(begun.address)]
    said = f"the version that the run is of ({described_version()}): `dipaco {' '.join(resume)}`"
    assert said in str(raised.value)
    assert main(resume) == 2
    monkeypatch.undo()
    assert main(resume) == 0
    assert begun.ledger.meta.command().name == "run"


def not_flushed(flush):
    """A `SQLite.upgrade` whose transaction is committed when the disk fails."""
    migrates = SQLite.upgrade

    def upgraded(tables):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SQLite, "flush", flush)
            return migrates(tables)

    return upgraded


def broken(tables):
    raise NotWritable(file="ledger.sqlite", problem="[Errno 5] Input/output error")


FAULTS = {
    "no space to pin": (Reaper, "end_all", no_space_left),
    "interrupted as it pins": (Reaper, "end_all", interrupted),
    "not flushed": (SQLite, "upgrade", not_flushed(broken)),
    "interrupted as it flushes": (SQLite, "upgrade", not_flushed(interrupted)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_new_tables_no_worker_of_before_goes_on_until_an_upgrade_succeeds(
    begun, next_tables, monkeypatch, fault
):
    said = "half-way: .*(No space left|It was interrupted|Input/output error)"
    with monkeypatch.context() as patch:
        patch.setattr(*FAULTS[fault])
        for _ in range(2):  # it is told to upgrade again, and that fails as well
            with pytest.raises(UpgradeUnfinished, match=said):
                upgrade(begun.address, 10.0)
            assert begun.ledger.meta.command().name == "drain"
    done = upgrade(begun.address, 10.0)
    assert (done.tables_before, done.tables_now) == (next_tables, next_tables)
    assert done.command == "run"
    with monkeypatch.context() as patch:
        patch.setattr(Reaper, "end_all", no_space_left)
        with pytest.raises(DiskFull):
            upgrade(begun.address, 10.0)
    assert begun.ledger.meta.command().name == "run"


def test_after_an_upgrade_that_was_killed_on_new_tables_a_failing_one_lets_nobody_go_on(
    begun, next_tables, monkeypatch
):
    with contextlib.closing(Ledger(*begun.database_location, allows_older=True)) as ledger:
        ledger.meta.begin_drain()
        ledger.meta.upgrade_tables()
    monkeypatch.setattr(Reaper, "end_all", no_space_left)
    with pytest.raises(UpgradeUnfinished):
        upgrade(begun.address, 10.0)
    assert begun.ledger.meta.command().name == "drain"


@pytest.mark.parametrize("verb", ["resume", "pause"])
def test_no_command_lets_workers_of_before_go_on_while_an_upgrade_is_unfinished(
    begun, next_tables, capsys, verb
):
    with contextlib.closing(Ledger(*begun.database_location, allows_older=True)) as ledger:
        ledger.meta.begin_drain()
        ledger.meta.upgrade_tables()
    assert main([verb, "--run", str(begun.address)]) == 2
    shown = capsys.readouterr()
    assert "Run `dipaco upgrade --run RUN` again first" in shown.err
    assert not shown.out, "it promises nothing"
    assert begun.ledger.meta.command().name == "drain"
    assert main(["status", "--run", str(begun.address)]) == 0
    assert "`dipaco upgrade` goes on" in capsys.readouterr().out
    upgrade(begun.address, 10.0)
    assert main([verb, "--run", str(begun.address)]) == 0


def test_a_drain_that_is_given_while_an_upgrade_is_unfinished_holds_afterwards(begun, next_tables):
    with contextlib.closing(Ledger(*begun.database_location, allows_older=True)) as ledger:
        ledger.meta.begin_drain()
        ledger.meta.upgrade_tables()
    assert main(["drain", "--run", str(begun.address)]) == 0
    assert upgrade(begun.address, 10.0).command == "drain"


@pytest.mark.parametrize("fails", [no_space_left, interrupted])
def test_what_fails_after_the_version_is_pinned_says_that_the_run_is_upgraded(
    begun, next_tables, monkeypatch, fails
):
    monkeypatch.setattr(upgrades, "described_version", lambda: "9.9.9+next")
    monkeypatch.setattr(Reaper, "reap", fails)
    with pytest.raises(UpgradeCame, match=r"is of this version now.*(No space|interrupted)"):
        upgrade(begun.address, 10.0)
    with contextlib.closing(Ledger(*begun.database_location)) as ledger:
        told = ledger.meta.command()
    assert (told.name, told.version) == ("run", "9.9.9+next")
    with pytest.raises(DiskFull if fails is no_space_left else KeyboardInterrupt):
        upgrade(begun.address, 10.0)  # it was of this version before


def test_an_upgrade_that_goes_on_names_the_workers_that_have_not_left(
    begun, next_tables, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(Reaper, "end_all", no_space_left)
        with pytest.raises(UpgradeUnfinished):
            upgrade(begun.address, 10.0)
    monkeypatch.setattr(Reaper, "active", lambda _: ["ana-1"])
    said = "may use them yet. Not all workers have left: ana-1 is here. Wait for them, or end"
    with pytest.raises(UpgradeUnfinished, match=said):
        upgrade(begun.address, 0.0)
