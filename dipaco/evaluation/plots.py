"""The pictures of a run: of its report, and of `dipaco inspect`.

A report shows learning curves and which domain went to which path. An inspection shows the sizes of
shards, and how each module moved from phase to phase. Names are in matplotlib's legends. Many
modules are drawn as a band for each level, and small domains share a row.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dipaco.evaluation.style import (
    COLOURS,
    DASHES,
    INK,
    MARKS,
    SOFT,
    Look,
    log_ticks,
    look_of,
    name_beside,
    styled,
    tidy,
)
from dipaco.evaluation.tables import PathShare, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 12.0  # inches
LOG_FROM = 6  # A curve so many times as long as the others makes the axis logarithmic.
MOST_NUMBERED_PATHS = 16  # Numbers in the cells of more paths would overlap.
MOST_DOMAINS = 32  # So many have rows of their own.
MOST_SHOWN_LETTERS = 32  # of a domain's name
ROW_INCHES = 0.2
MOST_GROUPED_PATHS = 64  # Only the newest routing of more paths is drawn.
MOST_NAMED_MODULES = 20  # More are a band for each level.
MOVES = {  # field of a step: its title and what its values mean
    "norm": ("Norm", "length of a module's mean outer gradient"),
    "cosine": (
        "Cosine",
        "between the outer gradients of two of its paths: 1 agree, 0 unrelated, -1 opposed",
    ),
}
GREYS = ("#BBBBBB", "#777777", "#444444")  # Routings have these in turn.
BOUNDS = {"capacity": "--", "mean": "-", "floor": "-."}


def draw_report(report: Report, file: Path | str) -> None:
    """Writes the picture. The file's ending (.png, .svg, .pdf) chooses the format."""
    report_figure(report).savefig(file)


def draw_inspection(inspection: dict[str, Any], file: Path | str) -> None:
    """Writes the picture of what `dipaco inspect --json` prints."""
    inspection_figure(inspection).savefig(file)


def report_figure(report: Report) -> "Figure":
    """The picture, before it is written."""
    names, counts_DP = domain_table(report.shards)
    entries = len({*report.curves, *(row.name for row in report.rows)})
    height = max(3.4, ROW_INCHES * max(len(names), entries) + 1.0)
    with styled(WIDTH, height) as figure:
        learning, routing = figure.subplots(1, 2)
        _draw_curves(learning, report)
        _draw_domains(routing, names, counts_DP)
    return figure


def _draw_curves(axes: "Axes", report: Report) -> None:
    """Test perplexity by steps. A row without a curve is a point."""
    rows = {row.name: row for row in report.rows}
    values, ends = [], []
    for name in dict.fromkeys([*rows, *report.curves]):
        row, curve = rows.get(name), sorted(report.curves.get(name, []))
        look = look_of(name) if row is None else look_of(row.arm, row.variant)
        result = curve[-1][1] if row is None else row.perplexity
        points = curve if curve or row is None else [(row.steps, row.perplexity)]
        points = [point for point in points if math.isfinite(point[1])]
        axes.plot(
            [steps for steps, _ in points],
            [value for _, value in points],
            color=look.colour,
            linestyle=look.dashes if len(points) > 1 else "none",
            linewidth=1.8,
            marker=look.mark,
            markevery=[len(points) - 1] if points else None,
            label=f"{name}  {result:.1f}",
        )
        values += [value for _, value in points]
        ends += [steps for steps, _ in points[-1:]]
    base = report.base
    if base is not None and math.isfinite(base.perplexity):
        label = f"base model  {base.perplexity:.1f}"
        axes.plot(base.steps, base.perplexity, "h", color=INK, markersize=8, label=label)
        values.append(base.perplexity)
    log_ticks(axes, "y", values)
    ends = sorted(set(ends))
    if len(ends) > 1 and 0 < LOG_FROM * ends[-2] < ends[-1]:
        log_ticks(axes, "x", ends)
    of_run = [f": {report.name}, seed {row.seed}" for row in report.rows[:1]]
    tidy(axes, f"Learning{''.join(of_run)}")
    axes.set(xlabel="inner steps of one path", ylabel="test perplexity")
    name_beside(axes)


