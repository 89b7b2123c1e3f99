"""The table of a sweep: paired differences, resolved orderings, and what a row is compared with."""

import dataclasses
import json
import math

import pytest

from dipaco.evaluation.tables import ReportRow
from dipaco.model.config import part_names
from dipaco.sweeps.pairing import mean_interval, paired_difference
from dipaco.sweeps.table import make_table
from dipaco.sweeps.text import ordering_lines, render_sweep_markdown, render_sweep_text
from dipaco.sweeps.trials import trials_of
from dipaco.topology import SHARED, Level, Topology
from tests.support.tiny_run import TOY

EVERYTHING = part_names(TOY.model)


def config(*levels):
    return dataclasses.replace(TOY, topology=Topology(levels=levels), baselines=())


ROWS = {
    "dense": config(Level(name="all", parts=EVERYTHING)),
    "diloco": config(
        Level(name="all", parts=EVERYTHING, experts=SHARED), Level(name="replica", experts=4)
    ),
    "flat": config(Level(name="all", parts=EVERYTHING, experts=4)),
    "pair": config(Level(name="all", parts=EVERYTHING, experts=2)),
}
PATHS = {"dense": 1, "diloco": 4, "flat": 4, "pair": 2, "faster": 4}
PERPLEXITY = {  # of seeds 0, 1, 2
    "dense": (100.0, 110.0, 90.0),
    "diloco": (80.0, 90.0, 70.5),
    "flat": (79.0, 89.0, 69.2),
    "pair": (95.0, 112.0, 85.0),
}


def result(row, seed, name="modular", perplexity=None):
    return ReportRow(
        name=name,
        variant=name.partition("modular_")[2],
        seed=seed,
        perplexity=PERPLEXITY[row][seed] if perplexity is None else perplexity,
        bits_per_byte=1.5,
        parameters_per_path=10,
        parameters_total=10 * PATHS[row],
        steps=6,
        tokens=100 + 400 * PATHS[row],
        flops=1e6 * PATHS[row],
        bytes_per_machine=0,
        seconds=1.0 + seed,
        machine_seconds=1.0 + seed,
        link_seconds={"20": 1.0 + seed},
    )


def table_of(seeds=(0, 1, 2), rows=ROWS, leave_out=(), origin=None):
    """A table; `origin(row, seed)` gives what a run was made of."""
    trials = trials_of("toy", rows, seeds)
    results = {
        trial: [
            result(trial.row, trial.seed),
            result(trial.row, trial.seed, "modular_every_16", 2.0),
            result(trial.row, trial.seed, "modular_best_path", 1.0),
        ]
        for trial in trials
        if str(trial) not in leave_out
    }
    origins = {trial: origin(trial.row, trial.seed) for trial in trials if origin}
    return make_table("toy", trials, results, origins=origins)


def test_a_mean_of_three_has_students_interval():
    """t(0.975, 2) = 4.302653; the deviation of 1, 2, 6 is sqrt(7)."""
    interval = mean_interval({0: 1.0, 1: 2.0, 2: 6.0})
    assert interval.mean == 3.0
    assert interval.half_width == pytest.approx(4.302653 * math.sqrt(7 / 3), rel=1e-6)
    assert not interval.is_resolved
    assert mean_interval({0: 10.0, 1: 10.5, 2: 11.0}).is_resolved


def test_a_single_seed_resolves_nothing():
    interval = paired_difference({0: 1.0}, {0: 2.0, 1: 9.0})
    assert interval == (1.0, None, (0,))
    assert not interval.is_resolved
    assert paired_difference({0: 1.0}, {1: 2.0}) is None


def test_an_effect_of_the_seed_on_both_rows_cancels():
    """The rows differ by 20 between seeds, and by one from each other."""
    table = table_of()
    (ordering,) = [o for o in table.orderings if {o.better, o.worse} == {"diloco", "flat"}]
    assert (ordering.better, ordering.resolved) == ("flat", True)
    # Differences 1, 1 and 1.3: half the interval is 4.3027 times 0.1732 / sqrt(3).
    assert ordering.difference == pytest.approx(1.1)
    assert ordering.spread == pytest.approx(0.4303, abs=1e-4)


@pytest.mark.parametrize("diverged", [math.inf, math.nan])
def test_a_row_with_a_result_that_is_not_finite_is_not_compared(monkeypatch, diverged):
    monkeypatch.setitem(PERPLEXITY, "pair", (95.0, diverged, 85.0))
    monkeypatch.setitem(PERPLEXITY, "flat", (diverged, 89.0, 69.2))
    table = table_of()
    of_both = [o for o in table.orderings if {"pair", "flat"} & {o.better, o.worse}]
    assert of_both == []
    assert not [line for line in ordering_lines(table) if "pair" in line or "flat" in line]
    assert any("not finite" in note and note.endswith("flat, pair.") for note in table.notes)
    assert f"| pair | 3 | {diverged} |" in render_sweep_markdown(table)
    assert render_sweep_text(table)


def test_resolved_orderings_are_listed_first():
    lines = ordering_lines(table_of())
    kinds = [line.partition(":")[0] for line in lines]
    assert kinds == sorted(kinds, reverse=True)
    assert "resolved: diloco < dense by 19.83 ± 0.72" in lines
    assert any(line.startswith("not resolved: pair below dense") for line in lines)
    assert len(lines) == 6


