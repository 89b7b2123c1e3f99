"""Where text went: the fate of a document is what shards, batches and scores say."""

from pathlib import Path

import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.dashboard.columns import unpacked
from dipaco.dashboard.texts import Texts
from dipaco.data.pack import load_plan
from dipaco.receipt import Receipt
from dipaco.runs.opening import reading
from dipaco.workers.row_plans import batches_for
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


def test_it_was_trained_in_the_phases_whose_batches_have_it(run, texts):
    trained = unpacked(texts.table()["trained"])
    arm, seen = run.plan.arm(MODULAR), np.zeros_like(trained)
    for phase in range(arm.phases):
        for path in range(arm.topology.num_paths):
            batches = batches_for(run, arm, path, phase)
            steps = arm.steps_before(phase + 1) - arm.steps_before(phase)
            end = run.ledger.facts.snapshot(MODULAR, path, phase).position
            for row in batches.row_numbers(end - steps, steps):
                tokens = batches.rows[int(row)]
                for document, start, length in batches.rows.plan.row(int(row)):
                    assert length > 0
                    assert start >= -1
                    seen[document] |= 1 << phase
                assert tokens["tokens"].shape == (run.config.data.length,)
    assert (trained == seen).all()
    assert trained.any()
    number = int(np.flatnonzero(trained)[0])
    bits = [phase for phase in range(32) if int(trained[number]) >> phase & 1]
    assert texts.fate(number)["trained"] == bits


def test_rows_of_batches_are_those_that_training_reads(run):
    batches = batches_for(run, run.plan.arm(MODULAR), 1, 0)
    numbers = batches.row_numbers(1, 2).reshape(2, -1)
    for step, rows in zip((1, 2), numbers, strict=True):
        expected = np.stack([batches.rows[int(row)]["tokens"] for row in rows])
        assert (batches.at(step)["tokens"] == expected).all()


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
