"""The picture of an inspection: shard sizes, and how each module moved from phase to phase.

Many paths are a grid of cells, and of many modules each level is a band: what is drawn for 256
paths can be read as that for four.
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dipaco.evaluation.direct_labels import End, arrange, height_of, label_ends
from dipaco.evaluation.path_grid import draw_path_grid, path_grid
from dipaco.evaluation.path_strip import (
    MOST_PATHS,
    draw_strip,
    fit_strip,
    in_thousands,
    strip_height,
)
from dipaco.evaluation.style import COLOURS, DASHES, INK, MARKS, Look, styled, tidy
from dipaco.evaluation.tables import PathShare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dipaco.evaluation.direct_labels import Label

WIDTH = 14.0  # inches
MOST_NAMED_MODULES = 32  # names of more would be too small; then levels are named
MOST_MARKS = 40  # phases, beyond which a line has none
BAND = "line: median, band: 80 %"
MOVES = {  # of a step: its title, and what its values mean
    "norm": ("Norm", "how far a phase moved the module: the length of its mean outer gradient"),
    "cosine": (
        "Cosine",
        "between the outer gradients of two of its paths: 1 agree, 0 unrelated, -1 opposed",
    ),
    "lag_cosine": (
        "Lag",
        "cosine to its mean outer gradient of the phase before: 1 goes on, 0 unrelated, -1 back",
    ),
}
GREYS = ("#BBBBBB", "#777777", "#444444")  # of routings, one after another
BOUNDS = {"capacity": "--", "mean": "-", "floor": "-."}


def draw_inspection(inspection: dict[str, Any], file: Path | str) -> None:
    """Writes the picture; the file's ending chooses the format.

    Args:
      inspection: as `dipaco inspect --json` prints it.
      file: the picture.
    """
    inspection_figure(inspection).savefig(file)


def inspection_figure(inspection: dict[str, Any]) -> "Figure":
    """The picture, before it is written."""
    paths, modules = _shares(inspection), inspection["modules"]
    has_strip = len(paths) <= MOST_PATHS
    under = strip_height(paths) if has_strip else 0.0
    height = max(3.0, height_of(min(len(modules), MOST_NAMED_MODULES)) + 0.2)
    with styled(WIDTH, 2 * height + under + 1.6) as figure:
        above, below = figure.subfigures(
            2, 1, squeeze=False, height_ratios=(height + under + 0.8, height + 0.8), hspace=0.03
        )[:, 0]
        left, right = above.subfigures(1, 2, squeeze=False, wspace=0.03)[0]
        strip = None
        if has_strip:
            sizes, bottom = left.subplots(2, 1, height_ratios=(height, under))
            strip = draw_strip(bottom, paths)
        else:
            sizes = left.subplots()
        panels = [right.subplots(), *below.subplots(1, 2)]
        columns: list[tuple[Axes, list[Label]]] = []
        if has_strip:
            columns.append((sizes, _draw_sizes(sizes, inspection)))
        else:
            _draw_size_grid(sizes, inspection, paths, (0.36 * WIDTH, height))
        for axes, what in zip(panels, MOVES, strict=True):
            columns.append((axes, _draw_moves(axes, modules, what)))
        arrange(figure, columns)
        if strip is not None:
            fit_strip(strip)
    return figure


def _shares(inspection: Mapping[str, Any]) -> list[PathShare]:
    return [
        PathShare(
            path=path["path"],
            documents=path["documents"],
            domains=path["domains"],
            modules=path["modules"],
        )
        for path in inspection["paths"]
    ]


def _draw_size_grid(
    axes: "Axes",
    inspection: Mapping[str, Any],
    paths: Sequence[PathShare],
    size: tuple[float, float],
) -> None:
    """The newest shards of many paths: a cell each, and in the scale the mean and the bounds."""
    newest = inspection["routings"][-1]
    documents = {path.path: float(path.documents) for path in paths}
    bounds = {name: value for name, value in inspection["bounds"].items() if value is not None}
    shown = [*documents.values(), *bounds.values()]
    texts = {path: (in_thousands(round(value)),) for path, value in documents.items()}
    grid = path_grid(paths)
    image = draw_path_grid(axes, grid, documents, texts, size, 0.0, 1.02 * max(shown) or 1.0)
    tidy(axes, "Shards", f"documents that train each path, routed at phase {newest['phase']}", "x")
    axes.grid(visible=False, which="major")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, fraction=0.06)
    bar.set_ticks(list(bounds.values()), labels=[f"{n}  {v:,.0f}" for n, v in bounds.items()])
    for value in bounds.values():
        bar.ax.axhline(value, color=INK, linewidth=1)
    bar.outline.set_visible(False)


def _draw_sizes(axes: "Axes", inspection: Mapping[str, Any]) -> "list[Label]":
    """A group of bars for each path, with a bar for each routing of the documents, and lines where
    the mean and the bounds are.
    """
    from matplotlib.ticker import FuncFormatter

    routings = inspection["routings"]
    num_paths = len(inspection["paths"])
    width, ends = 0.8 / len(routings), []
    for number, routing in enumerate(routings):
        look = Look(GREYS[number % len(GREYS)], mark="s")
        places = [path - 0.4 + width * (number + 0.5) for path in range(num_paths)]
        name = f"routed at phase {routing['phase']}"
        axes.bar(places, routing["documents"], width, color=look.colour, label=name)
        if len(routings) > 1:
            end = (places[-1], float(routing["documents"][-1]))
            ends.append(End(name, end, look, has_line=False))
    for name, value in inspection["bounds"].items():
        if value is not None:
            look = Look(INK, BOUNDS[name], "")
            axes.axhline(value, color=INK, linewidth=1, linestyle=BOUNDS[name], label=name)
            ends.append(End(f"{name}  {value:,.0f}", (num_paths - 0.5, value), look))
    axes.set(xlim=(-0.5, num_paths - 0.5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    tidy(axes, "Shards", "documents that train each path; lines: the mean, and its bounds", "y")
    axes.set_xticks([])
    return label_ends(axes, ends)


def _draw_moves(axes: "Axes", modules: Mapping[str, Any], what: str) -> "list[Label]":
    """A line for each module, over phases: its colour says the level, its mark the module. Of many
    modules a band for each level.
    """
    from matplotlib.ticker import MaxNLocator

    title, explained = MOVES[what]
    lasts: dict[str, tuple[int, float]] = {}
    is_dense = len(modules) > MOST_NAMED_MODULES
    curves: dict[str, list[tuple[int, float]]] = {}
    for name, look in _looks(modules):
        points = [
            (step["phase"], step[what])
            for step in modules[name]["steps"]
            if step[what] is not None and math.isfinite(step[what])
        ]
        if points:
            lasts[name] = points[-1]
            curves[name] = points
            if not is_dense:
                axes.plot(
                    *zip(*points, strict=True),
                    color=look.colour,
                    linestyle=look.dashes,
                    linewidth=1.5,
                    marker=look.mark,
                    markersize=4,
                    label=name,
                )
    if is_dense:
        _draw_bands(axes, curves, dict(_looks(modules)))
        explained += f"; {BAND}"
    tidy(axes, title, explained)
    if not lasts:
        axes.text(0.5, 0.5, _nothing(modules, what), ha="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return []
    if what != "norm":
        axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("phase")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    looks = dict(_looks(modules))
    if is_dense:
        return label_ends(axes, list(_level_ends(lasts, looks)))
    return label_ends(axes, [End(name, last, looks[name]) for name, last in lasts.items()])


def _draw_bands(
    axes: "Axes", curves: Mapping[str, list[tuple[int, float]]], looks: Mapping[str, Look]
) -> None:
    """The middle of each level's modules, and where four in five of them are, phase by phase."""
    for level, names in itertools.groupby(curves, key=lambda name: name.partition("/")[0]):
        own = list(names)
        by_phase: dict[int, list[float]] = {}
        for name in own:
            for phase, value in curves[name]:
                by_phase.setdefault(phase, []).append(value)
        phases = sorted(by_phase)
        low, middle, high = np.array(
            [np.quantile(by_phase[phase], (0.1, 0.5, 0.9)) for phase in phases]
        ).T
        colour = looks[own[0]].colour
        axes.fill_between(phases, low, high, color=colour, alpha=0.15, linewidth=0)
        mark = looks[own[0]].mark if len(phases) <= MOST_MARKS else ""
        axes.plot(phases, middle, color=colour, linewidth=1.8, marker=mark, label=level)


