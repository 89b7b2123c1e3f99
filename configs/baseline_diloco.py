"""DiLoCo with four replicas at the quickstart's size: all parameters shared, four shards. CPU,
about two minutes.

One shared level, and a level of four experts that owns no part. Without the square root of the
fan-in, as DiLoCo was published. This is what module sharing has to beat: the same paths, shards and
tokens, but one set of parameters.
"""

import dataclasses

import quickstart

from dipaco.config import RunConfig
from dipaco.model.config import part_names
from dipaco.outer.config import OuterSettings
from dipaco.topology import Level, Topology


def run() -> RunConfig:
    base = quickstart.run()
    return dataclasses.replace(
        base,
        name="baseline_diloco",
        topology=Topology(
            levels=(
                Level(name="all", parts=part_names(base.model)),
                Level(name="replica", experts=4),
            )
        ),
        outer=OuterSettings(rescale_by_fan_in=False),
        baselines=(),
    )
