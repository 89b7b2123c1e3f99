"""DiLoCo with four replicas at the quickstart's size: all parameters shared. CPU, two to three
minutes.

One shared level, and levels that own no part: two of two experts, so that documents are routed as
in 2x2. This is what module sharing has to beat: the same paths, shards and tokens, but one set of
parameters. `published.py` has DiLoCo as it was published."""

import dataclasses

import quickstart

from dipaco.config import RunConfig
from dipaco.data.prompts import SampleSettings
from dipaco.model.config import part_names
from dipaco.topology import SHARED, Level, Topology


def run() -> RunConfig:
    return dataclasses.replace(
        quickstart.run(),
        name="baseline_diloco",
        topology=four_paths(experts=SHARED),
        samples=SampleSettings(),
        baselines=(),
    )


def four_paths(experts: int) -> Topology:
    """Four paths through one level that owns every part."""
    return Topology(
        levels=(
            Level(name="all", parts=part_names(quickstart.run().model), experts=experts),
            Level(name="first", experts=2),
            Level(name="second", experts=2),
        )
    )
