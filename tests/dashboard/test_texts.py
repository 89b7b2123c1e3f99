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


def test_each_document_has_the_path_of_its_shard_and_the_losses_of_its_evaluations(run):
    table = Texts(run).table()
    paths, splits = unpacked(table["routings"][0]["paths"])[0], unpacked(table["split"])
    for path, receipt in enumerate(run.shards_of(run.stage("route")).plans):
        documents = load_plan(Path(run.objects.file(Receipt(*receipt)))).documents
        assert (paths[documents] == path).all()
        assert (splits[documents] == table["splits"].index("train")).all()
    assert [each["phase"] for each in table["scores"]] == [1, 2]
    for shown in table["scores"]:
        scores = document_scores(run, MODULAR, shown["phase"])
        documents = unpacked(shown["documents"])
        assert (documents == scores.documents).all()
        assert (splits[documents] == table["splits"].index("test")).all()
        assert unpacked(shown["losses"]) == pytest.approx(scores.sums / scores.counts, rel=1e-6)
