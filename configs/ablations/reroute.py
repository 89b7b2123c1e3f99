"""Re-routing every W tokens at test time, W = 16, 32, 64, for 2x2 and a flat mixture; targets to
the document's end, or over the next 32 tokens (DiPaCo section 2.4.5 and Table 3).

    dipaco ablate configs/ablations/reroute.py --run runs/reroute --seeds 0,1,2 --jobs 2

Each run gives a row for every W, beside the one that is routed once: NAME_every_16 and so on. The
paper at 16x16: 12.22 routed once, then 11.48, 11.38, 11.31, 11.26 for 128, 64, 32, 16. Documents
are 128 tokens here, of which the first 32 choose the first path, so W = 96 would be routing once.
The router is fine-tuned from the base model for 400 steps (the paper: about 2,000), at ten times
the rate, since the base model is small. It has seen each of its documents dozens of times then and
over-fits them: the router with the lowest loss on the held-out tenth is kept.

Cost on two cores: a base model 32 s, once a seed; each of the four rows 1.8 minutes, the router 1.5
more. With three seeds 40 minutes of work one after another.
"""

import dataclasses

import published

from dipaco.config import RunConfig
from dipaco.routing.config import RerouteConfig


def sweep() -> dict[str, RunConfig]:
    grid = published.grid()
    flat = published.flat()
    return {
        "diloco": published.diloco(),
        "2x2": rerouted(grid),
        "flat": rerouted(flat),
        "flat window 32": rerouted(flat, window=32),
    }


def rerouted(config: RunConfig, window: int | None = None) -> RunConfig:
    """The same, also evaluated with the path chosen again every W tokens."""
    reroute = RerouteConfig(every=(16, 32, 64), window=window, steps=400, learning_rate=1e-3)
    return dataclasses.replace(config, reroute=reroute)
