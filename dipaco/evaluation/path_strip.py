"""What lies under a picture's columns of paths: number, documents, and the module of each level.

A row of cells for each of these; neighbours that go through one module share a cell.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dipaco.evaluation.style import INK
from dipaco.evaluation.tables import PathShare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

MOST_PATHS = 32  # columns of more are too narrow for numbers
ROW_INCHES = 0.24
TINTS = ("#E4E4E4", "#F4F4F4")  # neighbours differ


class Cell(NamedTuple):
    """The columns that say one thing, and how: the longest writing first."""

    first: int
    last: int
    writings: tuple[str, ...]
    is_tinted: bool


class Strip(NamedTuple):
    """A drawn strip, whose writings are to be chosen when its width is known."""

    axes: "Axes"
    rows: list[list[tuple[Cell, "Text"]]]


def strip_height(shards: Sequence[PathShare]) -> float:
    """In inches."""
    return ROW_INCHES * len(_rows_of(shards))


def draw_strip(axes: "Axes", shards: Sequence[PathShare]) -> Strip:
    """Draws it, a column for each of `shards`; `fit_strip` then writes what fits."""
    from matplotlib.patches import Rectangle

    rows = _rows_of(shards)
    drawn: list[list[tuple[Cell, Text]]] = []
    for number, cells in enumerate(rows.values()):
        drawn.append([])
        tints = itertools.cycle(TINTS)
        for cell in cells:
            width = cell.last - cell.first + 1
            if cell.is_tinted:
                place = (cell.first - 0.5, number - 0.44)
                colour = next(tints)
                axes.add_patch(Rectangle(place, width, 0.88, facecolor=colour, edgecolor="white"))
            middle = (cell.first + cell.last) / 2
            text = axes.text(middle, number, "", ha="center", va="center", fontsize=8, color=INK)
            drawn[-1].append((cell, text))
    axes.set(xlim=(-0.5, len(shards) - 0.5), ylim=(len(rows) - 0.5, -0.5), xticks=[])
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return Strip(axes, drawn)


def fit_strip(strip: Strip) -> None:
    """Writes into each row the longest writing that fits all of its cells, else the shortest. To be
    called when the panels have their places.
    """
    column = strip.axes.get_window_extent().width / max(strip.axes.get_xlim()[1] + 0.5, 1)
    for row in strip.rows:
        for level in range(max((len(cell.writings) for cell, _ in row), default=0)):
            for cell, text in row:
                text.set_text(cell.writings[level])
            if all(
                text.get_window_extent().width < 0.94 * column * (cell.last - cell.first + 1)
                for cell, text in row
            ):
                break


def _rows_of(shards: Sequence[PathShare]) -> dict[str, list[Cell]]:
    """What each row is about -> its cells; many paths are only counted."""
    if len(shards) > MOST_PATHS:
        return {
            "": [
                Cell(0, len(shards) - 1, (f"{len(shards)} paths, by their leading domain",), False)
            ]
        }
    rows = {
        "path": [Cell(k, k, (f"{shard.path}",), False) for k, shard in enumerate(shards)],
        "documents": [
            Cell(k, k, (f"{shard.documents:,}", in_thousands(shard.documents)), False)
            for k, shard in enumerate(shards)
        ],
    }
    levels = dict.fromkeys(m.partition("/")[0] for shard in shards for m in shard.modules)
    for level in levels:
        rows[level] = list(_modules_of_level(shards, level))
    return rows


def in_thousands(count: int) -> str:
    """A number in five characters at most, while it is below ten millions."""
    if count < 1000:
        return str(count)
    return f"{count / 1000:.1f}k" if count < 9950 else f"{count / 1000:.0f}k"


def _modules_of_level(shards: Sequence[PathShare], level: str) -> Iterator[Cell]:
    def module_of(column: int) -> str:
        own = (m for m in shards[column].modules if m.partition("/")[0] == level)
        return next(own, "")

    for module, columns in itertools.groupby(range(len(shards)), key=module_of):
        first, *others = columns
        _, _, expert = module.partition("/")
        number = str(int(expert)) if expert.isdecimal() else ""
        yield Cell(first, others[-1] if others else first, (module, expert, number), bool(module))
