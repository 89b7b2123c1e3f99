"""The report as a picture: learning curves of the rows, and which domain went to which path.

Many paths are a grid, and many domains a table of the largest: the picture of 256 paths and 256
domains is as large as a page (`domain_plot.py`).
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dipaco.evaluation.direct_labels import End, arrange, height_of, label_ends
from dipaco.evaluation.domain_plot import (
    draw_domains_by_module,
    draw_domains_by_path,
    draw_leading_domains,
    is_grid,
    say_nothing_was_routed,
    table_height,
)
from dipaco.evaluation.path_grid import path_grid
from dipaco.evaluation.path_strip import fit_strip, strip_height
from dipaco.evaluation.style import (
    BASE_LOOK,
    log_ticks,
    look_of,
    step_ticks,
    styled,
    tidy,
)
from dipaco.evaluation.tables import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dipaco.evaluation.direct_labels import Label

WIDTH = 14.0  # inches
MARGIN, GRID_MARGIN = 1.2, 0.9  # inches of titles and labels
GRID_SHARE = 0.88  # of the width, without labels and colours


def draw_report(report: Report, file: Path | str) -> None:
    """Writes the picture; the file's ending (.png, .svg, .pdf) chooses the format."""
    report_figure(report).savefig(file)


def report_figure(report: Report) -> "Figure":
    """The picture, before it is written."""
    shards = report.shards
    has_domains = any(shard.domains for shard in shards)
    has_grid = has_domains and is_grid(shards)
    num_labels = len({*report.curves, *(row.name for row in report.rows)})
    above = max(3.4, height_of(num_labels) + 0.2, table_height(shards))
    below = strip_height(shards) if has_domains and not has_grid else 0.0
    grid = path_grid(shards).height + GRID_MARGIN if has_grid else 0.0
    with styled(WIDTH, above + below + MARGIN + grid) as figure:
        both: Any = figure
        if has_grid:
            ratios = (above + MARGIN, grid)
            both, paths = figure.subfigures(2, 1, squeeze=False, height_ratios=ratios)[:, 0]
            draw_leading_domains(paths.subplots(), shards, GRID_SHARE * WIDTH)
        sides = both.subfigures(1, 2, squeeze=False, width_ratios=(1, 1.05), wspace=0.02)
        learning, routing = sides[0]
        axes = learning.subplots()
        labels = _draw_curves(axes, report)
        strip = None
        if not has_domains:
            say_nothing_was_routed(routing.subplots())
        elif not has_grid or not draw_domains_by_module(routing.subplots(), shards):
            routing.clear()
            heat, under = routing.subplots(2, 1, height_ratios=(above, below or 0.3))
            strip = draw_domains_by_path(heat, under, shards)
        arrange(figure, [(axes, labels)])
        if strip is not None:
            fit_strip(strip)
    return figure


def _draw_curves(axes: "Axes", report: Report) -> "list[Label]":
    """Validation perplexity by steps; a row without a curve is a point at its end."""
    results = {row.name: (row.steps, row.perplexity) for row in report.rows}
    looks = {row.name: look_of(row.arm, row.variant) for row in report.rows}
    ends, shown = [], []
    for name in dict.fromkeys([*results, *report.curves]):
        look = looks.get(name) or look_of(name)
        curve = sorted(report.curves.get(name, []))
        points = [point for point in curve or [results[name]] if math.isfinite(point[1])]
        result = results[name][1] if name in results else curve[-1][1]
        has_line = len(points) > 1
        if has_line:
            axes.plot(
                *zip(*points, strict=True),
                color=look.colour,
                linestyle=look.dashes,
                linewidth=1.8,
                label=name,
            )
        end = points[-1] if points else None
        if end is not None:
            axes.plot(*end, look.mark, color=look.colour, markersize=6, label=f"{name}: its end")
        shown += points
        is_at_its_end = math.isfinite(result)
        ends.append(
            End(f"{name}  {result:.1f}", end if is_at_its_end else None, look, has_line=has_line)
        )
    if report.base is not None and math.isfinite(report.base.perplexity):
        shown.append((report.base.steps, report.base.perplexity))
        _mark_base(axes, report.base.steps, report.base.perplexity)
    log_ticks(axes, "y", [value for _, value in shown])
    tidy(axes, "Learning")
    axes.set(xlabel="inner steps of one path", ylabel="validation perplexity (log scale)")
    if shown:
        first = min(step for step, _ in shown)
        if step_ticks(axes, first, [point[0] for _, point, *_ in ends if point is not None]):
            axes.set_xlabel("inner steps of one path (log scale right of the dotted line)")
        _leave_room_at_the_left(axes, first)
    return label_ends(axes, ends)


def _mark_base(axes: "Axes", steps: int, perplexity: float) -> None:
    """The model that all arms start from: a mark, and its name left of all curves."""
    axes.plot(
        steps,
        perplexity,
        BASE_LOOK.mark,
        color=BASE_LOOK.colour,
        markersize=8,
        zorder=4,
        label="base model",
    )
    axes.annotate(
        f"base model  {perplexity:.1f}",
        (steps, perplexity),
        xytext=(-8, 5),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="top",
    )


def _leave_room_at_the_left(axes: "Axes", first: int) -> None:
    """An eighth of the width before the first step, for the name of the base model."""
    transform = axes.transScale
    (low, _), (high, _) = (transform.transform((x, 1.0)) for x in (first, axes.get_xlim()[1]))
    room = transform.inverted().transform((low - (high - low) / 8, transform.transform((1, 1))[1]))
    axes.set_xlim(left=float(room[0]))
