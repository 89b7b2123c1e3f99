"""A run is pinned to the sources that make its bits: two commits do not mix unseen."""

import contextlib
import json
import re
import shutil
import zipfile
from pathlib import Path

import pytest

import dipaco
from dipaco.control import clock
from dipaco.control.claims import silent_workers
from dipaco.control.members.meta import RunCommand
from dipaco.control.process_id import ProcessId
from dipaco.errors import BadSetting, RunOfOtherVersion
from dipaco.runs import version
from dipaco.runs.opening import open_run
from dipaco.runs.upgrade import upgrade
from dipaco.runs.version import program_version, sources_digest
from dipaco.store.address import Address
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.process import work
from tests.support.members import join, process_of
from tests.support.tiny_run import TOY, toy_run  # noqa: F401


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr("dipaco.runs.upgrade.POLL_SECONDS", 0.01)


@pytest.fixture(scope="module")
def other_home(tmp_path_factory):
    """Of the same program elsewhere, but for one line of what trains."""
    home = tmp_path_factory.mktemp("other") / "dipaco"
    shutil.copytree(Path(dipaco.__file__).parent, home, ignore=shutil.ignore_patterns("*.pyc"))
    with (home / "inner" / "step.py").open("a") as file:
        file.write("\n# another commit\n")
    return home


def test_the_same_sources_are_the_same_program_wherever_they_are(tmp_path):
    here = Path(dipaco.__file__).parent
    there = tmp_path / "site-packages" / "dipaco"
    shutil.copytree(here, there)
    assert sources_digest(there) == sources_digest(here)
    shown = tmp_path / "shown" / "dipaco"
    shutil.copytree(here, shown)
    (shown / "cli" / "status.py").write_text("# another table\n")
    assert sources_digest(shown) == sources_digest(here)


def test_the_page_names_the_rooms_that_may_differ_while_a_run_goes_on():
    page = (Path(dipaco.__file__).parent / "workers" / "README.md").read_text()
    named = re.search(r"show, serve or start things do not count \(([^)]*)\)", page)
    assert tuple(re.findall(r"\w+", named[1])) == version.ROOMS_APART


@pytest.mark.parametrize("changed", ["inner/step.py", "control/database/queries.sql", "files.py"])
def test_other_sources_are_another_program(tmp_path, changed):
    home = tmp_path / "dipaco"
    shutil.copytree(Path(dipaco.__file__).parent, home)
    with (home / changed).open("a") as file:
        file.write("\n")
    assert sources_digest(home) != sources_digest(Path(dipaco.__file__).parent)


def test_the_commit_is_that_of_the_checkout_or_of_the_wheel(tmp_path):
    home = tmp_path / "checkout" / "dipaco"
    home.mkdir(parents=True)
    assert version.commit_of(home) == ""
    (home / "commit.txt").write_text("0123456789\n")
    assert version.commit_of(home) == "0123456789"
    (home.parent / ".git").mkdir()  # a checkout whose git says nothing
    assert version.commit_of(home) == ""


def test_the_wheel_of_this_program_has_its_version_and_its_sources(tmp_path):
    wheel = version.write_wheel(tmp_path)
    assert wheel.name == f"dipaco-{version.program_version()}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "there")
        info = f"dipaco-{version.program_version()}.dist-info"
        assert f"Version: {version.program_version()}\n" in opened.read(f"{info}/METADATA").decode()
        assert b"dipaco = dipaco.cli.start:main" in opened.read(f"{info}/entry_points.txt")
        recorded = opened.read(f"{info}/RECORD").decode().splitlines()
        assert {line.split(",")[0] for line in recorded} == set(opened.namelist())
    there = tmp_path / "there" / "dipaco"
    assert version.sources_digest(there) == version.sources_digest(version.HOME)
    assert version.commit_of(there) == version.commit_of(version.HOME)


def test_a_worker_of_another_commit_is_refused_until_the_run_is_upgraded(
    run, tmp_path, other_home, monkeypatch
):
    renewer = LeaseRenewer(run.open_ledger, "old", 60.0)
    before = program_version()
    monkeypatch.setattr(version, "HOME", other_home)
    version.described_version.cache_clear()
    try:
        with pytest.raises(RunOfOtherVersion, match="`dipaco upgrade --run RUN`") as raised:
            work(run, "new", Callbacks())
        assert before in str(raised.value)
        assert program_version() in str(raised.value)
        assert run.ledger.members.list() == []
        open_run(tmp_path / "run").ledger.close()  # reading needs the same version only
        assert upgrade(Address(tmp_path / "run"), 10.0).before.startswith(before)
        now = run.ledger.meta.command()
        renewer.receive(now)
    finally:
        monkeypatch.undo()
        version.described_version.cache_clear()
    with pytest.raises(RunOfOtherVersion, match="The run is a run of dipaco"):
        renewer.receive(now)  # a worker that was at work meanwhile
    renewer.receive(RunCommand("run", before))


