"""Where the domains went: a heat map of domains by paths, or, of many paths, by their modules.

With few paths every cell has its number. With many, a domain is a row over the modules of each
level that offers a choice, and the paths are drawn as a grid below, each with its leading domain.
Where there are many domains, the smaller ones share a row.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dipaco.evaluation.path_grid import chosen_levels, draw_path_grid, path_grid
from dipaco.evaluation.path_strip import MOST_PATHS, draw_strip, in_thousands
from dipaco.evaluation.style import INK, SOFT
from dipaco.evaluation.tables import PathShare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dipaco.evaluation.path_strip import Strip

TITLE = "Where the domains went"
MOST_WRITTEN_PATHS = 16  # numbers in the cells of more paths would overlap
MOST_DOMAINS = 32  # have rows of their own
MOST_MODULES = 64  # columns of more are too narrow for their numbers
MOST_NUMBERED = 36  # of them every one has its number
ROW_INCHES = 0.27
GAP = 1  # columns between two levels


class DomainTable(NamedTuple):
    """Documents of D domains on P paths, the rows that are drawn."""

    names: list[str]  # with how many documents there are
    counts_DP: np.ndarray


def domain_table(shards: Sequence[PathShare]) -> DomainTable:
    """Domains that went to the same path are neighbours, and form visible blocks. All but the
    `MOST_DOMAINS` largest, if there are more, are one row, the last.
    """
    domains = sorted({domain for shard in shards for domain in shard.domains})
    counts = np.array([[shard.domains.get(name, 0) for shard in shards] for name in domains])
    rest = np.zeros((0, len(shards)), counts.dtype)
    if len(domains) > MOST_DOMAINS:
        largest = np.argsort(-counts.sum(axis=1), kind="stable")
        shown = np.sort(largest[: MOST_DOMAINS - 1])
        rest = counts[largest[MOST_DOMAINS - 1 :]].sum(axis=0, keepdims=True)
        num_rest = len(domains) - len(shown)
        domains, counts = [domains[k] for k in shown], counts[shown]
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-share.max(axis=1), share.argmax(axis=1)))
    names = [f"{domains[k]}  {counts[k].sum():,}" for k in order]
    if len(rest):
        names.append(f"{num_rest} more domains  {rest.sum():,}")
    return DomainTable(names, np.concatenate([counts[order], rest]))


def is_grid(shards: Sequence[PathShare]) -> bool:
    """Whether there are too many paths for a column each."""
    return len(shards) > MOST_PATHS


def table_height(shards: Sequence[PathShare]) -> float:
    """The inches of the heat map."""
    domains = {domain for shard in shards for domain in shard.domains}
    return ROW_INCHES * min(len(domains), MOST_DOMAINS)


def draw_domains_by_path(heat: "Axes", under: "Axes", shards: Sequence[PathShare]) -> "Strip":
    """A heat map of domains by paths, and under each path its documents and modules.

    With few paths: the share of each domain's documents that every path got. With more, these
    shares would be too small to see; then the share of every domain in each path's documents, with
    paths of one domain side by side.
    """
    names, count = domain_table(shards)
    paths = list(range(len(shards)))
    if len(paths) <= MOST_WRITTEN_PATHS:
        share, whole = count / np.maximum(count.sum(axis=1, keepdims=True), 1), "domain"
        for row, column in np.argwhere(share >= 0.005):
            percent = round(100 * float(share[row, column]))
            colour = "white" if percent > 55 else INK
            heat.text(column, row, f"{percent}", ha="center", va="center", color=colour)
    else:
        by_path = count / np.maximum(count.sum(axis=0), 1)
        paths = np.lexsort((-by_path.max(axis=0), by_path.argmax(axis=0))).tolist()
        share, whole = by_path[:, paths], "path"
    _draw_heat(heat, [heat, under], names, share, 1.0, f"share of the {whole}'s documents")
    return draw_strip(under, [shards[path] for path in paths])


def draw_domains_by_module(axes: "Axes", shards: Sequence[PathShare]) -> bool:
    """A heat map of domains by the modules that their documents train, level beside level; False,
    with nothing drawn, where no level offers a choice or there are too many modules.
    """
    levels = chosen_levels(shards)
    if not levels or sum(map(len, levels.values())) > MOST_MODULES:
        return False
    names, count_DP = domain_table(shards)
    columns: list[np.ndarray] = []
    ticks: dict[float, str] = {}
    for level, modules in levels.items():
        if columns:
            columns += [np.full(len(names), np.nan)] * GAP
        first = len(columns)
        for module in modules:
            ticks[len(columns)] = str(int(module.partition("/")[2]))
            own = [module in shard.modules for shard in shards]
            columns.append(count_DP[:, own].sum(axis=1) / np.maximum(count_DP.sum(axis=1), 1))
        axes.annotate(
            f"modules of {level}",
            ((first + len(columns) - 1) / 2, 0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -26),
            textcoords="offset points",
            ha="center",
            va="center",
        )
    share = np.stack(columns, axis=1)
    most = float(np.nanmax(share))
    _draw_heat(axes, [axes], names, share, most or 1.0, "share of the domain's documents")
    every = 1 if len(ticks) <= MOST_NUMBERED else 4
    size = 9 if len(ticks) <= MOST_NUMBERED / 2 else 6
    axes.set_xticks(list(ticks)[::every], list(ticks.values())[::every], fontsize=size)
    return True


def draw_leading_domains(axes: "Axes", shards: Sequence[PathShare], width: float) -> None:
    """The paths as a grid: the leading domain of each, and how many documents it has.

    Args:
      axes: where it is drawn.
      shards: of the paths.
      width: inches of the grid.
    """
    grid, shares, texts = path_grid(shards), {}, {}
    for shard in shards:
        leading = max(shard.domains, key=lambda name: shard.domains[name], default="")
        total = max(sum(shard.domains.values()), 1)
        shares[shard.path] = shard.domains.get(leading, 0) / total
        texts[shard.path] = (
            leading or "no text",
            f"{shares[shard.path]:.0%} of {in_thousands(shard.documents)}",
        )
    image = draw_path_grid(axes, grid, shares, texts, (width, grid.height), 0.0, 1.0)
    title = "Paths: the leading domain of each, and its share of the path's documents"
    axes.set_title(title, loc="left", fontweight="bold")
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, fraction=0.04, format="{x:.0%}")
    bar.set_label("share of the leading domain", color=INK)
    bar.outline.set_visible(False)


def say_nothing_was_routed(axes: "Axes") -> None:
    """In place of a heat map."""
    axes.set_title(TITLE, loc="left", fontweight="bold")
    axes.set_axis_off()
    axes.text(0.5, 0.5, "nothing was routed", ha="center", color=SOFT, transform=axes.transAxes)


def _draw_heat(
    heat: "Axes",
    panels: "list[Axes]",
    names: Sequence[str],
    share: np.ndarray,
    most: float,
    label: str,
) -> None:
    heat.set_title(TITLE, loc="left", fontweight="bold")
    image = heat.imshow(
        share, aspect="auto", cmap="Blues", vmin=0, vmax=most, interpolation="nearest"
    )
    heat.set_xticks([])
    heat.set_yticks(range(len(names)), names)
    heat.tick_params(length=0)
    heat.spines[:].set_visible(False)
    bar = heat.figure.colorbar(image, ax=panels, pad=0.015, fraction=0.04, format="{x:.0%}")
    bar.set_label(label, color=INK)
    bar.outline.set_visible(False)
