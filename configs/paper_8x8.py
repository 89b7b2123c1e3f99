"""DiPaCo 8x8 on C4: 64 paths of 150 M parameters, product k-means. The paper's perplexity is 13.37.

Cost: 64 paths of 64,000 steps, each the size of `paper_2x4.py`'s.
"""

import dataclasses

import paper_2x4

from dipaco.config import RunConfig


def run() -> RunConfig:
    base = paper_2x4.run()
    return dataclasses.replace(
        base,
        name="paper_8x8",
        topology=paper_2x4.grid(8, 8),
        routing=dataclasses.replace(base.routing, kind="product_kmeans"),
    )
