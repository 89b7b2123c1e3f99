"""The recording says what `status`, `inspect` and the report say, and when it came to be so."""

import json
import math

import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.dashboard.columns import packed, unpacked
from dipaco.dashboard.reader import Reader
from dipaco.dashboard.recording import difference_of, recording_of, state_of, to_json
from dipaco.runs.opening import reading
from dipaco.runs.reading.inspection import inspection_of
from dipaco.runs.reading.status import status_of
from tests.support.tiny_run import in_ledger


def arm_of(recording, name=MODULAR):
    return {
        key: unpacked(value) if isinstance(value, dict) and "data" in value else value
        for key, value in recording["arms"][name].items()
    }


def events_of(recording):
    columns = {name: unpacked(column).tolist() for name, column in recording["events"].items()}
    names = recording["names"]
    return [
        {
            key: names[key][value] if key in names else value
            for key, value in zip(columns, row, strict=True)
        }
        for row in zip(*columns.values(), strict=True)
    ]


def test_columns_are_read_as_they_were_written():
    values = np.array([[0.5, math.nan], [2, 3]], np.float32)
    assert np.array_equal(unpacked(packed(values, "f4")), values, equal_nan=True)
    assert unpacked(packed([], "i4")).shape == (0,)


def test_modules_and_paths_are_those_of_status(tiny, recording):
    with reading(tiny.folder) as run:
        status = status_of(run, with_sizes=False)
    assert recording["status"]["arms"] == status["arms"]
    arm = arm_of(recording)
    for module, at in status["modules"].items():
        times = arm["step_times"][:, arm["modules"].index(module)]
        assert np.isfinite(times).sum() == at["phase"]
        assert (np.diff(times) >= 0).all()
    for name, of in status["arms"].items():
        trained = arm_of(recording, name)
        for path, at in of["paths"].items():
            assert trained["losses"][at["phase"] - 1, int(path)] == np.float32(at["loss"])
            assert trained["tokens"][:, int(path)].sum() == at["tokens"]


def test_gradient_norms_of_all_paths_are_those_of_the_ledger(tiny, recording):
    columns = "arm, phase, path, norm_mean, norm_largest"
    rows = in_ledger(tiny.folder, f"SELECT {columns} FROM trained")
    assert len(rows) == sum(np.isfinite(arm_of(recording, name)["losses"]).sum()
                            for name in recording["arms"])  # fmt: skip
    for arm, phase, path, mean, largest in rows:
        assert 0 < mean <= largest
        shown = arm_of(recording, arm)
        assert shown["inner_norms"][phase, path] == np.float32(mean)
        assert shown["largest_norms"][phase, path] == np.float32(largest)


def test_norms_and_cosines_are_those_of_inspect(tiny, recording):
    with reading(tiny.folder) as run:
        inspection = inspection_of(run)
    arm = arm_of(recording)
    for module, at in inspection["modules"].items():
        number = arm["modules"].index(module)
        for step in at["steps"]:
            place = step["phase"] - 1, number
            assert arm["norms"][place] == np.float32(step["norm"])
            assert arm["cosines"][place] == np.float32(step["cosine"])
            norms = [np.float32(step["norms"][str(path)]) for path in at["paths"]]
            assert arm["path_norms"][place].tolist() == norms
    route = recording["status"]["stages"]["route"]
    for path in inspection["paths"]:
        assert route["domains"][path["path"]] == path["domains"]
        modules = [arm["modules"][number] for number in arm["paths"][path["path"]]]
        assert modules == path["modules"]


def test_curves_end_where_the_report_does(tiny, recording):
    report = json.loads((tiny.folder / "report.json").read_bytes())
    rows = {row["name"]: row for row in report["rows"]}
    assert recording["report"]["rows"] == report["rows"]
    assert recording["curves"].keys() <= rows.keys()
    for name, points in recording["curves"].items():
        row, last = rows[name], points[-1]
        assert last["perplexity"] == row["perplexity"]
        assert (last["steps"], last["tokens"]) == (row["steps"], row["tokens"])
        assert last["bytes"] == row["bytes_per_machine"]
        assert last["seconds"] == pytest.approx(row["machine_seconds"], abs=0.01)
        assert last["link_seconds"] == pytest.approx(row["link_seconds"], abs=0.01)
        curve = [[point["steps"], point["perplexity"]] for point in points]
        assert curve == report["curves"][name]


def test_every_task_that_was_done_is_an_event(tiny, recording):
    with reading(tiny.folder) as run:
        history = run.ledger.history.after()
    events = events_of(recording)
    assert len(events) == len(history)
    for event, row in zip(events, history, strict=True):
        assert (event["outcomes"], event["workers"]) == (row.outcome, row.worker)
        assert event["kinds"] == (row.task.kind if row.task else "")
        assert event["ended"] == pytest.approx(row.ended - recording["origin"], abs=0.01)
        assert 0 <= event["begun"] <= event["ended"] <= recording["now"] + 0.01
    done = [event for event in events if event["outcomes"] == "done"]
    kinds = {event["kinds"] for event in done}
    assert {"prepare", "train", "outer", "score", "evaluate", "report"} <= kinds
    arm = arm_of(recording)
    for event in done:
        if event["kinds"] == "outer":
            place = event["phase"], arm["modules"].index(event["subjects"])
            assert arm["step_times"][place] == pytest.approx(event["ended"])


