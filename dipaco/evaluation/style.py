"""The look of this project's pictures: one colour for an arm in all of them.

Colours are by Okabe and Ito (jfly.uni-koeln.de/color), which colour-blind readers can tell apart.
Arms also differ in dashes, and rows of one arm in their mark. Pictures are drawn without pyplot, so
that there is no global state and no display.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dipaco.config import DATA_PARALLEL, DENSE, DENSE_EQUAL_TOKENS, MODULAR
from dipaco.evaluation.errors import PictureUnwritable
from dipaco.files import translate_os_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, FAINT = "#222222", "#777777", "#DDDDDD"  # text, explanations, guides for the eye
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1)))
MARKS = "osD^vP*X"
ENDINGS = (".png", ".svg", ".pdf")  # of pictures
DPI = 150
MANY_TICKS = 10.0  # Values of more than this ratio have ticks at 1, 2 and 5 of each decade.

Dashes = str | tuple[int, tuple[int, ...]]


class Look(NamedTuple):
    """Colour, dashes and mark of an arm, a level or a module."""

    colour: str
    dashes: Dashes = "-"
    mark: str = "o"


DILOCO = "DiLoCo"  # Several paths that share everything: no arm of a run, but rows of sweeps.
LOOKS = {
    MODULAR: Look(COLOURS[0], DASHES[0], "o"),
    DENSE: Look(COLOURS[1], DASHES[1], "s"),
    DATA_PARALLEL: Look(COLOURS[2], DASHES[2], "^"),
    DENSE_EQUAL_TOKENS: Look(COLOURS[3], DASHES[3], "D"),
    DILOCO: Look(COLOURS[4], DASHES[4], "v"),
}
# Marks of rows whose finished modules are routed otherwise or mixed (`ReportRow.variant`).
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
    """The look of a row: its arm's, with another mark for a variant of it.

    Args:
      arm: of a report or of a sweep's row: `modular`, `2x2/dense`.
    """
    look = LOOKS.get(arm.rpartition("/")[2], LOOKS[MODULAR])
    return look._replace(mark=_MARKS_OF_VARIANTS.get(variant, "d")) if variant else look


def check_picture(file: Path) -> None:
    """Raises `PictureUnwritable`: no picture can be written under this name."""
    if file.suffix.lower() not in ENDINGS:
        raise PictureUnwritable(file=file, known=", ".join(ENDINGS))


def why_not_drawn(draw: Callable[[Path], object], file: Path) -> str:
    """Draws a picture into a file. Returns the reason if that fails, and there is no file then. A
    report or a table is worth more than its picture.

    Raises:
      DiskFull, NotWritable.
    """
    with translate_os_errors(file):
        try:
            with warnings.catch_warnings():  # A letter that no font has is drawn as a box.
                warnings.filterwarnings("ignore", "Glyph")
                draw(file)
        except (OSError, ImportError):  # Another machine may draw it.
            raise
        except Exception as error:  # matplotlib raises many kinds for what it cannot draw
            file.unlink(missing_ok=True)
            return f"The picture could not be drawn: {type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def styled(width: float, height: float) -> "Generator[Figure]":
    """A figure of that many inches. Everything made inside has the pictures' font and ink. Names
    are drawn as they are: a `$` in a name begins no formula.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    settings |= {"font.size": 9, "legend.fontsize": 8, "legend.frameon": False}  # ty: ignore
    settings |= {"text.parse_math": False, "text.usetex": False}
    with mpl.rc_context(settings):
        yield Figure(figsize=(width, height), layout="constrained", dpi=DPI)


def tidy(axes: "Axes", title: str = "", explained: str = "", grid: str = "both") -> None:
    """A title with an explanation below it, a faint grid behind the data, no box."""
    axes.set_title(f"{title}\n{explained}" if explained else title, loc="left", fontsize=9)
    axes.grid(color=FAINT, linewidth=0.6, axis=grid)  # ty: ignore[invalid-argument-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def name_beside(axes: "Axes") -> None:
    """The legend of a panel, at its right."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)


def log_ticks(axes: "Axes", which: str, values: Iterable[float]) -> None:
    """Makes an axis ("x" or "y") a logarithmic one of these values, with round numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    drawn = [value for value in values if math.isfinite(value) and value > 0]
    if not drawn:
        return
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    is_wide = which == "x" or max(drawn) > MANY_TICKS * min(drawn)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)) if is_wide else MaxNLocator(7))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    )
    axis.set_minor_locator(NullLocator())