def domain_table(shards: Sequence[PathShare]) -> tuple[list[str], np.ndarray]:
    """The domains with their documents, and how many of these went to each path.

    Domains that went to the same path are neighbours. If there are more than `MOST_DOMAINS`, the
    smaller ones are one row, the last.
    """
    domains = sorted({domain for shard in shards for domain in shard.domains})
    counts_DP = np.array(
        [[shard.domains.get(name, 0) for shard in shards] for name in domains], np.int64
    ).reshape(len(domains), len(shards))
    largest = np.argsort(-counts_DP.sum(axis=1), kind="stable")
    own = len(domains) if len(domains) <= MOST_DOMAINS else MOST_DOMAINS - 1
    shown, rest = np.sort(largest[:own]), largest[own:]
    share = counts_DP[shown] / np.maximum(counts_DP[shown].sum(axis=1, keepdims=True), 1)
    if len(shards):
        shown = shown[np.lexsort((-share.max(axis=1), share.argmax(axis=1)))]
    names = [f"{_short(domains[row])}  {counts_DP[row].sum():,}" for row in shown]
    if not len(rest):
        return names, counts_DP[shown]
    others = counts_DP[rest].sum(axis=0)
    names.append(f"{len(rest)} more domains  {others.sum():,}")
    return names, np.concatenate([counts_DP[shown], others[None]])


def _short(name: str) -> str:
    """A name that leaves room for the picture: the beginning and the end of a long one."""
    half = MOST_SHOWN_LETTERS // 2
    return name if len(name) <= MOST_SHOWN_LETTERS else f"{name[:half]}…{name[1 - half :]}"


