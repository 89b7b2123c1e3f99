"""The outer step of 2x2, one choice at a time: the square root of the fan-in, weights by documents,
rate and momentum (DiPaCo section 2.7).

    dipaco ablate configs/ablations/outer.py --run runs/outer --seeds 0,1,2 --jobs 2

The rows share text, base model, router and shards, steps and tokens, and send the same bytes. With
rate 1 and no momentum a module becomes the mean of what its paths made of it: plain parameter
averaging. DiLoCo stands beside them because its outer step has no square root.

Cost on two cores: a base model 32 s, once a seed; each of the eight rows 1.8 minutes. With three
seeds 45 minutes of work one after another.
"""

import dataclasses
from typing import Any

import published

from dipaco.config import RunConfig


def sweep() -> dict[str, RunConfig]:
    return {
        "published": outer(),
        "diloco": published.diloco(),
        "no sqrt of fan-in": outer(rescale_by_fan_in=False),
        "equal weights": outer(weigh_by_documents=False),
        "neither": outer(rescale_by_fan_in=False, weigh_by_documents=False),
        "no momentum": outer(momentum=0.0),
        "rate 0.35": outer(learning_rate=0.35),
        "plain mean": outer(learning_rate=1.0, momentum=0.0, rescale_by_fan_in=False),
    }


def outer(**changes: Any) -> RunConfig:
    """The published 2x2 with another outer step."""
    config = published.grid()
    changed = dataclasses.replace(config.outer, **changes)
    return dataclasses.replace(config, outer=changed)
