"""Flat mixture of experts with four paths at the quickstart's size: nothing is shared.

CPU, two to three minutes. One module per path owns every part: four times the parameters of a path,
where 2x2 has twice. Documents are routed as in 2x2."""

import dataclasses

import baseline_diloco
import quickstart

from dipaco.config import RunConfig
from dipaco.data.prompts import SampleSettings
from dipaco.topology import PER_PATH


def run() -> RunConfig:
    return dataclasses.replace(
        quickstart.run(),
        name="baseline_flat_moe",
        topology=baseline_diloco.four_paths(experts=PER_PATH),
        samples=SampleSettings(),
        baselines=(),
    )
