"""The table of a sweep: paired differences, resolved orderings, and what a row is compared with."""

import dataclasses
import json
import math

import pytest

from dipaco.evaluation.tables import ReportRow
from dipaco.model.config import part_names
from dipaco.sweeps.pairing import mean_interval, paired_difference
from dipaco.sweeps.plot import draw_sweep
from dipaco.sweeps.table import make_table
from dipaco.sweeps.text import ordering_lines, render_sweep_markdown
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
        seed=seed,
        perplexity=PERPLEXITY[row][seed] if perplexity is None else perplexity,
        parameters_per_path=10,
        parameters_total=10 * PATHS[row],
        steps=6,
        tokens=100 + 400 * PATHS[row],
        flops=1e6 * PATHS[row],
        bytes_sent=0,
        seconds=1.0 + seed,
    )


def table_of(seeds=(0, 1, 2), rows=ROWS, leave_out=()):
    trials = trials_of("toy", rows, seeds)
    results = {
        trial: [
            result(trial.row, trial.seed),
            result(trial.row, trial.seed, "modular_best_path", 1.0),
        ]
        for trial in trials
        if str(trial) not in leave_out
    }
    return make_table("toy", trials, results)


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


def test_resolved_orderings_are_listed_first():
    lines = ordering_lines(table_of())
    kinds = [line.partition(":")[0] for line in lines]
    assert kinds == sorted(kinds, reverse=True)
    assert "resolved: diloco < dense by 19.83 ± 0.72" in lines
    assert any(line.startswith("not resolved: pair ? dense") for line in lines)
    assert len(lines) == 6


def test_a_modular_row_is_compared_with_diloco_of_as_many_paths_and_tokens():
    table = table_of()
    assert set(table.to_diloco) == {"flat"}
    against = table.to_diloco["flat"]
    assert against.held_equal == ["steps", "tokens", "parameters_per_path", "flops"]
    assert any("Without a DiLoCo row" in note and "pair" in note for note in table.notes)


def test_rows_have_the_keys_of_a_report_and_of_a_sweep():
    content = json.loads(table_of().to_json())
    keys = {field.name for field in dataclasses.fields(ReportRow)}
    keys |= {"sweep", "levels", "seeds", "spread", "held_equal", "perplexities"}
    rows = {row["name"]: row for row in content["rows"]}
    assert all(set(row) == keys for row in rows.values())
    assert rows["dense"]["spread"] is None
    assert rows["flat"]["seeds"] == [0, 1, 2]
    assert rows["flat"]["perplexity"] == pytest.approx(sum(PERPLEXITY["flat"]) / 3)
    assert rows["flat"]["held_equal"] == ["steps", "parameters_per_path"]
    assert rows["flat"]["levels"][0]["experts"] == 4
    assert {row["name"] for row in content["runs"]} >= {"flat", "flat_best_path"}


def test_rows_on_other_text_are_not_compared():
    data = dataclasses.replace(ROWS["flat"].data, sources=("other:",))
    other = dataclasses.replace(ROWS["flat"], data=data)
    table = table_of(rows=ROWS | {"flat": other})
    assert table.apart == ["flat", "flat_best_path"]
    assert not table.to_diloco
    assert not [o for o in table.orderings if "flat" in (o.better, o.worse)]
    assert {row.name: row.spread for row in table.rows}["flat"] is None
    text = render_sweep_markdown(table)
    assert "On other text than the first row, and not compared with it: flat.\n" in text
    assert "| flat | 3 | 79.07 |  |  |" in text


def test_of_two_diloco_rows_the_one_with_the_same_settings_is_taken_and_differences_are_noted():
    inner = dataclasses.replace(ROWS["flat"].inner, learning_rate=1e-2)
    fast = dataclasses.replace(ROWS["flat"], inner=inner)
    table = table_of(rows=ROWS | {"flat": fast})
    assert "That DiLoCo row has other settings also under inner: flat." in table.notes
    rows = {"faster": dataclasses.replace(ROWS["diloco"], inner=inner)} | ROWS | {"flat": fast}
    known = PERPLEXITY | {"faster": (85.0, 95.0, 75.0)}
    trials = trials_of("toy", rows, [0])
    results = {t: [result(t.row, t.seed, perplexity=known[t.row][t.seed])] for t in trials}
    table = make_table("toy", trials, results)
    assert table.to_diloco["flat"].worse == "faster"
    assert not any("has other settings" in note for note in table.notes if "flat" in note)


def test_dense_baselines_of_a_row_have_one_level():
    trials = trials_of("toy", {"flat": ROWS["flat"]}, [0])
    results = {trial: [result("flat", 0, "dense"), result("flat", 0)] for trial in trials}
    dense, flat = make_table("toy", trials, results).rows
    assert (dense.name, [level.experts for level in dense.levels]) == ("flat/dense", [1])
    assert dense.levels[0].parts == list(EVERYTHING)
    assert [level.experts for level in flat.levels] == [4]


def test_with_one_seed_and_many_rows_only_some_differences_are_listed():
    table = table_of(seeds=(0,))
    assert all(line.startswith("not resolved, of one seed: ") for line in ordering_lines(table))
    many = dataclasses.replace(table, orderings=table.orderings * 3)
    assert len(ordering_lines(many)) == 11
    assert ordering_lines(many)[-1] == "not resolved, of one seed: 8 more, in table.json"


def test_one_path_has_no_row_for_its_best_path():
    names = [row.name for row in table_of().rows]
    assert "dense_best_path" not in names
    assert "flat_best_path" in names


def test_unfinished_runs_are_named_and_rows_compared_over_the_finished_seeds():
    table = table_of(leave_out={"flat, seed 2"})
    assert table.missing == ["flat, seed 2"]
    assert table.to_diloco["flat"].seeds == [0, 1]
    assert "Not finished: flat, seed 2." in render_sweep_markdown(table)


def test_the_picture_is_drawn_for_one_seed_and_for_several(tmp_path):
    for seeds in ((0,), (0, 1, 2)):
        draw_sweep(table_of(seeds), tmp_path / "plot.png")
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
