"""Many paths as a grid of cells: a row for each module of one level, a column for each of another.

With two levels that offer a choice, the path of a cell goes through the module of its row and that
of its column. Any other paths stand in their order, in a square.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dipaco.evaluation.style import INK
from dipaco.evaluation.tables import PathShare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

CELL_INCHES = 0.4  # the height of a row in which something is written
MOST_INCHES = 8.0
LINES = 2  # of a cell
POINTS_PER_INCH = 72
LETTER = 0.62  # width of a letter, in heights of its font
FONT_POINTS, LEAST_POINTS = 7.5, 5.0


class PathGrid(NamedTuple):
    """Where each path stands."""

    places: dict[int, tuple[int, int]]  # path -> row, column
    rows: list[str]  # their labels
    columns: list[str]
    row_name: str  # what the labels are of
    column_name: str

    @property
    def height(self) -> float:
        """The inches in which two lines can be written into a cell."""
        return min(MOST_INCHES, CELL_INCHES * len(self.rows))


def chosen_levels(shards: Sequence[PathShare]) -> dict[str, list[str]]:
    """Levels that some paths share and others do not, with their modules: those of one module and
    those of a module for each path say nothing about which paths belong together.
    """
    modules: dict[str, dict[str, None]] = {}
    for shard in shards:
        for module in shard.modules:
            modules.setdefault(module.partition("/")[0], {})[module] = None
    return {
        level: sorted(of_level)
        for level, of_level in modules.items()
        if 1 < len(of_level) < len(shards)
    }


def path_grid(shards: Sequence[PathShare]) -> PathGrid:
    """The grid of these paths."""
    levels = chosen_levels(shards)
    if len(levels) == 2:
        (row_name, rows), (column_name, columns) = levels.items()
        places = {
            shard.path: (
                next(rows.index(module) for module in shard.modules if module in rows),
                next(columns.index(module) for module in shard.modules if module in columns),
            )
            for shard in shards
        }
        if len(set(places.values())) == len(shards):
            return PathGrid(places, _experts(rows), _experts(columns), row_name, column_name)
    width = math.ceil(math.sqrt(len(shards)))
    places = {shard.path: divmod(place, width) for place, shard in enumerate(shards)}
    rows = [f"{shard.path}" for shard in shards[::width]]
    columns = [f"+{column}" for column in range(width)]
    return PathGrid(places, rows, columns, "path", "")


def _experts(modules: Sequence[str]) -> list[str]:
    return [str(int(module.partition("/")[2])) for module in modules]


def draw_path_grid(
    axes: "Axes",
    grid: PathGrid,
    values: Mapping[int, float],
    texts: Mapping[int, Sequence[str]],
    size: tuple[float, float],
    vmin: float,
    vmax: float,
) -> "AxesImage":
    """Colours the cell of each path by its value, and writes into it what there is room for.

    Args:
      axes: where it is drawn.
      grid: where each path stands.
      values: by path.
      texts: by path, at most `LINES` of them; each is cut to its cell.
      size: inches of the grid, width and height.
      vmin, vmax: the values of the palest and the darkest colour.
    """
    cells = np.full((len(grid.rows), len(grid.columns)), np.nan)
    for path, place in grid.places.items():
        cells[place] = values[path]
    image = axes.imshow(
        cells, aspect="auto", cmap="Blues", vmin=vmin, vmax=vmax, interpolation="nearest"
    )
    width, height = (
        inches * POINTS_PER_INCH / count
        for inches, count in zip(size, (len(grid.columns), len(grid.rows)), strict=True)
    )
    font = min(FONT_POINTS, 0.8 * height / LINES)
    letters = int(0.94 * width / (LETTER * font))
    if font >= LEAST_POINTS and letters >= LINES * 2:
        dark = vmin + 0.55 * (vmax - vmin)
        for path, (row, column) in grid.places.items():
            axes.text(
                column,
                row,
                "\n".join(_cut(line, letters) for line in texts[path]),
                ha="center",
                va="center",
                fontsize=font,
                linespacing=1.05,
                color="white" if values[path] > dark else INK,
            )
    _label(axes, grid)
    return image


def _label(axes: "Axes", grid: PathGrid) -> None:
    every = [max(1, math.ceil(len(of) / 32)) for of in (grid.rows, grid.columns)]
    axes.set_yticks(range(0, len(grid.rows), every[0]), grid.rows[:: every[0]])
    axes.set_xticks(range(0, len(grid.columns), every[1]), grid.columns[:: every[1]])
    axes.set(ylabel=grid.row_name, xlabel=grid.column_name)
    axes.set_xticks(np.arange(0.5, len(grid.columns) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(grid.rows) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
