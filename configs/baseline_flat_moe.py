"""Flat mixture of experts with four paths at the quickstart's size: nothing is shared. CPU, about
two minutes.

One level of four experts that owns every part: four times the parameters of a path, where 2x2 has
twice.
"""

import dataclasses

import quickstart

from dipaco.config import RunConfig
from dipaco.model.config import part_names
from dipaco.topology import Level, Topology


def run() -> RunConfig:
    base = quickstart.run()
    return dataclasses.replace(
        base,
        name="baseline_flat_moe",
        topology=Topology(levels=(Level(name="all", parts=part_names(base.model), experts=4),)),
        baselines=(),
    )
