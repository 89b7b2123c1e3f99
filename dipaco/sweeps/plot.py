"""The picture of a sweep: its rows by rank, how far each is from the reference, what each costs.

The best row is at the top. A small dot is a seed, and a line links the dots of one seed. If these
lines run side by side, rows differ alike under all seeds. A colour is a kind of model, as in all
pictures (`evaluation/style.py`).
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.config import MODULAR
from dipaco.evaluation.style import FAINT, INK, SOFT, Look, log_ticks, look_of, styled, tidy
from dipaco.evaluation.tables import BEST_PATH, num_bytes, quantity
from dipaco.sweeps.pairing import LEAST_SEEDS, Interval
from dipaco.sweeps.table import SweepRow, SweepTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE_INCHES = 0.15
LONGEST_LINE = 60  # Longer names have several lines, of so many characters at most.
INCHES_A_CHARACTER = 0.085
PANELS_INCHES = 9.5
LOG_FROM = 3.0  # The axis is logarithmic if perplexities differ by this factor.
WIDEST = 4.0  # Intervals are shown up to so many times the largest difference.
LONGEST_TITLE = 24  # A longer name of the reference does not fit into a title.
NO_BREAK = "\N{NO-BREAK SPACE}"  # It keeps a mean in the line of its name's end.
COSTS = (("tokens", "tokens, all paths"), ("bytes_per_machine", "bytes a machine"))


def draw_sweep(table: SweepTable, file: Path | str) -> None:
    """Writes the picture. The file's ending chooses the format."""
    sweep_figure(table).savefig(file)


def ranked(table: SweepTable) -> list[SweepRow]:
    """The rows in the picture: the best first, then rows that are not compared, and rows without a
    number.
    """
    drawn = [row for row in table.rows if row.variant != BEST_PATH]

    def place(row: SweepRow) -> tuple[bool, bool, float]:
        is_number = math.isfinite(row.perplexity)
        return not is_number, row.name in table.apart, row.perplexity if is_number else 0.0

    return sorted(drawn, key=place)


def _have_other_seeds(rows: Sequence[SweepRow]) -> bool:
    """True if some rows have other seeds than others."""
    return len({tuple(row.seeds) for row in rows}) > 1


def sweep_figure(table: SweepTable) -> "Figure":
    """The picture, before it is written."""
    rows = ranked(table)
    with_seeds = _have_other_seeds(rows)
    names = [_name_of(row, table, with_seeds=with_seeds) for row in rows]
    lines = max((name.count("\n") + 1 for name in names), default=1)
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    height, places = (0.1 + LINE_INCHES * lines) * len(rows), range(len(rows))
    width = PANELS_INCHES + INCHES_A_CHARACTER * longest
    with styled(width, max(height, 0.6) + 1.6) as figure:
        panels = figure.subplots(1, 2 + len(COSTS), sharey=True, width_ratios=(3.4, 2.6, 1.1, 1.1))
        value, difference, *costs = panels
        _draw_perplexities(value, rows)
        _draw_differences(difference, rows, table.reference)
        for axes, (cost, label) in zip(costs, COSTS, strict=True):
            _draw_cost(axes, rows, cost)
            axes.set_xlabel(label)
        value.set_yticks(places, names)
        value.set_ylim(max(len(rows), 1) - 0.3, -0.7)
        for axes in panels:
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
        for row, text in zip(rows, value.get_yticklabels(), strict=True):
            text.set_fontweight("bold" if row.name == table.reference else "normal")
        figure.suptitle(_title(table, rows), x=0.01, ha="left", fontweight="bold")
    return figure


def _title(table: SweepTable, rows: Sequence[SweepRow]) -> str:
    """`reproduction: 12 rows, 3 seeds`."""
    seeds = len({seed for row in rows for seed in row.seeds})
    counts = f"{len(rows)} row{'s' * (len(rows) != 1)}, {_counted(seeds)}"
    return f"{table.sweep}: {counts}"


def _counted(seeds: int) -> str:
    return f"{seeds} seed{'s' * (seeds != 1)}"


def _name_of(row: SweepRow, table: SweepTable, *, with_seeds: bool) -> str:
    """A row's name, its mean and the number of its seeds, in lines that are not too long."""
    apart = "  (not compared)" if row.name in table.apart else ""
    seeds = f" ({_counted(len(row.seeds))})".replace(" ", NO_BREAK) if with_seeds else ""
    text = f"{row.name}{apart}{NO_BREAK * 2}{row.perplexity:.2f}{seeds}"
    return textwrap.fill(text, LONGEST_LINE, break_on_hyphens=False)