def test_a_page_without_a_number_that_json_lacks():
    assert to_json({"a": [math.nan, 1.5], "b": (math.inf,)}) == b'{"a":[null,1.5],"b":[null]}'


def test_what_came_since_a_read_is_all_that_a_difference_has(faulty):
    with reading(faulty.folder) as run:
        reader = Reader(run)
        reader.read()
        recording_of(reader, state_of(reader))
        quiet = reader.read()
        assert not quiet.is_new
        names = {kind: len(each) for kind, each in reader.facts.names().items()}
        run.ledger.meta.set_command("run")
        claim = run.ledger.queue.claim("newcomer", ("train", "outer"))
        change = reader.read()
        assert change.is_new
        assert change.outcomes == {"command"}
        difference = difference_of(reader, change, None, names)
        assert unpacked(difference["events"]["ended"]).shape == (1,)
        assert difference["names"]["workers"] == []
        assert [row[5] for row in difference["claims"]] == ["newcomer"]
        run.ledger.failures.fail(claim, "BadText: new")
        names = {kind: len(each) for kind, each in reader.facts.names().items()}
        change = reader.read()
        difference = difference_of(reader, change, None, names)
        assert difference["names"]["workers"] == ["newcomer"]
        assert difference["names"]["reasons"] == ["BadText: new"]
        assert difference["claims"] == []


def test_facts_that_are_read_later_are_those_that_are_read_at_once(tiny, recording, monkeypatch):
    """As from a run that goes on: the first half of its history, then the rest."""
    with reading(tiny.folder) as run:
        select, newest = run.ledger.select, run.ledger.history.after()[-1].number

        def earlier(text, **values):
            rows = select(text, **values)
            if "AS number" in text:
                return [(newest // 2, *row[1:]) for row in rows]
            if "h.machine" in text:
                return [row for row in rows if row[0] <= newest // 2]
            return []

        monkeypatch.setattr(run.ledger, "select", earlier)
        reader = Reader(run)
        reader.read()
        monkeypatch.setattr(run.ledger, "select", select)
        reader.facts.number = 0  # the overlap covers so short a history anyway
        reader.read()
        later = recording_of(reader, state_of(reader))
    for key in ("step_times", "norms", "cosines", "train_times", "losses", "tokens"):
        assert later["arms"][MODULAR][key] == recording["arms"][MODULAR][key], key
    assert events_of(later) == events_of(recording)


def test_an_open_page_has_the_times_of_phases_that_were_passed_over(tiny, monkeypatch):
    """As of a run whose path 0 takes no part in the first phase, which passes its first module
    unchanged: neither is a fact that is read, and their times follow from other events.
    """
    with reading(tiny.folder) as run:
        select, history = run.ledger.select, run.ledger.history.after()
        newest, module = 0, str(run.plan.arm(MODULAR).topology.modules[0])

        def known(text, **values):
            rows = select(text, **values)
            if "AS number" in text:
                return [(newest, *row[1:]) for row in rows]
            if "h.machine" in text:
                task = ("train", MODULAR, "0", 0)
                return [row for row in rows if row[0] <= newest and row[1:5] != task]
            if not newest:
                return []
            return [row for row in rows if row[:3] != (MODULAR, 0, 0) and row[:2] != (module, 1)]

        monkeypatch.setattr(run.ledger, "select", known)
        monkeypatch.setattr("dipaco.dashboard.reader.OVERLAP", 0)
        reader = Reader(run)
        reader.read()
        facts = reader.facts.arms[MODULAR]
        page = {"phases": facts.train_times.copy(), "steps": facts.step_times.copy()}
        for event in history:
            newest = event.number
            names = {kind: len(each) for kind, each in reader.facts.names().items()}
            difference = difference_of(reader, reader.read(), None, names)
            for phase, column, time, *_ in difference["steps"]:
                page["steps"][phase, column] = math.nan if time is None else time
            for phase, column, time, *_ in difference["phases"].get(MODULAR, []):
                page["phases"][phase, column] = math.nan if time is None else time
            assert np.array_equal(page["phases"], facts.train_times, equal_nan=True)
            assert np.array_equal(page["steps"], facts.step_times, equal_nan=True)
    assert np.isfinite(facts.train_times).all()
    assert np.isnan(facts.norms[0, 0])
    assert np.isnan(facts.seconds[0, 0])


def test_facts_without_a_history_are_there_from_the_beginning(tiny, copy_of):
    copy = copy_of(tiny)
    with reading(copy.folder) as run:
        run.ledger.history.prune(0)
        reader = Reader(run)
        reader.read()
        document = json.loads(to_json(recording_of(reader, state_of(reader))))
    arm = arm_of(document)
    assert (arm["step_times"] == 0).all()
    assert (arm["train_times"] == 0).all()
    assert unpacked(document["events"]["ended"]).shape == (0,)
