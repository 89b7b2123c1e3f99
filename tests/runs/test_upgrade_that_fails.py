"""An upgrade that fails: the workers of before go on, unless the run is pinned already."""

import contextlib

import pytest

from dipaco.cli.main import main
from dipaco.control.claims.silent_workers import Reaper
from dipaco.control.ledger import Ledger
from dipaco.control.members.meta import Meta
from dipaco.errors import DiskFull, RunBusy
from dipaco.runs import upgrade as upgrades
from dipaco.runs.errors import LeftDraining, UpgradeCame
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


def no_space_left(*_, **__):
    raise DiskFull(file="ledger.sqlite")


def busy(*_, **__):
    raise RunBusy(folder="run")


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize("before", ["run", "pause"])
@pytest.mark.parametrize("fails", [no_space_left, interrupted])
def test_an_upgrade_that_fails_lets_the_workers_go_on(begun, monkeypatch, before, fails):
    begun.ledger.meta.set_command(before)
    told = begun.ledger.meta.command()
    monkeypatch.setattr(Reaper, "end_all", fails)
    with pytest.raises(DiskFull if fails is no_space_left else KeyboardInterrupt):
        upgrade(begun.address, 10.0)
    assert begun.ledger.meta.command() == told


@pytest.mark.parametrize("fails", [no_space_left, busy])
def test_an_upgrade_that_cannot_tell_the_workers_to_go_on_says_that_the_run_drains(
    begun, monkeypatch, fails
):
    """The disk is full, or another process holds it up."""
    monkeypatch.setattr(Reaper, "end_all", fails)
    monkeypatch.setattr(Meta, "end_drain", fails)
    resume = ["resume", "--run", str(begun.address)]
    with pytest.raises(LeftDraining, match="still told to leave") as raised:
        upgrade(begun.address, 10.0)
    said = f"the version that the run is of ({described_version()}): `dipaco {' '.join(resume)}`"
    assert said in str(raised.value)
    assert isinstance(raised.value.__cause__, DiskFull if fails is no_space_left else RunBusy)
    assert begun.ledger.meta.command().name == "drain"
    assert main(resume) == 0
    assert begun.ledger.meta.command().name == "run"


@pytest.mark.parametrize("fails", [no_space_left, interrupted])
def test_what_fails_after_the_version_is_pinned_says_that_the_run_is_upgraded(
    begun, monkeypatch, fails
):
    monkeypatch.setattr(upgrades, "described_version", lambda: "9.9.9+next")
    monkeypatch.setattr(Reaper, "reap", fails)
    with pytest.raises(UpgradeCame, match=r"is of this version now.*(No space|interrupted)"):
        upgrade(begun.address, 10.0)
    with contextlib.closing(Ledger(*begun.database_location)) as ledger:
        told = ledger.meta.command()
    assert (told.name, told.version) == ("run", "9.9.9+next")
    with pytest.raises(DiskFull if fails is no_space_left else KeyboardInterrupt):
        upgrade(begun.address, 10.0)  # It was of this version before.
