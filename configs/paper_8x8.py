"""DiPaCo 8x8 on C4: 64 paths of 150 M parameters, product k-means. The paper's perplexity is 13.37.

Cost: 64 paths of 64,000 steps, each the size of `paper_2x4.py`'s.
"""

import dataclasses

import paper_2x4

from dipaco.config import RunConfig
from dipaco.routing.config import RoutingConfig


def run() -> RunConfig:
    return dataclasses.replace(
        paper_2x4.run(),
        name="paper_8x8",
        topology=paper_2x4.grid(8, 8),
        routing=RoutingConfig(kind="product_kmeans"),
    )
