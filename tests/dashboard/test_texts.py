"""Where text went: the fate of a document is what shards, batches and scores say."""

from pathlib import Path

import pytest

from dipaco.config import MODULAR
from dipaco.dashboard.columns import unpacked
from dipaco.dashboard.texts import Texts
from dipaco.data.pack import load_plan
from dipaco.receipt import Receipt
from dipaco.runs.opening import reading
from dipaco.workers.scoring import document_scores


@pytest.fixture(scope="module")
def run(tiny):
    with reading(tiny.folder) as run:
        yield run


@pytest.fixture(scope="module")
def texts(run):
    return Texts(run)


def test_a_document_of_training_is_in_the_shard_of_its_path(run, texts):
    table = texts.table()
    paths = unpacked(table["routings"][0]["paths"])[0]
    for path, receipt in enumerate(run.shards_of(run.stage("route")).plans):
        documents = load_plan(Path(run.objects.file(Receipt(*receipt)))).documents
        assert (paths[documents] == path).all()
        fate = texts.fate(int(documents[0]))
        assert fate["routings"] == [{"phase": 0, "paths": [path]}]
        assert fate["split"] == "train"


def test_its_losses_are_those_of_the_evaluations(run, texts):
    for phase in (1, 2):
        scores = document_scores(run, MODULAR, phase)
        for at in (0, -1):
            fate = texts.fate(int(scores.documents[at]))
            assert fate["split"] == "test"
            losses = {each["phase"]: each["loss"] for each in fate["losses"]}
            expected = scores.sums[at] / scores.counts[at]
            assert losses[phase] == pytest.approx(expected, rel=1e-6)


def test_words_find_the_documents_that_hold_them(run, texts):
    number = int(run.corpus.documents("test")[3])
    text = texts.fate(number)["text"]
    found = texts.find(text[5:40])
    assert number in {each["document"] for each in found["found"]}
    assert texts.find("no document says this")["found"] == []
    assert texts.fate(-1) is None
    assert texts.fate(10**9) is None


def test_capitals_make_no_difference(texts):
    begins = texts.fate(0)["text"][:12]
    hits = {hit["document"] for hit in texts.find(begins.swapcase())["found"]}
    assert 0 in hits
