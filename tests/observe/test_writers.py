import io
import json

from dipaco.observe.events import Event
from dipaco.observe.writers import JsonLines, Lines, Several

LEFT_OUT = Event("domain_left_out", {"domain": "en_law", "reason": "no network"}, "warning")


def records(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_lines_show_the_level_unless_it_is_info():
    stream = io.StringIO()
    with Lines(stream) as log:
        log.write(LEFT_OUT)
        log.write(Event("stopped", {"signal": 2}))
    assert stream.getvalue() == ("warning: domain en_law left out: no network\nstopped: signal 2\n")


def test_json_lines_are_appended_with_their_time(tmp_path):
    times = iter([1.5, 2.5])
    for _ in range(2):
        with JsonLines(tmp_path / "events.jsonl", clock=lambda: next(times)) as log:
            log.write(LEFT_OUT)
    first, second = records(tmp_path / "events.jsonl")
    assert first == {
        "time": 1.5,
        "level": "warning",
        "event": "domain_left_out",
        "domain": "en_law",
        "reason": "no network",
    }
    assert second["time"] == 2.5


def test_a_line_torn_by_a_crash_does_not_spoil_the_next(tmp_path):
    file = tmp_path / "events.jsonl"
    file.write_text('{"time": 1, "ev')
    with JsonLines(file, clock=lambda: 2.0) as log:
        log.write(LEFT_OUT)
    torn, whole = file.read_text().splitlines()
    assert torn == '{"time": 1, "ev'
    assert json.loads(whole)["domain"] == "en_law"


def test_two_writers_of_one_file_do_not_overwrite_each_other(tmp_path):
    file = tmp_path / "events.jsonl"
    with JsonLines(file, clock=lambda: 1.0) as one, JsonLines(file, clock=lambda: 2.0) as other:
        for _ in range(3):
            one.write(LEFT_OUT)
            other.write(LEFT_OUT)
    assert [record["time"] for record in records(file)] == [1, 2, 1, 2, 1, 2]


def test_several_hands_on_events_and_closing(tmp_path):
    one, other = io.StringIO(), io.StringIO()
    with Several(Lines(one), Lines(other)) as log:
        log.write(LEFT_OUT)
    assert one.getvalue() == other.getvalue() != ""
