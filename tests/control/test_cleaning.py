"""Cleaning, as it is recorded: of a finished run only, and for ever; on both databases."""

import pytest

from dipaco.control.errors import CannotClean, NoSuchRelease, RunCleaned
from tests.control.conftest import everything
from tests.control.test_rollback import TRAIN

CHANGED = ("tasks", "history")  # by a claim that is given back


def test_of_a_cleaned_run_the_newest_releases_are_there_and_nothing_goes_back(finished):
    releases = finished.facts.releases()
    assert {("dense", 2), ("dense", 3), ("modular", 1), ("modular", 2)} <= set(releases)
    assert finished.cleanings.removed() is None
    finished.cleanings.record({"snapshots": 7})
    newest = {("base", 2), ("dense", 3), ("modular", 2)}
    assert set(finished.facts.releases()) == newest
    assert finished.facts.release("modular").phase == 2
    with pytest.raises(NoSuchRelease, match=r"at phase 1\. It has releases of phases: 2"):
        finished.facts.release("modular", 1)
    before = everything(finished)
    with pytest.raises(RunCleaned):
        finished.rollbacks.go_back("modular", 1, TRAIN)
    finished.cleanings.record({})  # killed before its end, and done again
    assert finished.cleanings.removed() == {"snapshots": 7}
    assert everything(finished) == before


def test_a_run_that_is_not_finished_is_not_cleaned(finished):
    finished.rollbacks.go_back("modular", 1, TRAIN)
    before = everything(finished)
    with pytest.raises(CannotClean, match=r"4 tasks are not done, .* Nothing was removed"):
        finished.cleanings.record({})
    claim = finished.queue.claim("busy")
    with pytest.raises(CannotClean, match="it is worked on by busy"):
        finished.cleanings.check()
    finished.queue.give_back(claim)
    after = everything(finished)
    assert {table: after[table] for table in after if table not in CHANGED} == {
        table: before[table] for table in before if table not in CHANGED
    }
