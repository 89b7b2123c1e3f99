"""Objects are deleted in batches, and whether they are needed is asked again before each."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from dipaco.control.ledger import open_ledger
from dipaco.workers import keeping
from dipaco.workers.keeping import delete


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(keeping, "BATCH", 2)


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
