"""Grids, written as `2x3`: levels with so many modules each, over which the model's blocks are
spread.
"""

import itertools
import math
import re
from collections.abc import Sequence

from dipaco.topology.levels import Level
from dipaco.topology.topology import Topology

MOST_PATHS = 100_000  # a larger number is a typing error


def experts_of(text: str) -> tuple[int, ...] | None:
    """`2x3` -> (2, 3); None where it is written otherwise, a number is 0, or paths are too many."""
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6})*", text):
        return None
    experts = tuple(int(number) for number in text.split("x"))
    return experts if 1 <= math.prod(experts) <= MOST_PATHS else None


def num_blocks(part_names: Sequence[str]) -> int:
    """How many of the model's parts are blocks: a grid has at most as many levels."""
    return sum(_is_block(part) for part in part_names)


def grid(part_names: Sequence[str], experts: Sequence[int]) -> Topology:
    """A level for each number of `experts`, each with as many blocks as the others, within one.

    What is below the blocks goes with the first level, what is above them with the last: the cut of
    DiPaCo section 4.

    Args:
      part_names: of the model, in the order in which a token passes them.
      experts: modules of each level, at most as many levels as there are blocks.
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
    """`all`, or `early` and `late` with what is between them."""
    if number == 1:
        return ("all",)
    between = [f"middle_{index}" for index in range(1, number - 1)]
    return ("early", *(["middle"] if number == 3 else between), "late")


def _is_block(part: str) -> bool:
    return part.startswith("block_")
