"""Grids, written as `2x3`: two levels of 2 and 3 modules, which share the model's blocks out."""

import itertools
import math
import re
from collections.abc import Sequence

from dipaco.topology.levels import Level
from dipaco.topology.topology import Topology

MOST_PATHS = 100_000  # a larger number is a typing error


def experts_of(text: str) -> tuple[int, ...] | None:
    """`2x3` -> (2, 3), or None if the text is no grid, has a 0, or means too many paths."""
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6})*", text):
        return None
    experts = tuple(int(number) for number in text.split("x"))
    return experts if 1 <= math.prod(experts) <= MOST_PATHS else None


def num_blocks(part_names: Sequence[str]) -> int:
    """Number of blocks among the model's parts. A grid has at most as many levels."""
    return sum(_is_block(part) for part in part_names)


def grid(part_names: Sequence[str], experts: Sequence[int]) -> Topology:
    """One level for each number of `experts`. Their numbers of blocks differ by at most one.

    Parts below the blocks belong to the first level, parts above them to the last, as in DiPaCo
    section 4.

    Args:
      part_names: parts of the model in the order in which a token passes them.
      experts: modules of each level. The model has at least as many blocks as levels.
    """
    blocks = [index for index, part in enumerate(part_names) if _is_block(part)]
    assert 1 <= len(experts) <= len(blocks)
    firsts = [blocks[number * len(blocks) // len(experts)] for number in range(len(experts))]
    bounds = [0, *firsts[1:], len(part_names)]
    return Topology(
        levels=tuple(
            Level(name=name, parts=tuple(part_names[first:end]), experts=count)
            for name, (first, end), count in zip(
                level_names(len(experts)), itertools.pairwise(bounds), experts, strict=True
            )
        )
    )


def level_names(number: int) -> tuple[str, ...]:
    """`all`, or `early` and `late` with the parts between them."""
    if number == 1:
        return ("all",)
    between = [f"middle_{index}" for index in range(1, number - 1)]
    return ("early", *(["middle"] if number == 3 else between), "late")


def _is_block(part: str) -> bool:
    return part.startswith("block_")
