"""The picture of a sweep: rows by rank, differences with their intervals, costs, all readable."""

import dataclasses
import math

import numpy as np
import pytest

from dipaco.evaluation.style import look_of
from dipaco.evaluation.tables import num_bytes, quantity
from dipaco.sweeps.pairing import paired_difference
from dipaco.sweeps.plot import NO_BREAK, draw_sweep, sweep_figure
from dipaco.sweeps.table import SweepRow, SweepTable, by_seed
from tests.support.pictures import assert_can_be_read, boxes_of, overlapping
from tests.support.report_costs import COSTS

SEEDS = (0, 1, 2)
NAMES = ["dense", "DiLoCo 4", "2x2", "2x2 private", "flat 4", "2x2/dense_equal_tokens"]
KINDS = {"dense": "dense", "DiLoCo 4": "DiLoCo", "2x2/dense_equal_tokens": "dense_equal_tokens"}


def sweep_row(name, perplexities, seeds, tokens=512_000, num_bytes=0):
    return SweepRow(
        name=name,
        variant=name.partition("0.012_")[2],
        seed=seeds[0],
        perplexity=sum(perplexities) / len(perplexities),
        steps=1,
        **COSTS | {"tokens": tokens, "bytes_per_machine": num_bytes, "link_seconds": {}},
        sweep="toy",
        levels=[],
        seeds=list(seeds),
        spread=None,
        held_equal=[],
        perplexities=list(perplexities),
        kind=KINDS.get(name, "modular"),
    )


def table_of(names=NAMES, seeds=SEEDS, sweep="toy", noise=1.0):
    random = np.random.default_rng(0)
    shared = random.normal(0, 2, len(seeds))
    rows = [
        sweep_row(
            name,
            (random.uniform(40, 90) + shared + random.normal(0, noise, len(seeds))).tolist(),
            seeds,
            tokens=int(random.integers(1, 4)) * 512_000,
            num_bytes=int(random.integers(0, 10**9)),
        )
        for name in names
    ]
    return compared(
        sweep=sweep,
        reference=names[0] if names else "",
        rows=rows,
        orderings=[],
        runs=[],
        missing=[],
        apart=[],
        notes=[],
    )


def compared(*, rows, **fields):
    """A table whose rows are compared with the first."""
    to_first = [paired_difference(by_seed(rows[0]), by_seed(row)) for row in rows]
    rows = [
        dataclasses.replace(row, difference=to.mean, spread=to.half_width)
        if row is not rows[0] and math.isfinite(to.mean)
        else dataclasses.replace(row, difference=None)
        for row, to in zip(rows, to_first, strict=True)
    ]
    return SweepTable(rows=rows, **fields)


def with_row(table, name, **changes):
    rows = [dataclasses.replace(row, **changes) if row.name == name else row for row in table.rows]
    return compared(**vars(table) | {"rows": rows})


def row_names(figure):
    """From top to bottom, without the means beside them."""
    axes = figure.axes[0]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    return [
        label.get_text().replace("\n", " ").rpartition(NO_BREAK * 2)[0]
        for label in axes.get_yticklabels()
    ]


def by_label(axes, label):
    return [line for line in axes.lines if line.get_label() == label]


LONG = "2x2 with private parts and with what was changed in this row, at rate 0.00{} and phases 10"


@pytest.mark.parametrize(
    "names",
    [
        NAMES,
        ["dense", *(f"2x2 holders rate 0.00{n} phases 10" for n in range(39))],
        [LONG.format(n) for n in range(6)],
        ["2x2" + "_of_a_name_without_a_space" * 4, "dense"],
    ],
    ids=["six", "forty", "long", "unbroken"],
)
def test_nothing_lies_over_anything_else_or_is_cut_off(names):
    figure = sweep_figure(table_of(names))
    assert_can_be_read(figure)


def test_rows_are_ranked_and_marked_at_their_mean():
    table = table_of()
    figure = sweep_figure(table)
    ranked = sorted(table.rows, key=lambda row: row.perplexity)
    assert row_names(figure) == [row.name for row in ranked]
    axes = figure.axes[0]
    for row, place in zip(ranked, axes.get_yticks(), strict=True):
        (mark,) = by_label(axes, row.name)
        assert mark.get_data() == ([row.perplexity], [place])
        assert mark.get_color() == look_of(row.kind).colour
    assert [text.get_fontweight() for text in axes.get_yticklabels()].count("bold") == 1


def test_the_same_modules_routed_otherwise_have_the_colour_and_another_mark():
    names = ["dense", "2x2 rate 0.012", "2x2 rate 0.012_by_likelihood", "2x2 rate 0.012_ensemble"]
    axes = sweep_figure(table_of(names)).axes[0]
    marks = [by_label(axes, name)[0] for name in names[1:]]
    assert {mark.get_color() for mark in marks} == {look_of("modular").colour}
    assert len({mark.get_marker() for mark in marks}) == 3


