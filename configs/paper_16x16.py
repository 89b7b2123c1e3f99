"""DiPaCo 16x16 with path-specific parts on C4: 256 paths, 289 modules. The paper's best: perplexity
12.39, against 11.41 of a dense 1.3 B model.

With overlapping shards (n = 2), path-specific parts, one alternation of discriminative routing, and
early stopping. The paper does not say when it alternates and how much it holds out.

Cost: 256 paths of 64,000 steps, each the size of `paper_2x4.py`'s.
"""

import dataclasses

import paper_8x8_private

from dipaco.config import RunConfig
from dipaco.routing.config import RerouteConfig


def run() -> RunConfig:
    base = paper_8x8_private.run()
    return dataclasses.replace(
        base,
        name="paper_16x16",
        topology=paper_8x8_private.private_grid(16, 16),
        routing=dataclasses.replace(base.routing, overlap=2, alternations=(200,)),
        inner=dataclasses.replace(base.inner, hold_out=0.005),
        reroute=RerouteConfig(every=(16, 32, 64, 128)),
    )
