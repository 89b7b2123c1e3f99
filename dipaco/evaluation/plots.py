"""The report as a picture: learning curves of the rows, and which domain went to which path.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; lines also differ in
dashes and carry their names. Drawn without pyplot: no global state, no display.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dipaco.evaluation.tables import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1)))
INK, FAINT = "#222222", "#DDDDDD"
MOST_WRITTEN_PATHS = 16  # numbers in the cells of more paths would overlap


def draw_report(report: Report, file: Path | str) -> None:
    """Writes the picture; the file's ending (.png, .svg, .pdf) chooses the format."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    num_domains = len({domain for shard in report.shards for domain in shard.domains})
    with mpl.rc_context({"font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=(13, max(4.6, 1.6 + 0.27 * num_domains)), layout="constrained")
        learning, routing = figure.subplots(1, 2, width_ratios=(1, 1.15))
        _draw_curves(learning, report)
        _draw_domains(routing, report)
        figure.savefig(file, dpi=150)


def _draw_curves(axes: "Axes", report: Report) -> None:
    """Validation perplexity by steps; a row without a curve is a point at its end."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    results = {row.name: (row.steps, row.perplexity) for row in report.rows}
    for index, name in enumerate(dict.fromkeys([*report.curves, *results])):
        colour = COLOURS[index % len(COLOURS)]
        points = sorted(report.curves.get(name, [])) or [results[name]]
        steps, values = zip(*points, strict=True)
        label = f"{name}  {results.get(name, points[-1])[1]:.1f}"
        axes.plot(
            steps,
            values,
            color=colour,
            linestyle=DASHES[index % len(DASHES)] if len(points) > 1 else "none",
            linewidth=1.8,
            label=label,
        )
        axes.plot(*points[-1], marker="o" if len(points) > 1 else "D", markersize=5, color=colour)
        if len(points) == 1:
            axes.lines[-2].set(marker="D", markersize=5)  # also in the legend
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="inner steps of one path", ylabel="validation perplexity (log scale)")
    axes.set_title("Learning", loc="left", fontweight="bold")
    axes.grid(color=FAINT, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if report.curves or report.rows:
        axes.legend(frameon=False, loc="upper right")


def _draw_domains(axes: "Axes", report: Report) -> None:
    """A heat map of domains by paths.

    With few paths: the share of each domain's documents that every path got. With many, these
    shares would be too small to see; then the share of every domain in each path's documents, with
    paths of one domain side by side.
    """
    axes.set_title("Where the domains went", loc="left", fontweight="bold")
    if not report.shards:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "nothing was routed", ha="center", transform=axes.transAxes)
        return
    domains = sorted({domain for shard in report.shards for domain in shard.domains})
    count = np.array([[shard.domains.get(name, 0) for shard in report.shards] for name in domains])
    # Domains that went to the same path are neighbours and form visible blocks.
    by_domain = count / np.maximum(count.sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-by_domain.max(axis=1), by_domain.argmax(axis=1)))
    names = [f"{domains[k]}  {count[k].sum():,}" for k in order]
    has_few_paths = len(report.shards) <= MOST_WRITTEN_PATHS
    if has_few_paths:
        share, whole = by_domain[order], "domain"
        ticks = [str(shard.path) for shard in report.shards]
        if len(ticks) <= 8:  # enough room for the documents of each
            ticks = [f"{shard.path}\n{shard.documents:,}" for shard in report.shards]
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_xlabel("path")
        for row, column in np.argwhere(share >= 0.005):
            percent = round(100 * float(share[row, column]))
            colour = "white" if percent > 55 else INK
            axes.text(column, row, f"{percent}", ha="center", va="center", color=colour)
    else:
        by_path = (count / np.maximum(count.sum(axis=0), 1))[order]
        share = by_path[:, np.lexsort((-by_path.max(axis=0), by_path.argmax(axis=0)))]
        whole = "path"
        axes.set_xticks([])
        axes.set_xlabel(f"{len(report.shards)} paths, by their leading domain")
    image = axes.imshow(share, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015, fraction=0.04, format="{x:.0%}")
    bar.set_label(f"share of the {whole}'s documents", color=INK)
    bar.outline.set_visible(False)
