"""The picture of a report: what is drawn is what the report says, and all of it can be read."""

import itertools
import math

import pytest

from dipaco.config import MODULAR
from dipaco.evaluation.direct_labels import TEXT
from dipaco.evaluation.plots import draw_report, report_figure
from dipaco.evaluation.style import LOOKS
from dipaco.evaluation.tables import BaseModel, PathShare, Report, ReportRow
from dipaco.topology import PER_PATH, Level, Topology
from tests.support.pictures import boxes_of, cut_off, overlapping
from tests.support.report_costs import COSTS

BASE_STEPS, STEPS = 150, 100
RESULTS = {
    "dense": 142.9,
    "data_parallel": 90.9,
    "dense_equal_tokens": 74.1,
    "modular": 101.3,
    "modular_by_features": 105.9,
    "modular_ensemble_2": 100.7,
    "modular_ensemble": 100.7,
    "modular_best_path": 100.3,
}
ARMS = ("modular", "dense", "data_parallel", "dense_equal_tokens")


def row(name, perplexity, steps=BASE_STEPS + STEPS):
    return ReportRow(
        name=name,
        variant=name.removeprefix("modular").removeprefix("_") if name not in ARMS else "",
        seed=0,
        perplexity=perplexity,
        steps=steps,
        **COSTS,
    )


def grid(*experts):
    """Levels with so many experts, and one with a module for each path."""
    levels = [
        Level(name=f"level_{number}", parts=(f"part_{number}",), experts=count)
        for number, count in enumerate(experts)
    ]
    return Topology(levels=(*levels, Level(name="own", parts=("own",), experts=PER_PATH)))


def report_of(topology, results=RESULTS, domains=14):
    paths = topology.num_paths
    steps = dict.fromkeys(results, BASE_STEPS + STEPS)
    steps["dense_equal_tokens"] = BASE_STEPS + STEPS * paths
    return Report(
        rows=[row(name, result, steps[name]) for name, result in results.items()],
        base=BaseModel(steps=BASE_STEPS, perplexity=200.0),
        shards=[
            PathShare(
                path=path,
                documents=(path + 1) * 1000,
                domains={f"domain_{k}": 1 for k in range(domains) if k % paths <= path},
                modules=[str(module) for module in topology.modules_of(path)],
            )
            for path in range(paths)
        ],
        curves={
            arm: [(BASE_STEPS, 200.0), (BASE_STEPS + 50, 150.0), (steps[arm], results[arm])]
            for arm in ARMS
            if arm in results
        },
    )


@pytest.fixture(scope="module")
def small():
    return report_of(grid(2, 2))


@pytest.fixture(scope="module")
def figure(small):
    return report_figure(small)


def learning_of(figure):
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == "Learning")


def names_beside(figure):
    """The labels beside the curves, from top to bottom."""
    labels = [text for text in learning_of(figure).texts if text.get_position()[0] == TEXT]
    return [text.get_text() for text in sorted(labels, key=lambda t: -t.get_position()[1])]


def drawn(figure):
    """Label -> the points of a curve, of all that stands for something."""
    lines = [line for line in learning_of(figure).lines if not line.get_label().startswith("_")]
    return {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in lines}


@pytest.mark.parametrize("experts", [(2, 2), (4, 4), (5, 8)])
def test_nothing_lies_over_anything_else_or_is_cut_off(experts):
    figure = report_figure(report_of(grid(*experts)))
    assert overlapping(figure) == []
    assert cut_off(figure) == []


def test_curves_are_named_beside_their_ends_in_the_order_of_the_results(figure):
    ranked = sorted(RESULTS.items(), key=lambda item: (-item[1], -list(RESULTS).index(item[0])))
    assert sorted(names_beside(figure)) == sorted(f"{n}  {value:.1f}" for n, value in ranked)
    values = [float(name.split()[-1]) for name in names_beside(figure)]
    assert values == sorted(values, reverse=True)
    assert learning_of(figure).get_legend() is None


