"""How documents find their paths: k-means, product k-means, and discriminative routing from either
(one alternation after 2 of 5 phases), for 2x2 at the quickstart's size (DiPaCo section 2.4).

    dipaco ablate configs/ablations/routing.py --run runs/routing --seeds 0,1,2 --jobs 2

The rows share text, base model, steps and tokens, and differ in which documents each path has; a
DiLoCo row on the shards of product k-means says what the modules bring. The paper at 8x8, steps of
62: k-means 17.2, product k-means 16.8, discriminative 16.5.

Cost on two cores: a base model 32 s, once a seed; each of the five rows 1.8 minutes, an alternation
half a minute more. With three seeds 31 minutes of work one after another.
"""

import dataclasses
from typing import Any

import published

from dipaco.config import RunConfig


def sweep() -> dict[str, RunConfig]:
    return {
        "diloco": published.diloco(),
        "k-means": routed(kind="kmeans"),
        "product k-means": routed(),
        "discriminative from k-means": routed(kind="kmeans", alternations=(2,)),
        "discriminative": routed(alternations=(2,)),
    }


def routed(**changes: Any) -> RunConfig:
    """The published 2x2 with another router."""
    config = published.grid()
    routing = dataclasses.replace(config.routing, **changes)
    return dataclasses.replace(config, routing=routing)
