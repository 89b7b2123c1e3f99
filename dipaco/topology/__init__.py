"""Levels own parts, and a path is one module of each level. Pure Python, no arrays.

The model knows named *parts* (`embed`, `block_00`, ..., `final_norm`, `head`) and nothing of
levels. A *level* owns a set of part names and offers some number of interchangeable *modules* for
them. A *path* picks one module per level, so a path's parameters are a disjoint union of modules.
DiPaCo (arXiv 2403.10616) section 2.3.

| sharing pattern | as levels |
|---|---|
| one dense model | one shared level |
| DiPaCo 2x2 | two levels of 2 experts, as `grid` makes them |
| flat mixture of experts | one level of P experts that owns every part |
| DiLoCo with P replicas | one shared level, and a level of P experts that owns *no* part |
| path-specific parts | a level with one module per path |

`cells.py` divides paths among servers. Nouns: `Level`, `ModuleId`, `Topology`; verbs: `grid`,
`assemble`, `dissect`. Imports `errors` only.
"""

from dipaco.topology.grids import grid
from dipaco.topology.ids import ModuleId
from dipaco.topology.levels import PER_PATH, SHARED, Level, blocks
from dipaco.topology.parts import assemble, dissect
from dipaco.topology.topology import Topology

__all__ = [
    "PER_PATH",
    "SHARED",
    "Level",
    "ModuleId",
    "Topology",
    "assemble",
    "blocks",
    "dissect",
    "grid",
]
