"""One dense model of the quickstart's size, as a run of one path. CPU, about a minute and a half.

The outer step with rate 1 and no momentum leaves the parameters as the inner steps made them.
Reaches the perplexity of the quickstart's row `dense`, up to the order of its rows.
"""

import dataclasses

import quickstart

from dipaco.config import RunConfig
from dipaco.data.prompts import SampleSettings
from dipaco.model.config import part_names
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.topology import Level, Topology


def run() -> RunConfig:
    base = quickstart.run()
    return dataclasses.replace(
        base,
        name="baseline_dense",
        topology=Topology(levels=(Level(name="all", parts=part_names(base.model)),)),
        routing=RoutingConfig(),  # one path: a product of choices has nothing to offer
        outer=OuterSettings(learning_rate=1.0, momentum=0.0),
        samples=SampleSettings(),
        baselines=(),
    )
