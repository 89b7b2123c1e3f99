"""What stages say of themselves: the JSON of the ledger, and the records that are read from it."""

import dataclasses
import json

import pytest
from support.made_up_facts import stage

from dipaco.control.planning.summaries import Alternated, Prepared, Rerouted, ReroutedEvery, Routed

# As ledgers have them, letter by letter.
SUMMARIES = {
    '{"documents": {"train": 3}, "tokens": 9, "bytes": 40, "domains": {"law": 3}, '
    '"left_out": {"code": "no network"}, "examples": ["The"], "notes": []}': Prepared(
        documents={"train": 3},
        tokens=9,
        num_bytes=40,
        domains={"law": 3},
        left_out={"code": "no network"},
        examples=["The"],
        notes=[],
    ),
    '{"documents": [3, 1], "domains": [{"law": 3}, {"code": 1}], "test": [1, 0], '
    '"test_bytes": 9}': Routed(
        documents=[3, 1], domains=[{"law": 3}, {"code": 1}], test=[1, 0], test_bytes=9
    ),
    '{"documents": [4], "domains": [{}], "test": [1], "test_bytes": 9, '
    '"small_models_seconds": 2.5, "outside_bounds": "path 0."}': Routed(
        documents=[4],
        domains=[{}],
        test=[1],
        test_bytes=9,
        small_models_seconds=2.5,
        outside_bounds="path 0.",
    ),
    '{"documents": [4], "domains": [{}], "test": [1], "test_bytes": 9, "labels": [3], '
    '"before_calibration": [2], "after_calibration": [1], "agreement": 0.5, '
    '"agreement_after": 1.0, "moved": 0.25}': Alternated(
        documents=[4],
        domains=[{}],
        test=[1],
        test_bytes=9,
        labels=[3],
        before_calibration=[2],
        after_calibration=[1],
        agreement=0.5,
        agreement_after=1.0,
        moved=0.25,
    ),
    '{"rows": [{"every": null, "perplexity": 8.5, "tune_perplexity": 8.75, "switches": 0, '
    '"tokens_read_again": 0, "tokens": 7}], "release": 2, "step": 20, '
    '"hold_out_loss": null}': Rerouted(
        rows=[
            ReroutedEvery(
                every=None,
                perplexity=8.5,
                tune_perplexity=8.75,
                switches=0,
                tokens_read_again=0,
                tokens=7,
            )
        ],
        release=2,
        step=20,
        hold_out_loss=None,
    ),
}


def stage_of(summary):
    return dataclasses.replace(stage("prepare"), summary=summary)


@pytest.mark.parametrize(("written", "record"), SUMMARIES.items())
def test_a_summary_is_written_and_read_as_ever(written, record):
    assert json.dumps(record.as_json()) == written
    assert type(record).of(stage_of(json.loads(written))) == record


def test_what_older_versions_did_not_say_is_missing_without_harm():
    prepared = {"documents": {}, "tokens": 0, "bytes": 0, "domains": {}, "left_out": {}}
    assert Prepared.of(stage_of({**prepared, "notes": []})).examples == []
    assert Routed.of(stage_of({"documents": [4], "test": [1], "test_bytes": 9})).domains == []
    assert Rerouted.of(stage_of({"rows": [], "release": 1})).hold_out_loss is None


def test_an_alternation_is_also_read_as_a_routing():
    (alternated,) = (each for each in SUMMARIES.values() if isinstance(each, Alternated))
    assert Routed.of(stage_of(alternated.as_json())).documents == alternated.documents
