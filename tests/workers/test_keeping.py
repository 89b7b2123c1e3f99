"""Objects are deleted in batches, and whether they are needed is asked again before each."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dipaco.config import MODULAR
from dipaco.control.ledger import open_ledger
from dipaco.overrides import load_config
from dipaco.store.retention import RetentionSettings
from dipaco.workers import keeping
from dipaco.workers.keeping import delete


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(keeping, "BATCH", 2)


@pytest.mark.parametrize(("every", "modules"), [(1, 3), (4, 3), (4, None)])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_modules_stay_from_which_a_path_would_be_trained_again(every, modules, share):
    """If a disk is lost with snapshots that were not sent, each path goes back so many phases."""
    topology = load_config("toy").topology
    arm = dataclasses.replace(
        load_config("toy").plan.arm(MODULAR), phases=40, path_share=share, seed=3
    )
    retention = RetentionSettings(send_snapshots_every=every, modules=modules)
    run: Any = SimpleNamespace(config=SimpleNamespace(retention=retention))
    for module in topology.modules:
        oldest = [keeping._oldest_kept(run, arm, module, newest) for newest in range(41)]
        assert oldest == sorted(oldest), "what went does not come back"
        if modules is None:
            assert set(oldest) == {0}
            continue
        for path in topology.paths_through(module):
            taken = [at for at in range(30) if path in arm.paths_in(at)]
            assert taken[-every] >= oldest[30]
        assert share < 1 or oldest[30] == 30 - max(modules - 1, every)


@pytest.fixture
def run():
    with open_ledger(Path(":memory:")) as ledger:
        yield SimpleNamespace(ledger=ledger)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5])
def test_each_object_is_deleted_once_though_the_ledger_goes_on_naming_it(run, number):
    superseded, removed = [f"objects/{at}" for at in range(number)], []
    delete(run, lambda: superseded, removed.append)
    assert removed == superseded


def test_what_is_needed_again_after_a_batch_stays(run):
    """As when an object has to be made again."""
    superseded, removed = {"a", "b", "c", "d", "e"}, []

    def remove(name):
        removed.append(name)
        superseded.discard("c")

    delete(run, lambda: superseded, remove)
    assert removed == ["a", "b", "d", "e"]


def test_what_is_needed_again_within_a_batch_stays(run):
    """As when the run goes back."""
    superseded, removed = {"a", "b", "c", "d"}, []

    def remove(name):
        removed.append(name)
        if name == "a":
            superseded.discard("b")
            run.ledger.rollbacks.go_back("modular", 0, [])

    delete(run, lambda: superseded, remove)
    assert removed == ["a", "c", "d"]
