import string

import pytest

from dipaco.observe.events import SENTENCES, Event


def test_a_known_event_prints_its_sentence():
    fields = {
        "phase": 12,
        "module": "early/0003",
        "arrived": 16,
        "fan_in": 16,
        "norm": 0.412,
        "seconds": 1.84,
    }
    assert (
        str(Event("module_updated", fields))
        == "phase 12 early/0003 updated: 16 of 16 paths, norm 0.41, 1.8 s"
    )


def test_a_path_that_was_trained_is_a_line_of_80_columns():
    fields = {"arm": "modular", "phase": 3, "phases": 5, "path": 2, "loss": 4.48, "seconds": 18.0}
    line = str(
        Event("path_trained", {**fields, "tokens_per_second": 12310, "megabytes_exchanged": 3.4})
    )
    assert line.startswith("modular phase 3/5, path 2: loss 4.480, 12,310 tokens/s, ")
    assert len(line) <= 80


def test_any_other_event_prints_its_fields_in_order():
    event = Event("lease_expired", {"task": 7, "silent_seconds": 91.23456, "worker": "b3"})
    assert str(event) == "lease expired: task 7, silent_seconds 91.23, worker b3"
    assert str(Event("stopped", {})) == "stopped"


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_is_one_line_and_names_its_fields(name):
    fields = [field for _, field, _, _ in string.Formatter().parse(SENTENCES[name]) if field]
    assert fields
    assert "\n" not in SENTENCES[name]
