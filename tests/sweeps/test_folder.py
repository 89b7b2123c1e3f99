"""Rows that have changed or lack a baseline, and what is done with their runs."""

import dataclasses

import pytest

from dipaco.config import DENSE
from dipaco.data.corpus import Corpus
from dipaco.runs.opening import create_or_open
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.equal_arms import SweepRun
from dipaco.sweeps.errors import RowsChanged
from dipaco.sweeps.folder import move_changed, origin_of, runs_in
from dipaco.sweeps.trials import trials_of
from tests.support.tiny_run import TOY

WITH_DENSE = dataclasses.replace(TOY, baselines=(DENSE,))


@pytest.fixture
def begun(tmp_path):
    """A row that has left its baseline to another: folder, trial, and the folder of its run."""
    layout = SweepLayout(tmp_path)
    (trial,) = trials_of("toy", {"a": WITH_DENSE}, [0])
    own = {trial: layout.row("a", 0)}
    config = dataclasses.replace(trial.config, baselines=())
    create_or_open(own[trial], config)[0].ledger.close()
    return layout, trial, own


def test_a_run_that_lacks_a_baseline_is_as_it_was_and_redone_only_if_none_will_train_it(
    begun, capsys
):
    layout, trial, own = begun
    there = runs_in(layout, "toy")
    other = SweepRun("other, seed 0", layout.row("other", 0), trial.config)
    move_changed(layout, [trial], own, [], there)
    move_changed(layout, [trial], own, ["a"], [*there, other])
    move_changed(layout, [trial], own, ["a"], [])  # it is not finished
    assert capsys.readouterr().out.count("`a` has not changed: there is nothing to redo.") == 2
    assert own[trial].exists()
    move_changed(layout, [trial], own, ["a"], there)
    assert not own[trial].exists()
    assert [run.folder for run in runs_in(layout, "toy")] == [layout.root / "replaced" / "a-0-1"]


def test_a_row_that_has_changed_is_refused_whatever_it_lacks(begun):
    layout, trial, own = begun
    changed = trial._replace(config=dataclasses.replace(trial.config, phases=1))
    with pytest.raises(RowsChanged, match="`phases` was 2 and is 1"):
        move_changed(layout, [changed], {changed: own[trial]}, [], [])
    move_changed(layout, [changed], {changed: own[trial]}, ["a"], [])
    assert not own[trial].exists()


def test_the_origin_of_a_run_is_its_text_and_says_how_many_documents_may_be_scored(tiny):
    corpus, origin = Corpus.open(Layout(tiny.folder).corpus), origin_of(tiny.folder)
    assert origin.corpus == corpus.digest
    assert origin.num_test == len(corpus.documents("test"))
