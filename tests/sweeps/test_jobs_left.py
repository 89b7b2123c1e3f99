"""What is left to do of a sweep: which job waits for which, and whose text a base model takes."""

import dataclasses

import pytest

from dipaco.data.corpus import Corpus, read_manifest
from dipaco.data.prepare import prepare
from dipaco.overrides import override
from dipaco.runs.opening import create_or_open, reading
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.jobs_left import jobs_left
from dipaco.sweeps.shared_base import base_digest, begin_shared, folder_with_text
from dipaco.sweeps.trials import SweepRun
from tests.workers.conftest import CONFIG

FASTER = override(CONFIG, ["inner.learning_rate=0.1"])


@pytest.fixture
def layout(tmp_path):
    return SweepLayout(tmp_path / "sweep")


def jobs_of(layout, *configs, tell=lambda event: None):
    runs = [
        SweepRun(f"row {number}", layout.row(str(number), 0), config)
        for number, config in enumerate(configs)
    ]
    return {job.title: job for job in jobs_left(runs, layout, "first", tell)}


def bases_of(layout, *configs, **more):
    """Jobs that train a base model."""
    return [job for job in jobs_of(layout, *configs, **more).values() if job.verb == "pretrain"]


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
    begin_shared(shared, FASTER, lambda: None)
    Layout(shared).corpus.mkdir()
    (Layout(shared).corpus / "tokenizer.json").write_text("half of one")
    assert folder_with_text(layout, FASTER, "first") is None
    row = layout.row("first", 0)
    begin_shared(row, CONFIG, lambda: None)
    prepare(CONFIG.corpus, Layout(row).corpus)
    other = override(CONFIG, ["data.held_fraction=0.2"])
    assert folder_with_text(layout, other, "first") is None

    bases = bases_of(layout, FASTER, dataclasses.replace(FASTER, seed=7))
    assert [job.follows for job in bases] == [None, None], "the text is there: none waits for it"
    for job in bases:
        job.begin()
        ours = Layout(job.folder).corpus / "tokenizer.json"
        assert ours.samefile(Layout(row).corpus / "tokenizer.json")
        assert read_manifest(Layout(job.folder).corpus) == read_manifest(Layout(row).corpus)
        with reading(job.folder) as run:
            assert not run.ledger.facts.stages()


def damage(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def read_text(folder, config):
    begin_shared(folder, config, lambda: None)
    return prepare(config.corpus, Layout(folder).corpus)


def test_a_base_model_takes_the_text_of_another_that_failed_after_it_had_read_it(layout):
    shared = layout.shared(base_digest(CONFIG))
    read_text(shared, CONFIG)
    assert folder_with_text(layout, FASTER, "first") == shared


@pytest.mark.parametrize("name", ["lengths.npy", "tokenizer.json", "tokens_00000.arrayrecord"])
def test_a_damaged_text_is_not_taken_and_the_base_model_reads_it_itself(layout, name):
    row = layout.row("first", 0)
    damage(read_text(row, CONFIG).folder / name)
    assert folder_with_text(layout, FASTER, "first") is None
    (base,) = bases_of(layout, FASTER)
    base.begin()
    prepare(FASTER.corpus, Layout(base.folder).corpus).check_tokens()
    assert folder_with_text(layout, FASTER, "first") == base.folder


def test_of_several_texts_a_base_model_takes_that_of_the_first_row(layout, tmp_path):
    """Then the one that most runs have, and that of a replaced run at last."""
    config = override(CONFIG, [f"data.sources=text:{tmp_path}/*.txt", "data.held_fraction=0.2"])

    def read(row, seed, word):
        for number in range(60):
            words = " ".join(f"{word} {number} and {each * number % 97}" for each in range(60))
            (tmp_path / f"{number}.txt").write_text(words)
        folder = layout.row(row, seed)
        return folder, read_text(folder, dataclasses.replace(config, seed=seed)).digest

    def taken(first_row, seed):
        return folder_with_text(layout, dataclasses.replace(config, seed=seed), first_row)

    added, new = read("added", 0, "new")
    first, old = read("first", 0, "old")
    again, _ = read("first", 1, "third")
    assert len({new, old}) == 2
    assert (taken("first", 0), taken("first", 1), taken("first", 2)) == (first, again, first)
    assert taken("added", 1) == added
    more, of_more = read("more", 0, "old")
    assert of_more == old
    assert taken("none of these", 0) == first, "two have it"
    for number, folder in enumerate((first, more)):
        moved = layout.replaced("first", number)
        moved.parent.mkdir(exist_ok=True)
        folder.rename(moved)
    again.rename(layout.replaced("first", 1))
    assert taken("first", 0) == added


def test_a_row_that_has_begun_waits_for_no_base_model(layout):
    """Another row waits for it: the `shared` folder of both was moved away."""
    create_or_open(layout.row("1", 0), CONFIG)[0].ledger.close()
    jobs = jobs_of(layout, CONFIG, CONFIG)
    (base,) = (job for job in jobs.values() if job.verb == "pretrain")
    assert [jobs[f"row {number}"].after for number in range(2)] == [base.title, None]


@pytest.fixture
def read_whole(monkeypatch):
    """Folders of the texts that are read whole, once each time."""
    folders = []

    def check_tokens(corpus):
        folders.append(corpus.folder)
        check(corpus)

    check = Corpus.check_tokens
    monkeypatch.setattr(Corpus, "check_tokens", check_tokens)
    return folders


def test_a_text_is_read_whole_once_for_all_base_models_and_not_where_they_have_it(
    layout, read_whole
):
    row = layout.row("first", 0)
    read_text(row, CONFIG)
    configs = [dataclasses.replace(CONFIG, seed=seed) for seed in range(1, 5)]
    for _ in range(2):
        bases = bases_of(layout, *configs)
        for job in bases:
            job.begin()
    assert len(bases) == 4
    assert read_whole == [Layout(row).corpus]


def test_a_damaged_text_that_is_passed_over_is_said_once(layout):
    row = layout.row("first", 0)
    damage(read_text(row, CONFIG).folder / "tokens_00000.arrayrecord")
    events = []
    for job in bases_of(layout, FASTER, tell=events.append):
        job.begin()
    (event,) = events
    assert event.level == "warning"
    assert f"{Layout(row).corpus} is not taken" in str(event)
    assert "tokens_00000.arrayrecord is damaged" in str(event)
