"""The report of the tiny run: its rows have the keys that every later table keeps, and its counts
are what arithmetic says.
"""

import itertools
import json

import pytest

from dipaco.runs.forecast.forecast import forecast
from tests.support.tiny_run import TOY, in_ledger

VOCABULARY, WIDTH, HIDDEN, LAYERS, LENGTH = 300, 32, 48, 2, 64
PATHS, PHASES, TAU, BASE_STEPS, BATCH = 4, 2, 3, 4, 4
KEYS = """name seed perplexity bits_per_byte tune_perplexity parameters_per_path parameters_total
steps
steps_elsewhere variant
tokens flops bytes_per_machine bytes_left_out seconds machine_seconds link_seconds
wrong_path_perplexity tune_perplexity"""
MATRICES = 4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN  # of one block
PARAMETERS = 2 * VOCABULARY * WIDTH + LAYERS * (MATRICES + 2 * WIDTH) + WIDTH


@pytest.fixture(scope="module")
def report(tiny):
    return json.loads((tiny.folder / "report.json").read_bytes())


@pytest.fixture(scope="module")
def rows(report):
    return {row["name"]: row for row in report["rows"]}


def test_every_row_has_exactly_the_keys_that_later_tables_keep(report):
    assert [row["name"] for row in report["rows"]] == [
        "dense",
        "dense_equal_tokens",
        "modular",
        "modular_by_likelihood",
        "modular_ensemble_2",
        "modular_ensemble",
        "modular_ensemble_renewed",
        "modular_best_path",
    ]
    assert all(row.keys() == {*KEYS.split()} for row in report["rows"])
    assert all(row["steps_elsewhere"] == 0 for row in report["rows"])
    variants = {row["name"]: row["variant"] for row in report["rows"] if row["variant"]}
    assert all(name == f"modular_{variant}" for name, variant in variants.items())
    assert len(variants) == 5


def test_a_wrong_path_is_said_of_the_model_that_has_paths(rows):
    wrong = {name for name, row in rows.items() if row["wrong_path_perplexity"] is not None}
    assert wrong == {"modular"}
    assert rows["modular"]["wrong_path_perplexity"] > rows["modular_best_path"]["perplexity"]
    assert all(row["bytes_left_out"] == 0 for row in rows.values())


@pytest.mark.parametrize(
    ("name", "steps", "paths", "copies"),
    [
        ("dense", PHASES * TAU, 1, 1),
        ("dense_equal_tokens", PATHS * PHASES * TAU, 1, 1),
        ("modular", PHASES * TAU, PATHS, 2),
        ("modular_best_path", PHASES * TAU, PATHS, 2),
    ],
)
def test_counts_are_what_arithmetic_says(rows, name, steps, paths, copies):
    row = rows[name]
    tokens = (BASE_STEPS + steps * paths) * BATCH * LENGTH
    # Two operations for each weight and token, four for each pair of positions and value; the
    # backward pass takes twice the forward's.
    per_token = 3 * (2 * (LAYERS * MATRICES + VOCABULARY * WIDTH) + 4 * LAYERS * WIDTH * LENGTH)
    assert row["seed"] == 0
    assert row["parameters_per_path"] == PARAMETERS
    assert row["parameters_total"] == copies * PARAMETERS
    assert row["steps"] == BASE_STEPS + steps
    assert row["tokens"] == tokens
    assert row["flops"] == tokens * per_token
    assert row["seconds"] > 0


def test_bytes_are_those_of_the_plan_and_a_machine_by_itself_exchanges_nothing(rows):
    found = forecast(TOY)
    assert rows["modular"]["bytes_per_machine"] == found.run_bytes
    # Modules, contributions and AdamW's moments of every phase are the least of it.
    assert found.run_bytes > PHASES * 4 * 4 * PARAMETERS
    assert rows["modular_best_path"]["bytes_per_machine"] == found.run_bytes
    assert {rows[name]["bytes_per_machine"] for name in ("dense", "dense_equal_tokens")} == {0}