def test_rows_have_the_keys_of_a_report_and_of_a_sweep():
    content = json.loads(table_of().to_json())
    keys = {field.name for field in dataclasses.fields(ReportRow)}
    keys |= {
        "sweep",
        "levels",
        "seeds",
        "spread",
        "held_equal",
        "perplexities",
        "tune_perplexities",
        "difference",
        "kind",
    }
    rows = {row["name"]: row for row in content["rows"]}
    assert all(set(row) == keys for row in rows.values())
    assert rows["dense"]["spread"] is None
    assert rows["flat"]["seeds"] == [0, 1, 2]
    assert rows["flat"]["perplexity"] == pytest.approx(sum(PERPLEXITY["flat"]) / 3)
    assert rows["flat"]["held_equal"] == ["steps", "parameters_per_path"]
    assert rows["flat"]["levels"][0]["experts"] == 4
    assert {row["name"] for row in content["runs"]} >= {"flat", "flat_best_path"}


def test_dense_baselines_of_a_row_have_one_level():
    trials = trials_of("toy", {"flat": ROWS["flat"]}, [0])
    results = {trial: [result("flat", 0, "dense"), result("flat", 0)] for trial in trials}
    dense, flat = make_table("toy", trials, results).rows
    assert (dense.name, [level.experts for level in dense.levels]) == ("flat/dense", [1])
    assert dense.levels[0].parts == list(EVERYTHING)
    assert [level.experts for level in flat.levels] == [4]


@pytest.mark.parametrize("width", [173, 80, 60])
def test_a_terminal_has_the_columns_that_it_has_room_for(width):
    text = render_sweep_text(table_of(), width)
    assert max(map(len, text.splitlines())) <= width
    assert ("In table.md, not in" in text) == (width < 100)
    assert "resolved: diloco < dense by" in text
    assert "_best_path" not in text
    said = " ".join(text.split())
    assert "In table.md alone: wrong path, path size, steps," in said
    assert "held equal; 4 rows of the same modules routed otherwise. ? = not resolved." in said


def test_two_seeds_have_no_interval_and_the_table_says_that_it_needs_three():
    table = table_of(seeds=(0, 1))
    assert not any(o.resolved or o.spread is not None for o in table.orderings)
    lines = ordering_lines(table)
    assert "not resolved, of 2 seeds (intervals need 3): flat below diloco by 1.00" in lines
    assert "±" not in "\n".join(lines)
    needed = "Intervals over seeds need 3 seeds (`--seeds 0,1,2`), and here are 2: no difference is"
    assert needed in render_sweep_markdown(table)
    assert "Intervals over seeds need" not in render_sweep_markdown(table_of())


@pytest.mark.parametrize("seeds", [(0,), (0, 1), (0, 1, 2)])
def test_rows_that_are_equal_are_said_to_be(seeds, monkeypatch):
    for name in ("again", "once more"):
        monkeypatch.setitem(PERPLEXITY, name, PERPLEXITY["dense"])
        monkeypatch.setitem(PATHS, name, 1)
    rows = ROWS | {"again": ROWS["dense"], "once more": ROWS["dense"]}
    table = table_of(seeds=seeds, rows=rows)
    lines = ordering_lines(table)
    assert lines[-1] == "equal under every seed: dense = again = once more"
    assert not any("0.00 ± 0.00" in line or "by 0.00" in line for line in lines)
    assert ordering_lines(table_of(seeds=seeds)) == lines[:-1], "the others are compared once"
    cells = [line.split("|") for line in render_sweep_markdown(table).splitlines() if "| " in line]
    assert {row[1].strip() for row in cells if row[4:5] == [" equal "]} == {"again", "once more"}


def test_with_one_seed_and_many_rows_only_some_differences_are_listed():
    table = table_of(seeds=(0,))
    assert all(line.startswith("not resolved, of one seed: ") for line in ordering_lines(table))
    many = dataclasses.replace(table, orderings=table.orderings * 3)
    assert len(ordering_lines(many)) == 11
    assert ordering_lines(many)[-1] == "not resolved, of fewer than 3 seeds: 8 more, in table.json"


def test_one_model_has_no_row_for_its_best_path(monkeypatch):
    """However its documents are routed, the same parameters predict them."""
    stopped = dataclasses.replace(TOY.inner, hold_out=0.1)
    rows = ROWS | {"stopped": dataclasses.replace(ROWS["diloco"], inner=stopped)}
    monkeypatch.setitem(PERPLEXITY, "stopped", PERPLEXITY["diloco"])
    monkeypatch.setitem(PATHS, "stopped", 4)
    names = [row.name for row in table_of(rows=rows).rows]
    assert not {"dense_best_path", "diloco_best_path"} & set(names)
    assert {"flat_best_path", "stopped_best_path"} <= set(names)


def test_unfinished_runs_are_named_and_rows_compared_over_the_finished_seeds():
    table = table_of(leave_out={"flat, seed 2"})
    assert table.missing == ["flat, seed 2"]
    (ordering,) = [o for o in table.orderings if {o.better, o.worse} == {"diloco", "flat"}]
    assert ordering.seeds == [0, 1]
    assert "Not finished: flat, seed 2." in render_sweep_markdown(table)


def test_a_row_says_what_kind_of_model_it_is():
    synchronous = dataclasses.replace(
        ROWS["diloco"], outer=dataclasses.replace(ROWS["diloco"].outer, synchronous=True)
    )
    trials = trials_of("toy", {**ROWS, "faster": synchronous}, (0,))
    results = {
        trial: [
            result(trial.row, 0, perplexity=1.0),
            result(trial.row, 0, "dense_equal_tokens", 1.0),
        ]
        for trial in trials
    }
    kinds = {row.name: row.kind for row in make_table("toy", trials, results).rows}
    assert kinds["dense"] == "dense"
    assert kinds["diloco"] == "DiLoCo"
    assert kinds["faster"] == "data_parallel"
    assert kinds["flat"] == kinds["pair"] == "modular"
    assert kinds["flat/dense_equal_tokens"] == "dense_equal_tokens"
