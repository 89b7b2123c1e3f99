"""Cells: servers that hold some paths of a topology each, and lists of paths as people write them.

The paths of a cell form a box of the grid, so that they share modules: sixteen boxes of a 16x16
grid hold 4 of its 16 modules at either level, where paths dealt out in turn would need nearly all.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from dipaco.topology.topology import Topology


def cells(topology: Topology, number: int, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Divides the paths among a number of cells, at most one for each path.

    The grid is cut in two again and again. Each cut goes through the level of which the box holds
    the most parameters.

    Args:
      sizes: part -> its parameters.

    Returns:
      The paths of each cell, ascending.
    """
    choices = [level for level in topology.levels if level.is_choice]
    weights = [sum(sizes[part] for part in level.parts) for level in choices]

    def cut(box: list[range], number: int) -> list[list[range]]:
        if number == 1:
            return [box]
        can_be_cut = [axis for axis, side in enumerate(box) if len(side) > 1]
        axis = max(can_be_cut, key=lambda axis: (weights[axis] * len(box[axis]), len(box[axis])))
        side = box[axis]
        others = math.prod(map(len, box)) // len(side)  # paths for each module of this side
        middle = min(max(round(len(side) * (number // 2) / number), 1), len(side) - 1)
        left = round(number * middle / len(side))
        # Neither half may get more cells than it has paths.
        left = min(max(left, number - (len(side) - middle) * others, 1), middle * others)
        halves = (side[:middle], left), (side[middle:], number - left)
        return [
            each
            for half, its_number in halves
            for each in cut([*box[:axis], half, *box[axis + 1 :]], its_number)
        ]

    return [
        tuple(sorted(_path(experts, topology.choices) for experts in itertools.product(*box)))
        for box in cut([range(level.experts) for level in choices], number)
    ]


def _path(experts: Sequence[int], choices: Sequence[int]) -> int:
    """The number of the path with these experts, one for each level with a choice."""
    path = 0
    for expert, choice in zip(experts, choices, strict=True):
        path = path * choice + expert
    return path


def listed(paths: Sequence[int]) -> str:
    """Ascending paths in few words: `0-1,16-17`."""
    runs: list[list[int]] = []
    for path in paths:
        if runs and runs[-1][1] == path - 1:
            runs[-1][1] = path
        else:
            runs.append([path, path])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def paths_in(text: str) -> tuple[int, ...]:
    """`0-1,16-17` -> (0, 1, 16, 17), ascending. Raises `ValueError`: it is not such a list."""
    paths: set[int] = set()
    for each in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*", each)
        if found is None or (last := int(found[2] or found[1])) < int(found[1]):
            raise ValueError(f"`{text[:100]}` is not a list of paths such as 0-1,16-17")
        paths.update(range(int(found[1]), last + 1))
    return tuple(sorted(paths))
