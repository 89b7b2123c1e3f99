"""The picture of a report: what is drawn is what the report says, and all of it can be read."""

import dataclasses
import html
import math

import pytest

from dipaco.config import MODULAR
from dipaco.evaluation.plots import MOST_DOMAINS, domain_table, draw_report, report_figure
from dipaco.evaluation.style import LOOKS
from dipaco.evaluation.tables import BaseModel, PathShare, Report, ReportRow
from tests.support.pictures import assert_can_be_read, grid, overlapping, texts_of
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


def report_of(topology, results=RESULTS, domains=14):
    paths = topology.num_paths
    steps = dict.fromkeys(results, BASE_STEPS + STEPS)
    steps["dense_equal_tokens"] = BASE_STEPS + STEPS * paths
    return Report(
        rows=[row(name, result, steps[name]) for name, result in results.items()],
        name="run",
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
    return next(axes for axes in figure.axes if axes.get_title(loc="left").startswith("Learning"))


def drawn(figure):
    """The points of each curve, by its name without the value behind it."""
    return {
        line.get_label().rpartition("  ")[0]: list(zip(*line.get_data(), strict=True))
        for line in learning_of(figure).lines
    }


def legend_of(figure):
    return [text.get_text() for text in learning_of(figure).get_legend().get_texts()]


@pytest.mark.parametrize("experts", [(2, 2), (4, 4), (5, 8)])
def test_nothing_lies_over_anything_else_or_is_cut_off(experts):
    figure = report_figure(report_of(grid(*experts)))
    assert_can_be_read(figure)


def test_the_title_has_the_run_and_its_seed(figure):
    assert learning_of(figure).get_title(loc="left") == "Learning: run, seed 0"


def test_the_legend_has_the_results(figure):
    results = [f"{name}  {value:.1f}" for name, value in RESULTS.items()]
    assert sorted(legend_of(figure)) == sorted([*results, "base model  200.0"])


def test_many_rows_have_room_for_their_names():
    results = {f"modular_every_{number}": 100.0 + number / 1000 for number in range(60)}
    figure = report_figure(report_of(grid(2, 2), {"modular": 100.0, **results}))
    assert_can_be_read(figure)


def test_what_is_drawn_is_what_the_report_says(small, figure):
    lines = drawn(figure)
    for name, curve in small.curves.items():
        assert lines[name] == curve
    for each in small.rows:
        assert lines[each.name][-1] == (each.steps, each.perplexity)
    assert lines["base model"] == [(BASE_STEPS, 200.0)]


def test_no_base_model_is_drawn_where_there_is_none(small):
    without = Report(rows=small.rows, curves=small.curves)
    assert "base model" not in drawn(report_figure(without))


def test_a_curve_that_is_many_times_as_long_leaves_room_for_the_others(figure):
    axes = learning_of(report_figure(report_of(grid(8, 8))))
    first, second, last = (
        axes.transData.transform((BASE_STEPS + STEPS * times, 100.0))[0] for times in (0, 1, 64)
    )
    assert second - first > 0.1 * (last - first)
    assert axes.get_xscale() == "log"
    assert learning_of(figure).get_xscale() == "linear"


def test_names_of_domains_are_drawn_as_they_are(tmp_path):
    """Two dollars would begin a formula, and `_` a formula's index; each name is text."""
    names = ["price_$5_to_$10", r"$\\frac{$", r"C:\\$a^$", "$x$", "\\\\$"]
    shards = [PathShare(path=0, documents=5, domains=dict.fromkeys(names, 1), modules=[])]
    report = dataclasses.replace(report_of(grid(1)), shards=shards)
    draw_report(report, tmp_path / "report.svg")
    drawn = {text.get_text() for text in texts_of(report_figure(report))}
    assert {f"{name}  1" for name in names} <= drawn
    content = (tmp_path / "report.svg").read_text()
    assert all(f"<!-- {html.escape(name, quote=False)}  1 -->" in content for name in names)


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("letters", ["x" * 300, "W" * 300, "家" * 300, "a b" * 100])
def test_long_names_leave_room_for_the_picture(letters):
    shards = [
        PathShare(path=path, documents=9, domains={f"{letters}{n}": 1 for n in range(9)})
        for path in range(4)
    ]
    figure = report_figure(dataclasses.replace(report_of(grid(2, 2)), shards=shards))
    assert_can_be_read(figure)
    heat = next(axes for axes in figure.axes if axes.images)
    assert heat.get_position().width > 0.15
    assert len({label.get_text() for label in heat.get_yticklabels()}) == 9


def test_rows_without_a_value_are_named_and_have_no_point():
    results = {"dense": math.nan, "modular": 25.0, "modular_best_path": math.inf}
    report = report_of(grid(2, 2), results)
    figure = report_figure(report)
    assert {"dense  nan", "modular_best_path  inf", "modular  25.0"} <= set(legend_of(figure))
    assert drawn(figure)["dense"] == report.curves["dense"][:2]
    assert drawn(figure)["modular_best_path"] == []
    assert_can_be_read(figure)


def test_curves_have_the_colours_of_their_arms(figure):
    for line in learning_of(figure).lines:
        name = line.get_label().rpartition("  ")[0]
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


def shares(topology, domains):
    """Each path has documents of all domains, and of one more than of the others."""
    return [
        PathShare(
            path=path,
            documents=domains + 9,
            domains={f"domain_{k}": 1 + 9 * (k == path % domains) for k in range(domains)},
            modules=[str(module) for module in topology.modules_of(path)],
        )
        for path in range(topology.num_paths)
    ]


@pytest.mark.parametrize(
    ("experts", "domains"), [((2, 2), 256), ((256,), 40), ((3, 3, 4), 14), ((16, 16), 256)]
)
def test_many_paths_and_domains_can_be_read_on_a_page(experts, domains):
    report = report_of(grid(*experts))
    report.shards[:] = shares(grid(*experts), domains)
    figure = report_figure(report)
    assert figure.get_size_inches()[1] < 12
    assert_can_be_read(figure)


def test_cells_have_the_share_of_the_domain_that_each_path_got(small, figure):
    axes = next(axes for axes in figure.axes if axes.images)
    names, counts = domain_table(small.shards)
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    written = {text.get_position(): text.get_text() for text in axes.texts}
    for row, of_domain in enumerate(counts):
        for path, count in enumerate(of_domain):
            if count:
                assert written[path, row] == f"{round(100 * count / of_domain.sum())}"


def test_the_smaller_of_many_domains_share_the_last_row_and_no_document_is_lost():
    topology = grid(2, 2)
    few, many = shares(topology, MOST_DOMAINS), shares(topology, MOST_DOMAINS + 1)
    assert len(domain_table(few)[0]) == len(domain_table(many)[0]) == MOST_DOMAINS
    assert "more" not in domain_table(few)[0][-1]
    names, counts = domain_table(many)
    assert names[-1] == f"2 more domains  {counts[-1].sum()}"
    for path, shard in enumerate(many):
        assert counts[:, path].sum() == sum(shard.domains.values())
    largest = {f"domain_{k}  13" for k in range(4)}  # 4 paths have 10 of one of them, and 1 else
    assert largest <= set(names[:-1])
