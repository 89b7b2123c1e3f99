"""Objects are deleted in batches, and whether they are needed is asked again before each."""

import pytest

from dipaco.workers import keeping
from dipaco.workers.keeping import delete


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(keeping, "BATCH", 2)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5])
def test_each_object_is_deleted_once_though_the_ledger_goes_on_naming_it(number):
    superseded, removed = [f"objects/{at}" for at in range(number)], []
    delete(lambda: superseded, removed.append)
    assert removed == superseded


def test_what_is_needed_again_after_a_batch_stays():
    """As when a run goes back, or an object has to be made again."""
    superseded, removed = {"a", "b", "c", "d", "e"}, []

    def remove(name):
        removed.append(name)
        superseded.discard("c")

    delete(lambda: superseded, remove)
    assert removed == ["a", "b", "d", "e"]
