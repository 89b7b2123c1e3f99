"""The report as a picture: learning curves of the rows, and which domain went to which path."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dipaco.evaluation.direct_labels import End, arrange, height_of, label_ends
from dipaco.evaluation.path_strip import draw_strip, fit_strip, strip_height
from dipaco.evaluation.style import (
    BASE_LOOK,
    INK,
    SOFT,
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
    from dipaco.evaluation.path_strip import Strip

WIDTH = 14.0  # inches
MOST_WRITTEN_PATHS = 16  # numbers in the cells of more paths would overlap


def draw_report(report: Report, file: Path | str) -> None:
    """Writes the picture; the file's ending (.png, .svg, .pdf) chooses the format."""
    report_figure(report).savefig(file)


def report_figure(report: Report) -> "Figure":
    """The picture, before it is written."""
    num_domains = len({domain for shard in report.shards for domain in shard.domains})
    num_labels = len({*report.curves, *(row.name for row in report.rows)})
    below = strip_height(report.shards) if num_domains else 0.0
    above = max(3.4, height_of(num_labels) + 0.2, 0.27 * num_domains)
    with styled(WIDTH, above + below + 1.2) as figure:
        both = figure.subfigures(1, 2, squeeze=False, width_ratios=(1, 1.05), wspace=0.02)
        learning, routing = both[0]
        axes = learning.subplots()
        labels = _draw_curves(axes, report)
        strip = None
        if num_domains:
            heat, under = routing.subplots(2, 1, height_ratios=(above, below))
            strip = _draw_domains(heat, under, report)
        else:
            _say_nothing_was_routed(routing.subplots())
        arrange(figure, [(axes, labels)])
        if strip is not None:
            fit_strip(strip)
    return figure


def _draw_curves(axes: "Axes", report: Report) -> "list[Label]":
    """Validation perplexity by steps; a row without a curve is a point at its end."""
    results = {row.name: (row.steps, row.perplexity) for row in report.rows}
    ends, shown = [], []
    for name in dict.fromkeys([*results, *report.curves]):
        look = look_of(name)
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


def _say_nothing_was_routed(axes: "Axes") -> None:
    axes.set_title("Where the domains went", loc="left", fontweight="bold")
    axes.set_axis_off()
    axes.text(0.5, 0.5, "nothing was routed", ha="center", color=SOFT, transform=axes.transAxes)


def _draw_domains(heat: "Axes", under: "Axes", report: Report) -> "Strip":
    """A heat map of domains by paths, and under each path its documents and modules.

    With few paths: the share of each domain's documents that every path got. With many, these
    shares would be too small to see; then the share of every domain in each path's documents, with
    paths of one domain side by side.
    """
    heat.set_title("Where the domains went", loc="left", fontweight="bold")
    domains = sorted({domain for shard in report.shards for domain in shard.domains})
    count = np.array([[shard.domains.get(name, 0) for shard in report.shards] for name in domains])
    # Domains that went to the same path are neighbours and form visible blocks.
    by_domain = count / np.maximum(count.sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-by_domain.max(axis=1), by_domain.argmax(axis=1)))
    names = [f"{domains[k]}  {count[k].sum():,}" for k in order]
    paths = list(range(len(report.shards)))
    if len(paths) <= MOST_WRITTEN_PATHS:
        share, whole = by_domain[order], "domain"
        for row, column in np.argwhere(share >= 0.005):
            percent = round(100 * float(share[row, column]))
            colour = "white" if percent > 55 else INK
            heat.text(column, row, f"{percent}", ha="center", va="center", color=colour)
    else:
        by_path = (count / np.maximum(count.sum(axis=0), 1))[order]
        paths = np.lexsort((-by_path.max(axis=0), by_path.argmax(axis=0))).tolist()
        share, whole = by_path[:, paths], "path"
    image = heat.imshow(share, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    heat.set_xticks([])
    heat.set_yticks(range(len(names)), names)
    heat.tick_params(length=0)
    heat.spines[:].set_visible(False)
    bar = heat.figure.colorbar(image, ax=[heat, under], pad=0.015, fraction=0.04, format="{x:.0%}")
    bar.set_label(f"share of the {whole}'s documents", color=INK)
    bar.outline.set_visible(False)
    return draw_strip(under, [report.shards[path] for path in paths])
