"""What is shared by four paths: everything (DiLoCo), modules (2x2, with and without private parts),
nothing (flat mixture of experts); and one dense model of a path's size.

    dipaco ablate configs/ablations/sharing.py --run runs/sharing --seeds 0,1,2 --jobs 2

Same text, base model, router, shards, steps and tokens; the rows differ in their topology and in
nothing else, but that `dense` has the tokens of one path and DiLoCo no square root of the fan-in,
as it was published. The paper's order: dense, DiLoCo, 2x2, 2x2 private, flat.

Cost on two cores: text half a minute, once; a base model 32 s, once a seed; dense 0.5 minutes a
seed, every other row 1.8 (100 steps of four paths, routing, evaluation). With three seeds 24
minutes of work one after another.
"""

import dataclasses

import published

from dipaco.config import RunConfig
from dipaco.topology import PER_PATH, Level, Topology, blocks


def sweep() -> dict[str, RunConfig]:
    return {
        "dense": published.dense(),
        "diloco": published.diloco(),
        "2x2": published.grid(),
        "2x2 private": dataclasses.replace(published.grid(), topology=private()),
        "flat": published.flat(),
    }


def private() -> Topology:
    """2x2, where what touches the vocabulary is each path's own: the paper's cut at this depth."""
    return Topology(
        levels=(
            Level(name="own", parts=("embed", "final_norm", "head"), experts=PER_PATH),
            Level(name="early", parts=blocks(0, 1), experts=2),
            Level(name="late", parts=blocks(2, 3), experts=2),
        )
    )