def _look(row: SweepRow) -> Look:
    """The look of its kind. The same modules routed otherwise, or mixed, have another mark."""
    look = look_of(row.kind)
    return look._replace(mark=look_of(MODULAR, row.variant).mark) if row.variant else look


def _draw_perplexities(axes: "Axes", rows: Sequence[SweepRow]) -> None:
    from matplotlib.ticker import MaxNLocator

    drawn = [p for row in rows for p in row.perplexities if math.isfinite(p)]
    for seed in sorted({seed for row in rows for seed in row.seeds}):
        own = [dict(zip(row.seeds, row.perplexities, strict=True)).get(seed) for row in rows]
        values = [math.nan if v is None or not math.isfinite(v) else v for v in own]
        axes.plot(
            values, range(len(rows)), color=SOFT, linewidth=0.6, alpha=0.6, label=f"seed {seed}"
        )
    for place, row in enumerate(rows):
        look = _look(row)
        seeds = [p for p in row.perplexities if math.isfinite(p)]
        axes.plot(*(seeds, [place] * len(seeds)), ".", color=look.colour, markersize=5, alpha=0.7)
        if math.isfinite(row.perplexity):
            axes.plot(
                row.perplexity,
                place,
                look.mark,
                color=look.colour,
                markersize=7,
                zorder=3,
                label=row.name,
            )
    if drawn and max(drawn) > LOG_FROM * min(drawn):
        log_ticks(axes, "x", drawn)
        axes.set_xlabel("test perplexity (log scale)")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel("test perplexity")
    mark = "mark: mean; dots: seeds, linked from row to row"
    if _have_other_seeds(rows):
        mark = "mark: mean; dots: seeds, not the same of all rows"
    tidy(axes, "Perplexity", mark)


def _draw_differences(axes: "Axes", rows: Sequence[SweepRow], reference: str) -> None:
    """Each row's difference to the reference, paired by seed, with its 95 % interval."""
    from matplotlib.ticker import MaxNLocator

    compared = [
        (row, place, Interval(row.difference, row.spread, tuple(row.seeds)))
        for place, row in enumerate(rows)
        if row.difference is not None
    ]
    for row, place, interval in compared:
        look, half = _look(row), interval.half_width
        if half is not None:
            ends = [interval.mean - half, interval.mean + half]
            axes.plot(
                *(ends, [place] * 2), color=look.colour, linewidth=2, alpha=0.6, label="interval"
            )
        axes.plot(
            interval.mean,
            place,
            look.mark,
            color=look.colour,
            markerfacecolor=look.colour if interval.is_resolved else "white",
            markersize=6,
            label=row.name,
        )
    name = reference if len(reference) <= LONGEST_TITLE else "the row in bold"
    tidy(axes, f"To {name or 'the first row'}", _explained([each for _, _, each in compared]))
    if not compared:
        axes.text(0.5, 0.5, "nothing to compare", ha="center", va="center", color=SOFT)
        axes.set(xticks=[], xlim=(0, 1))
        return
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("difference of perplexity")
    if (edge := _edge([each for _, _, each in compared])) is not None:
        axes.set_xlim(-edge, edge)


def _edge(intervals: Sequence[Interval]) -> float | None:
    """The bound of the axis if wide intervals, as from few seeds, would leave no room for means."""
    furthest = max(abs(each.mean) + (each.half_width or 0) for each in intervals)
    edge = WIDEST * max(abs(each.mean) for each in intervals)
    return edge if furthest > edge > 0 else None


def _explained(intervals: Sequence[Interval]) -> str:
    if all(each.half_width is None for each in intervals):
        return f"mean; an interval wants {LEAST_SEEDS} seeds"
    if _edge(intervals) is not None:
        return "mean; bar: 95 % interval, cut at the edge"
    return "mean; bar: 95 % interval; empty: not resolved"


def _draw_cost(axes: "Axes", rows: Sequence[SweepRow], cost: str) -> None:
    """Bars from 0, with the amount at each."""
    values = [getattr(row, cost) for row in rows]
    show = num_bytes if cost.startswith("bytes") else quantity
    bars = axes.barh(range(len(rows)), values, height=0.55, color=FAINT)
    axes.bar_label(bars, [show(value) for value in values], padding=2, fontsize=8)
    axes.set(xticks=[], xlim=(0, 1.6 * max([*values, 1])))
    tidy(axes, grid="y")
    axes.grid(visible=False)
