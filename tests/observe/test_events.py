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


def test_any_other_event_prints_its_fields_in_order():
    event = Event("lease_expired", {"task": 7, "silent_seconds": 91.23456, "worker": "b3"})
    assert str(event) == "lease expired: task 7, silent_seconds 91.23, worker b3"
    assert str(Event("stopped", {})) == "stopped"


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_is_one_line_and_names_its_fields(name):
    fields = [field for _, field, _, _ in string.Formatter().parse(SENTENCES[name]) if field]
    assert fields
    assert "\n" not in SENTENCES[name]