def test_a_worker_of_the_next_number_works_beside_the_others_if_nothing_that_counts_differs(
    run, tmp_path, other_home, monkeypatch
):
    pinned = RunCommand("run", program_version())
    next_home = tmp_path / "next" / "dipaco"
    shutil.copytree(Path(dipaco.__file__).parent, next_home)
    numbered = next_home / version.NUMBER_FILE
    numbered.write_text(numbered.read_text().replace(dipaco.__version__, "0.5.0"))
    (next_home / "observe" / "metrics.py").write_text("# another metric\n")
    monkeypatch.setattr(dipaco, "__version__", "0.5.0")
    renewer = LeaseRenewer(run.open_ledger, "next", 60.0)
    for home, is_same in ((next_home, True), (other_home, False)):
        monkeypatch.setattr(version, "HOME", home)
        version.described_version.cache_clear()
        assert program_version().startswith("0.5.0+")
        for check in (lambda: renewer.receive(pinned), lambda: open_run(tmp_path / "run")):
            if is_same:
                opened = check()
            else:
                with pytest.raises(RunOfOtherVersion, match=r"this is 0\.5\.0"):
                    check()
        if is_same:
            opened.ledger.close()
    monkeypatch.undo()
    version.described_version.cache_clear()


@pytest.mark.parametrize("holds", [True, False], ids=["in a task", "idle"])
def test_a_worker_that_was_killed_does_not_hold_up_an_upgrade(run, tmp_path, monkeypatch, holds):
    for seconds in ("LEASE_SECONDS", "ENDED_SECONDS"):
        monkeypatch.setattr(silent_workers, seconds, 0.2)
    gone = ProcessId.here()._replace(began="0")  # Another process had our number.
    join(run.ledger, "killed", pid=gone.pid, process_id=str(gone))
    if holds:
        run.ledger.queue.claim("killed")
    assert upgrade(Address(tmp_path / "run"), 10.0).command == "run"
    told = {(event.worker, event.outcome) for event in run.ledger.history.after()}
    assert told >= {("killed", "silent"), *([("killed", "lost")] if holds else [])}
    assert run.ledger.members.here() == []
    assert run.ledger.queue.claim("next").attempt == 1 + holds


def test_a_worker_of_the_old_program_that_wakes_before_the_run_is_pinned_has_lost_its_claim(
    run, tmp_path, monkeypatch
):
    now_seconds, end_all = clock.now_seconds(), silent_workers.Reaper.end_all
    monkeypatch.setattr(clock, "now_seconds", lambda: now_seconds)
    claim = run.ledger.queue.claim("old")
    renew = "UPDATE claims SET renewals = renewals + 1"

    def passes(seconds):
        nonlocal now_seconds
        now_seconds += 20.0

    def ended(reaper):
        assert reaper._database._connection.execute(renew).rowcount == 1
        end_all(reaper)

    monkeypatch.setattr("dipaco.runs.upgrade.time.sleep", passes)
    monkeypatch.setattr(silent_workers.Reaper, "end_all", ended)
    upgrade(Address(tmp_path / "run"), 10.0)
    assert not run.ledger.queue.is_held(claim)
    told = [(event.worker, event.outcome) for event in run.ledger.history.after()]
    assert told == [("", "command"), ("old", "lost")]
    assert run.ledger.queue.claim("next").attempt == 2


def test_a_run_whose_config_this_version_refuses_is_left_as_it_is(run, tmp_path):
    before, tree = run.ledger.meta.command(), json.loads(TOY.to_json())
    tree["outer"]["codec"] = "of another version"
    run.ledger.meta.change_config(json.dumps(tree))
    with pytest.raises(BadSetting, match=r"outer\.codec"):
        upgrade(Address(tmp_path / "run"), 10.0)
    assert run.ledger.meta.command() == before


@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("given", [None, "pause", "run"])
@pytest.mark.parametrize("before", ["run", "pause", "drain"])
def test_a_command_that_is_given_while_an_upgrade_waits_holds_afterwards(
    run, tmp_path, before, given, is_stopped
):
    run.ledger.meta.set_command(before)
    join(run.ledger, "w")

    def meanwhile():
        assert run.ledger.meta.command().name == "drain"
        if given is not None:
            run.ledger.meta.set_command(given)
        run.ledger.members.leave("w", process_of("w"))
        return is_stopped

    with pytest.raises(KeyboardInterrupt) if is_stopped else contextlib.nullcontext():
        assert upgrade(Address(tmp_path / "run"), 10.0, meanwhile).command == (given or before)
    assert run.ledger.meta.command().name == (given or before)