def test_many_rows_have_room_for_their_names():
    results = {f"modular_every_{number}": 100.0 + number / 1000 for number in range(60)}
    figure = report_figure(report_of(grid(2, 2), {"modular": 100.0, **results}))
    assert overlapping(figure) == []
    assert cut_off(figure) == []


def test_what_is_drawn_is_what_the_report_says(small, figure):
    lines = drawn(figure)
    for name, curve in small.curves.items():
        assert lines[name] == curve
    for each in small.rows:
        assert lines[f"{each.name}: its end"] == [(each.steps, each.perplexity)]
    assert lines["base model"] == [(BASE_STEPS, 200.0)]


def test_no_base_model_is_drawn_where_there_is_none(small):
    without = Report(rows=small.rows, curves=small.curves)
    assert "base model" not in drawn(report_figure(without))


def test_a_curve_that_is_sixteen_times_as_long_leaves_room_for_the_others(figure):
    axes = learning_of(report_figure(report_of(grid(4, 4))))
    first, second, last = (
        axes.transData.transform((BASE_STEPS + STEPS * times, 100.0))[0] for times in (0, 1, 16)
    )
    assert second - first > 0.5 * (last - first)
    assert "log scale right of the dotted line" in axes.get_xlabel()
    assert axes.get_xscale() == "symlog"
    assert learning_of(figure).get_xscale() == "linear"


@pytest.mark.parametrize("experts", [(2, 2), (4, 4)])
def test_each_path_stands_above_its_modules(experts):
    topology = grid(*experts)
    figure = report_figure(report_of(topology))
    boxes = {}
    for text, box in boxes_of(figure).items():
        if text.axes is not None and text.axes.get_yticklabels() and text in text.axes.texts:
            boxes.setdefault(text.axes, []).append((text, box))
    strip = next(axes for axes in boxes if axes.get_yticklabels()[0].get_text() == "path")
    rows = [label.get_text() for label in strip.get_yticklabels()]
    assert rows == ["path", "documents", *(f"level_{k}" for k in range(len(experts))), "own"]
    for path in range(topology.num_paths):
        for module in topology.modules_of(path):
            sharing = topology.paths_through(module)
            together = [
                list(run)
                for _, run in itertools.groupby(
                    range(topology.num_paths), key=lambda p: p in sharing
                )
            ]
            columns = next(run for run in together if path in run)
            middle = (columns[0] + columns[-1]) / 2
            (text,) = (
                text.get_text()
                for text, _ in boxes[strip]
                if text.get_position() == (middle, rows.index(module.level))
            )
            assert text in (str(module), f"{module.expert:04d}", str(module.expert))


def test_rows_without_a_value_are_named_above_the_others_and_point_nowhere():
    results = {"dense": math.nan, "modular": 25.0, "modular_best_path": math.inf}
    report = report_of(grid(2, 2), results)
    figure = report_figure(report)
    names = names_beside(figure)
    assert set(names[:2]) == {"dense  nan", "modular_best_path  inf"}
    assert names[2] == "modular  25.0"
    assert drawn(figure)["dense"] == report.curves["dense"][:2]
    assert overlapping(figure) == []
    assert cut_off(figure) == []


def test_curves_have_the_colours_of_their_arms(figure):
    for line in learning_of(figure).lines:
        name = line.get_label().removesuffix(": its end")
        if name in RESULTS:
            assert line.get_color() == LOOKS[name if name in ARMS else MODULAR].colour


@pytest.mark.parametrize("paths", [1, 256])
def test_a_report_is_drawn_into_a_file_for_few_and_for_many_paths(tmp_path, paths):
    draw_report(report_of(grid(paths)), tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_reports_with_little_in_them_are_drawn_too():
    for report in (
        Report(rows=[]),
        Report(rows=[row("modular", 25.0)]),
        Report(
            rows=[row("modular", 25.0, 0)],
            curves={"modular": [(0, 25.0)]},
            shards=[PathShare(path=0, documents=0, domains={})],
        ),
    ):
        assert overlapping(report_figure(report)) == []
