"""The picture of a sweep: perplexity against parameters, tokens and bytes sent.

A mark for the mean of a row, a small dot for each seed. Colours as in `evaluation/plots.py`.
"""

from pathlib import Path

from dipaco.evaluation.plots import COLOURS, FAINT, INK
from dipaco.sweeps.table import BEST_PATH, SweepTable

MARKS = "osD^vP*XpH"
PANELS = (
    ("parameters_total", "parameters of all modules"),
    ("tokens", "tokens trained on, all paths"),
    ("bytes_sent", "bytes sent"),
)


def draw_sweep(table: SweepTable, file: Path | str) -> None:
    """Writes the picture; the file's ending chooses the format."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import (
        EngFormatter,
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
    )

    rows = [row for row in table.rows if not row.name.endswith(BEST_PATH)]
    with mpl.rc_context({"font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=(13, 4.8), layout="constrained")
        for (cost, label), axes in zip(PANELS, figure.subplots(1, 3, sharey=True), strict=True):
            for number, row in enumerate(rows):
                colour = COLOURS[number % len(COLOURS)]
                where = getattr(row, cost)
                axes.plot(
                    [where] * len(row.perplexities),
                    row.perplexities,
                    ".",
                    color=colour,
                    alpha=0.5,
                    markersize=4,
                )
                axes.plot(
                    where,
                    row.perplexity,
                    MARKS[number % len(MARKS)],
                    color=colour,
                    markersize=7,
                    linestyle="none",
                    label=f"{row.name}  {row.perplexity:.1f}",
                )
            if min((getattr(row, cost) for row in rows), default=0) > 0:
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
                axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(MaxNLocator(7))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel(label)
            axes.grid(color=FAINT, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("validation perplexity (log scale)")
        figure.suptitle(f"Sweep {table.sweep}", x=0.01, ha="left", fontweight="bold")
        if rows:
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside right upper", frameon=False)
        figure.savefig(file, dpi=150)
