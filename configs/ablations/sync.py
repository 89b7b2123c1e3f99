"""Outer steps every 20 inner steps (DiLoCo-style), or gradients averaged per module at every step
(DiPaCo section 4.5), at the quickstart's size.

    dipaco ablate configs/ablations/sync.py --run runs/sync --seeds 0,1,2 --jobs 2

Same text, base model, router, shards, steps and tokens. Synchronous training sends as many bytes at
every step as the other does in a phase. The paper: outer steps are better by 0.3 at 2x2 and by 0.6
at 4x4, worse by 0.1 at 8x8. Here 2x2, and the two limits of sharing: DiLoCo against one model with
the batches of all paths together, and a flat mixture, where nothing is averaged and the outer
momentum is all that differs.

Cost on two cores: a base model 32 s, once a seed; each of the six rows 1.8 minutes. With three
seeds 34 minutes of work one after another.
"""

import dataclasses

import published

from dipaco.config import RunConfig
from dipaco.outer.config import OuterSettings


def sweep() -> dict[str, RunConfig]:
    grid = published.grid()
    diloco, flat = published.diloco(), published.flat()
    return {
        "diloco": diloco,
        "diloco synchronous": synchronous(diloco),
        "2x2": grid,
        "2x2 synchronous": synchronous(grid),
        "flat": flat,
        "flat synchronous": synchronous(flat),
    }


def synchronous(config: RunConfig) -> RunConfig:
    """The same with gradients averaged at every step."""
    return dataclasses.replace(config, outer=OuterSettings(synchronous=True))
