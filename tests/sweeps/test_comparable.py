"""Which rows of a table are compared: those scored on the same documents, and under which seeds."""

import pytest

from dipaco.overrides import override
from dipaco.sweeps.measured import Origin
from dipaco.sweeps.text import ordering_lines, render_sweep_markdown, render_sweep_text
from tests.sweeps.test_table import PATHS, PERPLEXITY, ROWS, table_of

APART = "On other text than the first row, or scored on other documents of it"
OLD, NEW = "0.3.0+aaaa (commit 1)", "0.3.0+bbbb (commit 2)"


def pairs_of(table):
    return {frozenset((each.better, each.worse)) for each in table.orderings}


def beside(table, start):
    """The notes that begin so, without their beginning."""
    return [note.removeprefix(start) for note in table.notes if note.startswith(start)]


@pytest.fixture(autouse=True)
def _more_rows(monkeypatch):
    for name in ("flat_best", "again", "more"):
        monkeypatch.setitem(PERPLEXITY, name, PERPLEXITY["flat"])
        monkeypatch.setitem(PATHS, name, 4)


@pytest.mark.parametrize(
    "setting", ["evaluation.max_documents=2", "data.length=48", "data.sources=toy:?seed=9"]
)
def test_rows_on_other_text_or_scored_on_other_documents_are_not_compared(setting):
    table = table_of(rows=ROWS | {"flat": override(ROWS["flat"], [setting])})
    assert table.apart == ["flat", "flat_every_16", "flat_best_path"]
    assert not any("flat" in pair for pair in pairs_of(table))
    assert {row.name: row.spread for row in table.rows}["flat"] is None
    assert beside(table, APART)[0].endswith("not compared with it: flat.")
    assert "| flat | 3 | 79.07 |  | 1.500 |" in render_sweep_markdown(table)


@pytest.mark.parametrize(("most", "apart"), [(99, True), (100, False), (101, False)])
def test_a_bound_that_no_test_split_reaches_sets_no_row_apart(most, apart):
    rows = ROWS | {"flat": override(ROWS["flat"], [f"evaluation.max_documents={most}"])}
    table = table_of(rows=rows, origin=lambda row, seed: Origin("text", "", 100))
    assert ("flat" in table.apart) is apart


def test_a_row_that_shares_no_comparable_seed_is_apart_and_said_to_be():
    """`diloco` has seed 0 alone, on the text that the first row has under seed 1."""

    def origin(row, seed):
        return Origin("old" if (row, seed) == ("dense", 0) else "new")

    rows = {name: ROWS[name] for name in ("dense", "diloco")}
    table = table_of(seeds=(0, 1), rows=rows, leave_out=("diloco, seed 1",), origin=origin)
    assert "diloco" in table.apart
    assert beside(table, APART)[0].endswith("not compared with it: diloco.")


def test_a_row_without_a_seed_of_the_first_row_is_not_said_to_be_on_other_text():
    rows = {name: ROWS[name] for name in ("dense", "diloco")}
    left_out = ("diloco, seed 0", "dense, seed 1")
    table = table_of(seeds=(0, 1), rows=rows, leave_out=left_out)
    assert not table.apart
    assert not beside(table, APART)


def test_rows_whose_text_was_read_in_another_way_are_compared():
    rows = ROWS | {"flat": override(ROWS["flat"], ["data.processes=2", "data.slices=3"])}
    table = table_of(rows=rows)
    assert not table.apart
    assert pairs_of(table) == pairs_of(table_of())


def test_seeds_whose_text_was_read_again_are_left_out_of_differences():
    def origin(row, seed):
        return Origin("new" if (row, seed) == ("flat", 1) else "old")

    table = table_of(origin=origin)
    assert not table.apart
    (ordering,) = [
        each for each in table.orderings if {each.better, each.worse} == {"diloco", "flat"}
    ]
    assert ordering.seeds == [0, 2]
    flat = next(row for row in table.rows if row.name == "flat")
    assert (flat.seeds, flat.spread) == ([0, 1, 2], None)
    assert flat.difference == pytest.approx((79 - 100 + 69.2 - 90) / 2)
    assert "| flat | 3 | 79.07 | -20.90 |" in render_sweep_markdown(table)


def test_seeds_that_all_rows_have_on_other_text_are_compared():
    assert table_of(origin=lambda row, seed: Origin(str(seed))).orderings == table_of().orderings


def test_results_of_several_programs_are_told_apart():
    def origin(row, seed):
        return Origin("text", NEW if row == "flat" or seed == 2 else OLD)

    start = "Of programs with other sources, which may give other results: "
    (note,) = beside(
        table_of(rows={name: ROWS[name] for name in ("dense", "flat")}, origin=origin), start
    )
    assert note == f"{OLD}: dense (seeds 0, 1); {NEW}: dense (seed 2), flat (seeds 0, 1, 2)."
    again = "0.4.0+aaaa (commit 9)"  # the same sources
    one = table_of(origin=lambda row, seed: Origin("text", again if seed else OLD))
    assert not beside(one, start)


def test_a_row_that_is_called_as_another_with_more_keeps_its_own_and_the_other_its_own():
    """`flat_best_path` is of `flat`, though the sweep has a row `flat_best`."""
    short = override(ROWS["flat"], ["data.length=48"])
    table = table_of(rows=ROWS | {"flat_best": short})
    assert table.apart == ["flat_best", "flat_best_every_16", "flat_best_best_path"]
    levels = {row.name: row.levels for row in table.rows}
    pair = table_of(rows={"flat": ROWS["flat"], "flat_best": ROWS["pair"]})
    assert {row.name: row.levels for row in pair.rows}["flat_best_path"] == levels["flat"]


@pytest.mark.parametrize("order", [("again", "more"), ("more", "again")])
def test_a_row_of_one_seed_does_not_hide_an_equal_one_of_three(order):
    rows = {"diloco": ROWS["diloco"], **dict.fromkeys(order, ROWS["flat"])}
    table = table_of(rows=rows, leave_out={"again, seed 1", "again, seed 2"})
    lines = ordering_lines(table)
    assert "resolved: more < diloco by 1.10 ± 0.43" in lines
    assert (
        lines[-1]
        == f"equal under seed 0, which both have on the same text: {order[0]} = {order[1]}"
    )
    assert not any("equal under every" in line or "by 0.00" in line for line in lines)
    assert any(note.startswith("Not all rows have the same seeds") for note in table.notes)
    assert render_sweep_text(table)


def test_rows_that_are_equal_to_a_third_one_under_one_seed_are_not_equal(monkeypatch):
    monkeypatch.setitem(PERPLEXITY, "more", (79.0, 60.0, 50.0))
    rows = {"again": ROWS["flat"], "flat": ROWS["flat"], "more": ROWS["flat"]}
    table = table_of(rows=rows, leave_out={"again, seed 1", "again, seed 2"})
    assert any(line.startswith("not resolved: more below flat") for line in ordering_lines(table))
