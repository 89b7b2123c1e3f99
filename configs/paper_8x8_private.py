"""DiPaCo 8x8 with path-specific parts on C4: 64 paths, each with its own embedding and blocks 0, 5,
6, 11. The paper's perplexity is 12.70.

Cost: as `paper_8x8.py`; four times the parameters in all.
"""

import dataclasses

import paper_8x8

from dipaco.config import RunConfig
from dipaco.topology import PER_PATH, Level, Topology, blocks


def run() -> RunConfig:
    return dataclasses.replace(
        paper_8x8.run(), name="paper_8x8_private", topology=private_grid(8, 8)
    )


def private_grid(early: int, late: int) -> Topology:
    """The paper's 16x16 cut: what touches a level's border belongs to the path alone, final norm
    and head to all.
    """
    return Topology(
        levels=(
            Level(
                name="private",
                parts=("embed", "block_00", "block_05", "block_06", "block_11"),
                experts=PER_PATH,
            ),
            Level(name="early", parts=blocks(1, 4), experts=early),
            Level(name="late", parts=blocks(7, 10), experts=late),
            Level(name="root", parts=("final_norm", "head")),
        )
    )
