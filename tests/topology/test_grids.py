"""Grids: what `2x3` makes of a model's parts."""

import pytest

from dipaco.topology import grid
from dipaco.topology.grids import experts_of, num_blocks

PARTS = ("embed", *(f"block_{index:02d}" for index in range(5)), "final_norm", "head")


@pytest.mark.parametrize(
    ("experts", "names", "blocks"),
    [
        ((4,), ["all"], [5]),
        ((2, 3), ["early", "late"], [2, 3]),
        ((2, 2, 2), ["early", "middle", "late"], [1, 2, 2]),
        ((2, 1, 2, 3), ["early", "middle_1", "middle_2", "late"], [1, 1, 1, 2]),
        ((2,) * 5, ["early", "middle_1", "middle_2", "middle_3", "late"], [1] * 5),
    ],
)
def test_blocks_are_spread_over_the_levels_and_every_part_has_its_place(experts, names, blocks):
    topology = grid(PARTS, experts)
    assert [level.name for level in topology.levels] == names
    assert [level.experts for level in topology.levels] == list(experts)
    assert [num_blocks(level.parts) for level in topology.levels] == blocks
    assert tuple(part for level in topology.levels for part in level.parts) == PARTS


def test_a_tied_head_is_no_part():
    assert grid(PARTS[:-1], (2, 2)).levels[-1].parts[-1] == "final_norm"


@pytest.mark.parametrize(
    ("text", "experts"),
    [
        ("2x3", (2, 3)),
        ("4", (4,)),
        ("2x2x2", (2, 2, 2)),
        ("1x4", (1, 4)),
        ("0x2", None),
        ("2x", None),
        ("2X3", None),
        ("-2x3", None),
        ("two", None),
        ("", None),
        ("²x3", None),
        ("1000x1000", None),
        ("999999" + "x999999" * 9, None),
    ],
)
def test_what_is_written(text, experts):
    assert experts_of(text) == experts