def _nothing(modules: Mapping[str, Any], what: str) -> str:
    if not any(module["steps"] for module in modules.values()):
        return "no outer step so far"
    if what == "cosine":
        return "no module has two paths"
    return "needs two phases" if what == "lag_cosine" else "nothing was recorded"


def _looks(modules: Mapping[str, Any]) -> Iterator[tuple[str, Look]]:
    levels = list(dict.fromkeys(name.partition("/")[0] for name in modules))
    for level, names in itertools.groupby(modules, key=lambda name: name.partition("/")[0]):
        colour = COLOURS[levels.index(level) % len(COLOURS)]
        for number, name in enumerate(names):
            yield name, Look(colour, DASHES[number % len(DASHES)], MARKS[number % len(MARKS)])


def _level_ends(lasts: Mapping[str, tuple[int, float]], looks: Mapping[str, Look]) -> Iterator[End]:
    """One name for all modules of a level, in the middle of where they end."""
    for level, names in itertools.groupby(lasts, key=lambda name: name.partition("/")[0]):
        own = list(names)
        middle = statistics.median(lasts[name][1] for name in own)
        phase = max(lasts[name][0] for name in own)
        count = f"{len(own)} modules" if len(own) > 1 else "1 module"
        yield End(f"{level}  ({count})", (phase, middle), Look(looks[own[0]].colour, mark=""))
