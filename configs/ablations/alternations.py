"""How often documents are routed again by the scores of the paths: 0 to 3 alternations, on a flat
mixture of four experts and on 2x2 (DiPaCo section 2.4.3).

    dipaco ablate configs/ablations/alternations.py --run runs/alternations --seeds 0,1,2 --jobs 2

Each alternation scores every router document under every path, fits a classifier and moves the
documents; the first is after 2 of 5 phases. The paper, flat with 16 experts: 14.0, 13.38, 13.36,
13.25: most of the gain comes with the first. Here paths have taken 40 steps before the first
alternation, and 60 follow.

Cost on two cores: a base model 32 s, once a seed; each of the nine rows 1.8 minutes and half a
minute more for each alternation. With three seeds 70 minutes of work one after another.
"""

import dataclasses

import published

from dipaco.config import RunConfig

AFTER = (2, 3, 4)  # phases


def sweep() -> dict[str, RunConfig]:
    flat = published.flat()
    grid = published.grid()
    rows = {"diloco": published.diloco()}
    for count in range(len(AFTER) + 1):
        rows[f"flat {count}"] = alternating(flat, count)
    for count in range(len(AFTER) + 1):
        rows[f"2x2 {count}"] = alternating(grid, count)
    return rows


def alternating(config: RunConfig, count: int) -> RunConfig:
    """The same with so many alternations."""
    routing = dataclasses.replace(config.routing, alternations=AFTER[:count])
    return dataclasses.replace(config, routing=routing)