def _draw_domains(axes: "Axes", names: list[str], counts_DP: np.ndarray) -> None:
    """A heat map of domains by paths: the share of a domain's documents that each path got, or,
    with many paths, the share of each path's documents, with paths of one domain side by side.
    """
    if not names:
        tidy(axes, "Where the domains went", grid="x")
        axes.set_axis_off()
        axes.text(0.5, 0.5, "nothing was routed", ha="center", color=SOFT, transform=axes.transAxes)
        return
    paths = counts_DP.shape[1]
    if paths <= MOST_NUMBERED_PATHS:
        share, whole = counts_DP / np.maximum(counts_DP.sum(axis=1, keepdims=True), 1), "domain"
        for row, column in np.argwhere(share >= 0.005):
            percent = round(100 * float(share[row, column]))
            colour = "white" if percent > 55 else INK
            axes.text(column, row, f"{percent}", ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(range(paths), [str(path) for path in range(paths)])
        axes.set_xlabel("path")
    else:
        share, whole = counts_DP / np.maximum(counts_DP.sum(axis=0), 1), "path"
        share = share[:, np.lexsort((-share.max(axis=0), share.argmax(axis=0)))]
        axes.set_xticks([])
        axes.set_xlabel(f"{paths} paths, by their leading domain")
    most = 1.0 if paths <= MOST_NUMBERED_PATHS else float(share.max()) or 1.0
    image = axes.imshow(
        share, aspect="auto", cmap="Blues", vmin=0, vmax=most, interpolation="nearest"
    )
    axes.set_title("Where the domains went", loc="left", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015, format="{x:.0%}")
    bar.set_label(f"share of the {whole}'s documents", color=INK)
    bar.outline.set_visible(False)


def inspection_figure(inspection: dict[str, Any]) -> "Figure":
    """The picture, before it is written."""
    modules = inspection["modules"]
    looks = dict(_looks(modules))
    with styled(
        WIDTH, max(9.0, ROW_INCHES * min(len(modules), MOST_NAMED_MODULES) + 6.0)
    ) as figure:
        panels = figure.subplots(3, 1)
        _draw_sizes(panels[0], inspection)
        for axes, what in zip(panels[1:], MOVES, strict=True):
            _draw_moves(axes, modules, looks, what)
        name_beside(panels[1])  # It names the modules of both.
    return figure


def _draw_sizes(axes: "Axes", inspection: Mapping[str, Any]) -> None:
    """A group of bars for each path, one for each routing, and lines of the mean and the bounds."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    num_paths = len(inspection["paths"])
    routings = inspection["routings"][-1 if num_paths > MOST_GROUPED_PATHS else 0 :]
    width = 0.8 / len(routings)
    for number, routing in enumerate(routings):
        places = np.arange(num_paths) - 0.4 + width * (number + 0.5)
        label = f"routed at phase {routing['phase']}"
        colour = GREYS[number % len(GREYS)]
        axes.bar(places, routing["documents"], width, color=colour, label=label)
    for name, value in inspection["bounds"].items():
        if value is not None:
            label = f"{name}  {value:,.0f}"
            axes.axhline(value, color=INK, linewidth=1, linestyle=BOUNDS[name], label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set(xlabel="path", xlim=(-0.5, num_paths - 0.5))
    tidy(axes, "Shards", "documents that train each path", "y")
    name_beside(axes)


def _draw_moves(
    axes: "Axes", modules: Mapping[str, Any], looks: Mapping[str, Look], what: str
) -> None:
    """A line for each module over phases, with a colour for its level. Of many modules, a band for
    each level.
    """
    from matplotlib.ticker import MaxNLocator

    title, explained = MOVES[what]
    curves = {
        name: {
            step["phase"]: step[what]
            for step in module["steps"]
            if step[what] is not None and math.isfinite(step[what])
        }
        for name, module in modules.items()
    }
    tidy(axes, title, explained)
    if not any(curves.values()):
        axes.text(0.5, 0.5, _nothing(modules, what), ha="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    if len(modules) > MOST_NAMED_MODULES:
        _draw_bands(axes, curves, looks)
    else:
        for name, curve in curves.items():
            look = looks[name]
            axes.plot(
                list(curve),
                list(curve.values()),
                color=look.colour,
                linestyle=look.dashes,
                linewidth=1.5,
                marker=look.mark,
                markersize=4,
                label=name,
            )
    if what != "norm":
        axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("phase")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw_bands(
    axes: "Axes", curves: Mapping[str, Mapping[int, float]], looks: Mapping[str, Look]
) -> None:
    """The median of each level's modules, and a band that holds four in five of them."""
    for level, names in itertools.groupby(curves, key=_level_of):
        own = list(names)
        phases = sorted({phase for name in own for phase in curves[name]})
        by_phase = [
            [curves[name][phase] for name in own if phase in curves[name]] for phase in phases
        ]
        if not phases:
            continue
        low, middle, high = np.array([np.quantile(of, (0.1, 0.5, 0.9)) for of in by_phase]).T
        colour = looks[own[0]].colour
        count = f"{len(own)} module{'s' * (len(own) > 1)}, median and 80 %"
        axes.fill_between(phases, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(phases, middle, color=colour, linewidth=1.8, label=f"{level}\n({count})")


def _nothing(modules: Mapping[str, Any], what: str) -> str:
    if not any(module["steps"] for module in modules.values()):
        return "no outer step so far"
    return "no module has two paths" if what == "cosine" else "nothing was recorded"


def _looks(modules: Mapping[str, Any]) -> Iterator[tuple[str, Look]]:
    """A colour for each level, and dashes and marks for its modules."""
    for number, (_, names) in enumerate(itertools.groupby(modules, key=_level_of)):
        for place, name in enumerate(names):
            dashes, mark = DASHES[place % len(DASHES)], MARKS[place % len(MARKS)]
            yield name, Look(COLOURS[number % len(COLOURS)], dashes, mark)


def _level_of(module: str) -> str:
    return module.partition("/")[0]
