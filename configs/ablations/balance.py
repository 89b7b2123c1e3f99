"""How crowded a path may get: shards as the features have them, or held within bounds (SmallTalk
LM, arXiv 2410.03529), for 2x2 by product k-means and by plain k-means.

    dipaco ablate configs/ablations/balance.py --run runs/balance --seeds 0,1,2 --jobs 2

The rows share text, base model, steps and tokens; they differ in which documents each path has. The
DiLoCo row has those of the first row, and the table says whose differ from it in that too.
Features that are not normalised are the paper's words taken literally. A path that gets no document
at all is refused (`EmptyShard`) and the row named: that is a result, too.

Cost on two cores: a base model 32 s, once a seed; each of the eight rows 1.8 minutes. With three
seeds 45 minutes of work one after another.
"""

import dataclasses
from typing import Any

import published

from dipaco.config import RunConfig


def sweep() -> dict[str, RunConfig]:
    grid = published.grid()
    unbound = {"capacity": None, "floor": 0.0}
    return {
        "product": grid,
        "diloco": published.diloco(),
        "product tight": routed(grid, capacity=1.05, floor=0.9),
        "product unbound": routed(grid, **unbound),
        "product unbound raw": routed(grid, **unbound, normalise="none"),
        "k-means": routed(grid, kind="kmeans"),
        "k-means tight": routed(grid, kind="kmeans", capacity=1.05, floor=0.9),
        "k-means unbound": routed(grid, kind="kmeans", **unbound),
    }


def routed(config: RunConfig, **changes: Any) -> RunConfig:
    """The same with another router."""
    return dataclasses.replace(config, routing=dataclasses.replace(config.routing, **changes))
