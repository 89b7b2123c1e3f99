"""`tools/race.py`: the best rate of every row, which is first, and where the lead changes."""

import race

from dipaco.sweeps.table import SweepRow
from tests.support.report_costs import COSTS


def row(name, *perplexities):
    return SweepRow(
        name=name,
        variant="best_path" if name.endswith("_best_path") else "",
        seed=0,
        perplexity=perplexities[0],
        steps=1,
        **COSTS,
        sweep="races",
        levels=[],
        seeds=list(range(len(perplexities))),
        spread=None,
        held_equal=[],
        perplexities=list(perplexities),
    )


ROWS = (
    row("dense 1x", 50.0, 54.0),
    row("dense 1x rate 0.006", 48.0),
    row("dense 1x rate 6e-05 phases 2", 70.0),
    row("dense 1x_best_path", 1.0),
    row("dense size 2x", 47.0),
    row("flat 4 phases 2", 75.0),
    row("flat 4", 40.0),
)


def test_every_row_has_its_best_rate_at_every_budget():
    curves = race.best(ROWS, rate=0.003, phases=10)
    assert curves["dense 1x"] == {10: (48.0, 0.006, 2), 2: (70.0, 6e-05, 1)}
    assert curves["flat 4"] == {2: (75.0, 0.003, 1), 10: (40.0, 0.003, 1)}
    assert set(curves) == {"dense 1x", "dense size 2x", "flat 4"}


def test_only_seeds_that_all_rows_have_count():
    rows = (row("dense 1x", 50.0, 54.0), row("flat 4", 51.0, 49.0))
    curves = race.best(rows, rate=0.003, phases=10)
    assert (curves["dense 1x"][10].perplexity, curves["flat 4"][10].perplexity) == (52.0, 50.0)
    curves = race.best([*rows, row("2x2", 60.0)], rate=0.003, phases=10)
    assert (curves["dense 1x"][10].perplexity, curves["flat 4"][10].perplexity) == (50.0, 51.0)


def test_it_says_which_row_is_first_and_where_the_lead_changes():
    curves = race.best(ROWS, rate=0.003, phases=10)
    lines = race.race("equal steps", curves, ("dense 1x", "flat 4"))
    assert lines[0] == "| equal steps | 2 phases | 10 phases |"
    assert lines[-1] == "| **first** | **dense 1x** | **flat 4** |"
    line = race.crossings(curves, "flat 4", "dense 1x")
    assert line == "- flat 4, dense 1x: between 2 and 10 phases flat 4 overtakes"
    line = race.crossings(curves, "dense 1x", "dense size 2x")
    assert (
        line == "- dense 1x, dense size 2x: dense size 2x is ahead throughout (dense 1x at +2.1%)"
    )


def test_a_larger_model_that_is_hardly_better_is_not_in_that_regime():
    curves = race.best(ROWS, rate=0.003, phases=10)
    line = "- 10 phases: dense size 2x is +2.1% better than dense 1x: not in that regime"
    assert race.regimes(curves) == [line]
    better = race.best([*ROWS, row("dense size 2x rate 1", 43.0)], rate=0.003, phases=10)
    assert race.regimes(better) == ["- 10 phases: dense size 2x is +10.4% better than dense 1x"]


def test_a_row_that_has_not_run_is_named():
    curves = race.best(ROWS, rate=0.003, phases=10)
    (line,) = race.race("equal steps", curves, ("dense 1x", "2x2"))
    assert line == "equal steps: no budget at which all of them have run. Missing: 2x2"
