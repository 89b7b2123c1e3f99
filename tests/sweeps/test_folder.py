"""Rows that have changed, and what is done with their runs."""

import dataclasses

import pytest

from dipaco.config import DENSE
from dipaco.data.corpus import Corpus
from dipaco.overrides import override
from dipaco.runs.opening import create_or_open
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.errors import RowsChanged
from dipaco.sweeps.folder import move_changed, origin_of
from dipaco.sweeps.trials import trials_of
from tests.support.tiny_run import TOY


@pytest.fixture
def begun(tmp_path):
    """Folder, a trial of it, and the folder of its run."""
    layout = SweepLayout(tmp_path)
    (trial,) = trials_of("toy", {"a": TOY}, [0])
    own = {trial: layout.row("a", 0)}
    create_or_open(own[trial], trial.config)[0].ledger.close()
    return layout, trial, own


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"phases": 1}, "`phases` was 2 and is 1"),
        ({"baselines": (DENSE,)}, r"`baselines` was \('dense', 'dense_equal_tokens'\)"),
    ],
)
def test_a_row_that_has_changed_is_refused_and_moved_if_it_is_redone(begun, change, said):
    layout, trial, own = begun
    changed = trial._replace(config=dataclasses.replace(trial.config, **change))
    with pytest.raises(RowsChanged, match=said):
        move_changed(layout, [changed], {changed: own[trial]}, [])
    move_changed(layout, [changed], {changed: own[trial]}, ["a"])
    assert not own[trial].exists()
    assert (layout.root / "replaced" / "a-0-1").exists()


@pytest.mark.parametrize("settings", ["report.link_megabits=5", "data.processes=2"])
def test_settings_of_no_result_and_of_speed_change_no_row(begun, settings):
    layout, trial, own = begun
    same = trial._replace(config=override(trial.config, [settings]))
    move_changed(layout, [same], {same: own[trial]}, [])
    assert own[trial].exists()


def test_the_origin_of_a_run_is_its_text_and_says_how_many_documents_may_be_scored(tiny):
    corpus, origin = Corpus.open(Layout(tiny.folder).corpus), origin_of(tiny.folder)
    assert origin.corpus == corpus.digest
    assert origin.num_test == len(corpus.documents("test"))