def test_the_dots_of_a_seed_are_linked_from_row_to_row():
    table = with_row(table_of(), "flat 4", seeds=[0, 2], perplexities=[50.0, 52.0], perplexity=51.0)
    figure = sweep_figure(table)
    axes, rows = figure.axes[0], {row.name: row for row in table.rows}
    ranked = [rows[name] for name in row_names(figure)]
    for seed in SEEDS:
        (line,) = by_label(axes, f"seed {seed}")
        own = [dict(zip(r.seeds, r.perplexities, strict=True)).get(seed, math.nan) for r in ranked]
        np.testing.assert_array_equal(line.get_xdata(), own)


def test_differences_are_paired_by_seed_and_have_their_intervals():
    table = table_of()
    figure = sweep_figure(table)
    axes = figure.axes[1]
    assert axes.get_title(loc="left").startswith("To dense\n")
    first, *others = table.rows
    assert by_label(axes, "dense") == []
    bars = {line.get_ydata()[0]: line.get_xdata() for line in by_label(axes, "interval")}
    for row in others:
        expected = paired_difference(
            dict(zip(SEEDS, first.perplexities, strict=True)),
            dict(zip(SEEDS, row.perplexities, strict=True)),
        )
        (mark,) = by_label(axes, row.name)
        ((mean,), (place,)) = mark.get_data()
        assert mean == pytest.approx(expected.mean)
        ends = [expected.mean - expected.half_width, expected.mean + expected.half_width]
        assert list(bars[place]) == pytest.approx(ends)
        assert (mark.get_markerfacecolor() == "white") != expected.is_resolved


def test_costs_stand_beside_each_row():
    table = table_of()
    *_, tokens, sent = sweep_figure(table).axes
    ranked = sorted(table.rows, key=lambda row: row.perplexity)
    for axes, cost, show in ((tokens, "tokens", quantity), (sent, "bytes_per_machine", num_bytes)):
        values = [getattr(row, cost) for row in ranked]
        assert [bar.get_width() for bar in axes.patches] == values
        written = [text.get_text() for text in axes.texts if text.get_text()]
        assert written == [show(value) for value in values]


def test_the_title_says_what_is_in_it_and_nothing_twice():
    (title,) = [text.get_text() for text in sweep_figure(table_of(sweep="sweep")).texts]
    assert title == "sweep: 6 rows, 3 seeds"
    one = sweep_figure(table_of(["dense"], (0,)))
    assert one.texts[0].get_text() == "toy: 1 row, 1 seed"
    assert "nothing to compare" in [text.get_text() for text in one.axes[1].texts]


def test_rows_that_diverged_come_last_and_are_not_compared():
    table = with_row(table_of(), "2x2", perplexities=[41.0, math.nan, 40.0], perplexity=math.nan)
    figure = sweep_figure(table)
    assert row_names(figure)[-1] == "2x2"
    value, difference, *_ = figure.axes
    assert by_label(value, "2x2") == by_label(difference, "2x2") == []
    assert overlapping(figure) == []
    assert f"2x2{NO_BREAK * 2}nan" in [text.get_text() for text in boxes_of(figure)]


def test_rows_of_other_seeds_say_how_many_they_have():
    table = table_of(["dense", "2x2", "flat 4"])
    table = with_row(table, "dense", perplexities=[60.0, 55.0, 53.0], perplexity=56.0)
    table = with_row(table, "2x2", perplexities=[53.2, 51.0, 50.3], perplexity=51.5)
    table = with_row(table, "flat 4", perplexities=[52.9], perplexity=52.9, seeds=[0])
    figure = sweep_figure(table)
    assert row_names(figure) == ["2x2", "flat 4", "dense"]
    texts = [text.get_text() for text in boxes_of(figure)]
    assert f"flat 4{NO_BREAK * 2}52.90{NO_BREAK}(1{NO_BREAK}seed)" in texts
    assert f"2x2{NO_BREAK * 2}51.50{NO_BREAK}(3{NO_BREAK}seeds)" in texts
    assert any("not the same of all rows" in text for text in texts)
    assert_can_be_read(figure)


def test_rows_on_other_text_are_ranked_and_not_compared():
    table = dataclasses.replace(with_row(table_of(), "flat 4"), apart=["flat 4"])
    rows = [
        dataclasses.replace(row, difference=None) if row.name in table.apart else row
        for row in table.rows
    ]
    figure = sweep_figure(dataclasses.replace(table, rows=rows))
    assert row_names(figure)[-1] == "flat 4  (not compared)"
    assert by_label(figure.axes[1], "flat 4") == []


def test_wide_intervals_leave_room_for_the_means():
    """Differences of 10, -10 and 3: a mean of 1, and 25 to either side."""
    table = with_row(table_of(["dense", "2x2"]), "dense", perplexities=[50.0, 60.0, 70.0])
    table = with_row(table, "2x2", perplexities=[60.0, 50.0, 73.0])
    axes = sweep_figure(table).axes[1]
    assert axes.get_xlim() == (-4.0, 4.0)
    assert "cut at the edge" in axes.get_title(loc="left")


def test_two_seeds_have_no_interval_and_the_picture_says_so():
    axes = sweep_figure(table_of(seeds=(0, 1))).axes[1]
    assert by_label(axes, "interval") == []
    assert "an interval wants 3 seeds" in axes.get_title(loc="left")


@pytest.mark.parametrize("names", [[], ["dense"]])
def test_a_table_with_little_in_it_is_drawn_too(names, tmp_path):
    draw_sweep(table_of(names, (0,)), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
