"""Names beside the curves that they name, none over another: instead of a legend.

A column of labels stands at the right of a panel, in the order of the curves' ends from top to
bottom. Each has a sample of its line, and a thin leader from there to the end of the curve.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dipaco.evaluation.style import SOFT, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

FONT_POINTS, LEAST_POINTS = 9.0, 4.0
LEADER, SAMPLE, TEXT = 1.02, 1.03, 1.10  # where they begin: in widths of the panel
HEIGHT = 1.35  # of a label, in heights of its font
POINTS_PER_INCH = 72


class End(NamedTuple):
    """A curve's name, and where it ends."""

    text: str
    point: tuple[float, float] | None  # in the panel's data; None = it cannot be shown there
    look: Look
    has_line: bool = True  # False: a single point


@dataclasses.dataclass(frozen=True)
class Label:
    """What is drawn for an end."""

    end: End
    text: "Text"
    sample: "Line2D"
    leader: "Line2D | None"


def height_of(num_labels: int) -> float:
    """The inches that a panel needs for so many labels."""
    return num_labels * FONT_POINTS * HEIGHT / POINTS_PER_INCH


def label_ends(axes: "Axes", ends: Sequence[End]) -> list[Label]:
    """Writes the names of `ends` at the right of a panel; `arrange` then finds their places.

    Ends without a point come first: their values lie above all that is shown.
    """
    labels = []
    for end in ends:
        look = end.look
        text = axes.text(TEXT, 0.5, end.text, transform=axes.transAxes, va="center", clip_on=False)
        text.set_fontsize(FONT_POINTS)
        (sample,) = axes.plot(
            [SAMPLE, (SAMPLE + TEXT - 0.01) / 2, TEXT - 0.01],
            [0.5] * 3,
            color=look.colour,
            linestyle=look.dashes if end.has_line else "none",
            linewidth=1.8,
            marker=look.mark if end.point is not None else "x",
            markersize=5,
            markevery=[1],
            transform=axes.transAxes,
            clip_on=False,
            scalex=False,
            scaley=False,
        )
        leader = None
        if end.point is not None:
            (leader,) = axes.plot(
                [1.0, LEADER],
                [0.5, 0.5],
                color=SOFT,
                linewidth=0.6 if end.has_line else 0.3,
                transform=axes.transAxes,
                clip_on=False,
                scalex=False,
                scaley=False,
                zorder=1,
            )
        labels.append(Label(end, text, sample, leader))
    return labels


def arrange(figure: "Figure", columns: Sequence[tuple["Axes", Sequence[Label]]]) -> None:
    """Moves each column's labels to the heights of their curves' ends, as near as they fit, and
    draws the leaders. To be called when everything else is drawn.
    """
    figure.draw_without_rendering()  # the panels have their places only now,
    figure.set_layout_engine("none")  # and keep them
    for axes, labels in columns:
        if labels:
            _arrange(figure, axes, labels)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> np.ndarray:
    """The places nearest to `wanted` (least squares) that keep a distance.

    Args:
      wanted: ascending.
      gap: the least distance between neighbours.
      low, high: bounds on all places; `(len(wanted) - 1) * gap` fits between them.

    Returns:
      float64 [N], ascending.
    """
    # Without the gaps, places must only ascend: isotonic regression by pooling neighbours.
    offsets = gap * np.arange(len(wanted))
    pools: list[tuple[float, int]] = []  # (mean, how many)
    for value in np.asarray(wanted, float) - offsets:
        mean, count = float(value), 1
        while pools and pools[-1][0] > mean:
            before, number = pools.pop()
            mean = (before * number + mean * count) / (number + count)
            count += number
        pools.append((mean, count))
    flat = np.repeat([mean for mean, _ in pools], [count for _, count in pools])
    most = max(high - gap * (len(wanted) - 1), low)
    return np.clip(flat, low, most) + offsets


def _arrange(figure: "Figure", axes: "Axes", labels: Sequence[Label]) -> None:
    box = axes.get_window_extent()
    gap = FONT_POINTS * HEIGHT * figure.dpi / POINTS_PER_INCH
    if gap * (len(labels) - 1) > box.height:  # more than fit: all smaller
        gap = box.height / (len(labels) - 1)
        points = max(gap * POINTS_PER_INCH / figure.dpi / HEIGHT, LEAST_POINTS)
        for label in labels:
            label.text.set_fontsize(points)

    def height(label: Label) -> float:
        """In pixels; infinite for what is above the panel."""
        point = label.end.point
        return math.inf if point is None else float(axes.transData.transform(point)[1])

    ordered = sorted(labels, key=height)
    wanted = [min(height(label), box.y1) for label in ordered]
    for label, place in zip(ordered, spread(wanted, gap, box.y0, box.y1), strict=True):
        y = (place - box.y0) / box.height
        label.text.set_y(y)
        label.sample.set_ydata([y] * 3)
        if label.leader is not None and label.end.point is not None:
            x, own = axes.transAxes.inverted().transform(axes.transData.transform(label.end.point))
            # Level as far as the panel goes, so that it reads as a guide, then up or down.
            label.leader.set_data([x, max(x, 0.97), LEADER + 0.005], [own, own, y])
