"""How the pictures of this project look: one colour for an arm in all of them.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color), which colour-blind readers can tell
apart. In grey, arms differ in dashes, and rows of one arm in their mark. Text is dark: a colour is
shown beside it. Drawn without pyplot: no global state, no display.
"""

import contextlib
import math
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dipaco.config import DATA_PARALLEL, DENSE, DENSE_EQUAL_TOKENS, MODULAR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, FAINT = "#222222", "#777777", "#DDDDDD"  # text; what explains; what guides the eye
# For what is no arm: levels, routings.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1)))
MARKS = "osD^vP*X"
DPI = 150
WIDE = 6  # times the second longest: from there a curve is drawn in a logarithm of its steps
MOST_TICKS_BEYOND = 3  # in that logarithm

Dashes = str | tuple[int, tuple[int, ...]]


class Look(NamedTuple):
    """How what belongs to an arm is drawn."""

    colour: str
    dashes: Dashes = "-"
    mark: str = "o"


DILOCO = "DiLoCo"  # several paths that share everything; no arm of a run, but rows of sweeps
LOOKS = {
    MODULAR: Look(COLOURS[0], DASHES[0], "o"),
    DENSE: Look(COLOURS[1], DASHES[1], "s"),
    DATA_PARALLEL: Look(COLOURS[2], DASHES[2], "^"),
    DENSE_EQUAL_TOKENS: Look(COLOURS[3], DASHES[3], "D"),
    DILOCO: Look(COLOURS[4], DASHES[4], "v"),
}
BASE_LOOK = Look(INK, "-", "h")
# Of rows whose finished modules are routed otherwise or mixed (`ReportRow.variant`).
_MARKS_OF_VARIANTS = {
    "best_path": "*",
    "by_features": "X",
    "by_likelihood": "<",
    "by_random": "1",
    "ensemble": "P",
    "ensemble_2": "p",
    "ensemble_renewed": ">",
}


def look_of(arm: str, variant: str = "") -> Look:
    """The look of a row: that of its arm, and for a variant of it a mark of its own.

    Args:
      arm: of a report or of a sweep's row: `modular`, `2x2/dense`.
      variant: `ReportRow.variant`.
    """
    look = LOOKS.get(arm.rpartition("/")[2], LOOKS[MODULAR])
    return look._replace(mark=_MARKS_OF_VARIANTS.get(variant, "d")) if variant else look


def nth_look(arm: str, number: int) -> Look:
    """The look of one of several contenders of an arm: its colour, with other dashes and marks."""
    first = LOOKS[arm]
    if number == 0:
        return first
    others = [mark for mark in MARKS if mark != first.mark]
    dashes = [each for each in DASHES if each != first.dashes]
    return Look(
        first.colour, dashes[(number - 1) % len(dashes)], others[(number - 1) % len(others)]
    )


@contextlib.contextmanager
def styled(width: float, height: float) -> "Generator[Figure]":
    """A figure of that many inches; what is made inside has the pictures' font and ink."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ink = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with mpl.rc_context({"font.size": 9, **ink}):  # ty: ignore[invalid-argument-type]
        yield Figure(figsize=(width, height), layout="constrained", dpi=DPI)


def tidy(axes: "Axes", title: str = "", explained: str = "", grid: str = "both") -> None:
    """A title at the left and what it means below it, a faint grid behind what is drawn, no box."""
    axes.set_title(title, loc="left", fontweight="bold", pad=16 if explained else 6)
    if explained:
        axes.annotate(
            explained,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, 5),
            textcoords="offset points",
            color=SOFT,
            fontsize=8,
        )
    axes.grid(color=FAINT, linewidth=0.6, axis=grid)  # ty: ignore[invalid-argument-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def log_ticks(axes: "Axes", which: str, values: Iterable[float]) -> None:
    """Makes an axis ("x" or "y") a logarithmic one of these perplexities, with round numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    drawn = [value for value in values if math.isfinite(value) and value > 0]
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = (min(drawn), max(drawn)) if drawn else (1.0, 10.0)
    ratio = high / low
    if ratio == 1:  # a tenth above and below it
        axes.set(**{f"{which}lim": (low / 1.1, high * 1.1)})
    if ratio < 2.5:
        axis.set_major_locator(MaxNLocator(7))
    elif ratio < 30:
        axis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)))
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(LogLocator(subs=()))


def step_ticks(axes: "Axes", first: int, ends: Sequence[int]) -> bool:
    """Steps on x, linear; where one curve is many times as long as all others, what is beyond
    these is drawn in a logarithm, so that they keep most of the width.

    Args:
      axes: its curves begin at step `first`.
      first: in steps.
      ends: the last step of each curve.

    Returns:
      Whether there is a part in a logarithm.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    lengths = sorted({end for end in ends if end > first})
    if not lengths:
        axes.set(xlim=(first - 1, first + 1), xticks=[first])
        return False
    if len(lengths) < 2 or lengths[-1] - first < WIDE * (lengths[-2] - first):
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
        return False
    others, longest = lengths[-2:]
    decades = math.log10(longest / others)
    # The linear part begins at 0; what lies left of `first` is not shown, and not counted.
    linear = 1.3 * decades * others / (others - first)
    axes.set_xscale("symlog", linthresh=others, linscale=linear)
    ticks = MaxNLocator(5, integer=True).tick_values(first, others)
    doublings = math.floor(decades / math.log10(2))
    every = math.ceil(doublings / MOST_TICKS_BEYOND)
    beyond = [others * 2**power for power in range(every, 1 + doublings, every)]
    shown = [*(tick for tick in ticks if first <= tick <= others), *beyond]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.axvline(others, color=SOFT, linewidth=0.6, linestyle=(0, (1, 3)))
    return True
