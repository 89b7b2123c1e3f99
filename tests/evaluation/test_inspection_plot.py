"""The picture of an inspection: bars and lines as it says, and each in the legend."""

import numpy as np
import pytest

from dipaco.evaluation.plots import (
    MOST_NAMED_MODULES,
    MOVES,
    draw_inspection,
    inspection_figure,
)
from tests.support.pictures import assert_can_be_read, cut_off, grid

PHASES = 4


def inspection(topology, num_routings=1, capacity=1.25, floor=0.5):
    random = np.random.default_rng(0)
    paths = range(topology.num_paths)
    routings = random.integers(500, 2000, (num_routings, len(paths))).tolist()
    mean = sum(routings[-1]) / len(paths)

    def step(module, phase):
        has_pairs = topology.fan_in(module) > 1
        return {
            "phase": phase,
            "norm": float(random.random()),
            "cosine": float(random.uniform(-1, 1)) if has_pairs else None,
        }

    return {
        "paths": [
            {
                "path": path,
                "documents": routings[-1][path],
                "domains": {"text": routings[-1][path]},
                "modules": [str(module) for module in topology.modules_of(path)],
            }
            for path in paths
        ],
        "bounds": {
            "mean": mean,
            "capacity": capacity and capacity * mean,
            "floor": floor and floor * mean,
        },
        "routings": [
            {"phase": 2 * number, "documents": documents}
            for number, documents in enumerate(routings)
        ],
        "modules": {
            str(module): {"steps": [step(module, phase + 1) for phase in range(PHASES)]}
            for module in topology.modules
        },
    }


def panel(figure, title):
    return next(axes for axes in figure.axes if axes.get_title(loc="left").startswith(title))


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def lines_of(axes):
    """Label -> points, of lines that stand for something."""
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    return {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in lines}


@pytest.mark.parametrize("num_routings", [1, 3])
@pytest.mark.parametrize("experts", [(1,), (4, 4)])
def test_nothing_lies_over_anything_else_or_is_cut_off(experts, num_routings):
    figure = inspection_figure(inspection(grid(*experts), num_routings))
    assert_can_be_read(figure)


def test_bars_and_bounds_are_those_of_the_inspection():
    given = inspection(grid(2, 2), num_routings=2)
    axes = panel(inspection_figure(given), "Shards")
    for bars, routing in zip(axes.containers, given["routings"], strict=True):
        assert [bar.get_height() for bar in bars] == routing["documents"]
        assert bars.get_label() == f"routed at phase {routing['phase']}"
    lines = lines_of(axes)
    for name, value in given["bounds"].items():
        assert [height for _, height in lines[f"{name}  {value:,.0f}"]] == [value, value]
        assert f"{name}  {value:,.0f}" in legend_of(axes)
    assert {"routed at phase 0", "routed at phase 2"} <= set(legend_of(axes))


def test_what_bounds_nothing_has_no_line():
    axes = panel(inspection_figure(inspection(grid(2), capacity=None, floor=None)), "Shards")
    (name,) = lines_of(axes)
    assert name.startswith("mean  ")


def test_each_module_has_a_line_and_is_in_the_legend():
    given = inspection(grid(2, 3, has_own=False))
    figure = inspection_figure(given)
    for what, (title, _) in MOVES.items():
        axes = panel(figure, title)
        lines = lines_of(axes)
        for name, module in given["modules"].items():
            values = [(s["phase"], s[what]) for s in module["steps"] if s[what] is not None]
            assert lines[name] == values
        looks = [(line.get_color(), line.get_marker()) for line in axes.lines[: len(lines)]]
        assert len(set(looks)) == len(lines)
    assert legend_of(panel(figure, "Norm")) == list(given["modules"])


def test_norm_and_cosines_say_what_they_mean():
    figure = inspection_figure(inspection(grid(2)))
    for title, says in (
        ("Norm", "mean outer gradient"),
        ("Cosine", "1 agree, 0 unrelated, -1 opposed"),
    ):
        assert says in panel(figure, title).get_title(loc="left")


def test_of_many_modules_levels_are_named():
    topology = grid(8, 8)
    assert len(topology.modules) > MOST_NAMED_MODULES
    figure = inspection_figure(inspection(topology))
    levels = [name.partition("\n")[0] for name in legend_of(panel(figure, "Norm"))]
    assert levels == ["level_0", "level_1", "own"]
    assert cut_off(figure) == []


@pytest.fixture(scope="module")
def large():
    given = inspection(grid(16, 16), num_routings=2)
    return given, inspection_figure(given)


def test_256_paths_can_be_read(large):
    _, figure = large
    assert_can_be_read(figure)


def test_many_modules_are_the_median_of_each_level_and_where_four_in_five_are(large):
    given, figure = large
    axes = panel(figure, "Norm")
    lines = {name.partition("\n")[0]: line for name, line in lines_of(axes).items()}
    for (level, line), band in zip(lines.items(), axes.collections, strict=True):
        own = [m["steps"] for name, m in given["modules"].items() if name.startswith(level)]
        norms = np.array([[step["norm"] for step in steps] for steps in own])
        np.testing.assert_allclose([value for _, value in line], np.median(norms, axis=0))
        heights = band.get_paths()[0].vertices[:, 1]
        assert heights.min() == pytest.approx(np.quantile(norms, 0.1, axis=0).min())
        assert heights.max() == pytest.approx(np.quantile(norms, 0.9, axis=0).max())


def test_phases_are_whole_numbers_where_there_is_a_single_one():
    given = inspection(grid(2))
    for module in given["modules"].values():
        module["steps"] = module["steps"][:1]
    ticks = panel(inspection_figure(given), "Norm").get_xticks()
    assert len(ticks)
    assert all(tick == round(tick) for tick in ticks)


def test_modules_of_one_path_have_no_cosine_and_the_picture_says_so(tmp_path):
    given = inspection(grid(2, has_own=False))
    texts = [t.get_text() for t in panel(inspection_figure(given), "Cosine").texts]
    assert "no module has two paths" in texts
    for module in given["modules"].values():
        module["steps"] = []
    texts = [t.get_text() for t in panel(inspection_figure(given), "Norm").texts]
    assert "no outer step so far" in texts
    draw_inspection(given, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