def test_each_machine_trains_the_base_model_and_its_path_and_then_transfers(tiny, rows):
    seconds = dict(in_ledger(tiny.folder, "SELECT arm, sum(seconds) FROM trained GROUP BY arm"))
    for name, arm, machines in [("modular", "modular", PATHS), ("dense", "dense", 1)]:
        row = rows[name]
        machine_seconds = seconds["base"] + seconds[arm] / machines
        assert row["machine_seconds"] == pytest.approx(machine_seconds, abs=1e-3)
        over_link = machine_seconds + row["bytes_per_machine"] * 8 / 20e6
        assert row["link_seconds"] == {"20": pytest.approx(over_link, abs=1e-3)}
    assert rows["modular_best_path"]["link_seconds"] == rows["modular"]["link_seconds"]


def test_one_machine_without_a_link_has_the_seconds_of_a_machine_with_one(tiny, report, rows):
    """Read off the better of the dense curves, between their evaluations."""
    row, seconds = report["equal_seconds"], rows["modular"]["link_seconds"]["20"]
    took = dict(in_ledger(tiny.folder, "SELECT arm, sum(seconds) FROM trained GROUP BY arm"))
    read = []
    for name in ("dense", "dense_equal_tokens"):
        curve = report["curves"][name]
        last, _ = curve[-1]
        a_step = took[name] / (last - BASE_STEPS)
        steps = min(last, BASE_STEPS + (seconds - took["base"]) // a_step)
        (before, high), (after, low) = next(
            ends for ends in itertools.pairwise(curve) if steps <= ends[1][0]
        )
        share = (steps - before) / (after - before)
        read.append((high ** (1 - share) * low**share, steps))
    assert (row["perplexity"], row["steps"]) == pytest.approx(min(read))
    assert row["name"] == "dense_equal_seconds"
    assert (row["bytes_per_machine"], row["seconds"]) == (0, seconds)
    assert row["link_seconds"] == {"20": seconds}
    assert BASE_STEPS < row["steps"] <= rows["dense_equal_tokens"]["steps"]
    assert row["tokens"] == row["steps"] * BATCH * LENGTH
    text = (tiny.folder / "report.md").read_text()
    names = [line.split()[1] for line in text.splitlines() if line.startswith("| ")]
    assert names.index("dense_equal_seconds") == names.index("modular") - 1
    assert any(note.startswith("dense_equal_seconds is one machine") for note in report["notes"])


def test_the_best_path_after_the_fact_is_at_least_as_good(rows):
    assert rows["modular_best_path"]["perplexity"] <= rows["modular"]["perplexity"]
    assert all(1 < row["perplexity"] < VOCABULARY for row in rows.values())


def test_curves_hold_every_evaluation(report):
    steps = {name: [step for step, _ in curve] for name, curve in report["curves"].items()}
    assert steps == {"modular": [4, 7, 10], "dense": [4, 7, 10], "dense_equal_tokens": [4, 16, 28]}
    starts = {curve[0][1] for curve in report["curves"].values()}
    assert len(starts) == 1  # all rows start from the same base parameters


def test_every_training_document_is_in_one_shard(report):
    assert [share["path"] for share in report["shards"]] == [0, 1, 2, 3]
    for share in report["shards"]:
        assert sum(share["domains"].values()) == share["documents"] > 0
    assert sum(share["documents"] for share in report["shards"]) == report["corpus"]["train"]


def test_markdown_picture_and_events_are_beside_it(tiny, rows):
    text = (tiny.folder / "report.md").read_text()
    for name, row in rows.items():
        assert f"| {name} | 0 | {row['perplexity']:.2f} |" in text
    assert "time at 20 Mbit/s" in text
    assert (tiny.folder / "report.png").read_bytes().startswith(b"\x89PNG\r\n")
    events = [json.loads(line) for line in (tiny.folder / "events.jsonl").read_text().splitlines()]
    kinds = {event["event"] for event in events}
    assert {
        "corpus_prepared",
        "shard_built",
        "path_trained",
        "module_updated",
        "evaluated",
    } <= kinds


def test_the_table_in_the_ledger_says_the_same(tiny, rows):
    ((summary,),) = in_ledger(tiny.folder, "SELECT summary FROM stages WHERE stage = 'report'")
    assert json.loads(summary) == {name: row["perplexity"] for name, row in rows.items()}
