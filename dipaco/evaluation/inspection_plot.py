"""The picture of an inspection: shard sizes, and how each module moved from phase to phase.

Colours as in `plots.py`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dipaco.evaluation.plots import COLOURS, DASHES, FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMED_MODULES = 12  # a longer legend would cover the lines


def draw_inspection(inspection: dict[str, Any], file: Path | str) -> None:
    """Writes the picture; the file's ending chooses the format.

    Args:
      inspection: as `dipaco inspect --json` prints it.
      file: the picture.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=(14, 4.4), layout="constrained")
        sizes, norms, cosines = figure.subplots(1, 3)
        _draw_sizes(sizes, inspection["routings"])
        _draw_lines(norms, inspection["modules"], "norm", "norm of the mean outer gradient")
        _draw_lines(cosines, inspection["modules"], "cosine", "mean cosine between its paths")
        cosines.axhline(0, color=INK, linewidth=0.8)
        lines, _ = norms.get_legend_handles_labels()  # modules of one path have no cosine
        if 0 < len(lines) <= MOST_NAMED_MODULES:
            cosines.legend(handles=lines, frameon=False)
        figure.savefig(file, dpi=150)


def _draw_sizes(axes: "Axes", routings: list[dict[str, Any]]) -> None:
    """A group of bars for each path, with a bar for each routing of the documents."""
    from matplotlib.ticker import MaxNLocator

    width = 0.8 / len(routings)
    for number, routing in enumerate(routings):
        places = [path + width * number for path in range(len(routing["documents"]))]
        label = f"routed at phase {routing['phase']}"
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(places, routing["documents"], width, color=colour, label=label)
    axes.set(xlabel="path", ylabel="documents of its shard")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title("Shards", loc="left", fontweight="bold")
    axes.grid(color=FAINT, linewidth=0.6, axis="y")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(routings) > 1:
        axes.legend(frameon=False)


def _draw_lines(axes: "Axes", modules: dict[str, Any], what: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    levels = list(dict.fromkeys(name.partition("/")[0] for name in modules))
    for name, module in modules.items():
        points = [(s["phase"], s[what]) for s in module["steps"] if s[what] is not None]
        if not points:
            continue
        level, _, expert = name.partition("/")
        phases, values = zip(*points, strict=True)
        axes.plot(
            phases,
            values,
            color=COLOURS[levels.index(level) % len(COLOURS)],
            linestyle=DASHES[int(expert) % len(DASHES)],
            marker="o",
            markersize=3,
            label=name,
        )
    axes.set(xlabel="phase", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(what.capitalize(), loc="left", fontweight="bold")
    axes.grid(color=FAINT, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
