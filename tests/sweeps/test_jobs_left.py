"""What is left to do of a sweep: which job waits for which, and whose text a base model takes."""

import dataclasses

import pytest

from dipaco.data.corpus import read_manifest
from dipaco.data.prepare import prepare
from dipaco.overrides import override
from dipaco.runs.opening import reading
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.equal_arms import SweepRun
from dipaco.sweeps.jobs_left import jobs_left
from dipaco.sweeps.shared_base import base_digest, begin_shared, folder_with_text
from tests.workers.conftest import CONFIG

FASTER = override(CONFIG, ["inner.learning_rate=0.1"])


@pytest.fixture
def layout(tmp_path):
    return SweepLayout(tmp_path / "sweep")


def jobs_of(layout, *configs):
    runs = [
        SweepRun(f"row {number}", layout.row(str(number), 0), config)
        for number, config in enumerate(configs)
    ]
    return {job.title: job for job in jobs_left(runs, layout, is_left=lambda run: True)}


def test_a_second_base_model_follows_the_first_for_its_text_and_does_not_fail_with_it(layout):
    jobs = jobs_of(layout, CONFIG, FASTER, override(CONFIG, ["data.sources=toy:?seed=3"]))
    first, second, other = (job for job in jobs.values() if job.verb == "pretrain")
    assert (first.after, first.follows) == (None, None)
    assert (second.after, second.follows) == (None, first.title)
    assert (other.after, other.follows) == (None, None)
    assert [jobs[f"row {number}"].after for number in range(3)] == [
        first.title,
        second.title,
        other.title,
    ]


def test_a_base_model_takes_the_text_that_a_run_of_the_folder_has(layout):
    """Also one that was begun by another command, and failed before it had read its text."""
    shared = layout.shared(base_digest(FASTER))
    begin_shared(shared, FASTER, None)
    Layout(shared).corpus.mkdir()
    (Layout(shared).corpus / "tokenizer.json").write_text("half of one")
    assert folder_with_text(layout, FASTER) is None
    row = layout.row("first", 0)
    begin_shared(row, CONFIG, None)
    prepare(CONFIG.data, Layout(row).corpus)
    assert folder_with_text(layout, override(CONFIG, ["data.valid_fraction=0.2"])) is None

    jobs = jobs_of(layout, FASTER, dataclasses.replace(FASTER, seed=7))
    bases = [job for job in jobs.values() if job.verb == "pretrain"]
    assert [job.follows for job in bases] == [None, None], "the text is there: none waits for it"
    for job in bases:
        job.begin()
        ours = Layout(job.folder).corpus / "tokenizer.json"
        assert ours.samefile(Layout(row).corpus / "tokenizer.json")
        assert read_manifest(Layout(job.folder).corpus) == read_manifest(Layout(row).corpus)
        with reading(job.folder) as run:
            assert not run.ledger.facts.stages()
