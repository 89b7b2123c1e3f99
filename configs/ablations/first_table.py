"""What the quickstart's four paths can make of the same steps: as published, averaged plainly and
by row, and on shards of small models; beside one dense model of a path's size, alone and trained in
lock-step, at three rates.

    dipaco ablate configs/ablations/first_table.py --run runs/first_table --seeds 0,1,2 --jobs 2

Rows are called `WHAT rate RATE`; the rate is also that of the base model, which all rows of a rate
and a seed share. Compare each at its best one. WHAT is one of

  dense          plain AdamW, a path's steps
  data_parallel  the same in lock-step: four machines average gradients at every step
  published      outer rate 0.7, Nesterov momentum 0.9, rows of the vocabulary by documents
  plain          outer rate 1, no momentum, rows of the vocabulary by holders
  small models   the same, and `routing.kind=small_models` instead of product k-means

Cost on two cores: text half a minute, once; a base model 32 s, once for a seed and rate; dense half
a minute, in lock-step a minute and a half, every other row 2: with one seed 25 minutes, with three
an hour and a quarter.
"""

import dataclasses

import published

from dipaco.config import RunConfig
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig

RATES = (3e-3, 6e-3, 12e-3)
PLAIN = OuterSettings(learning_rate=1.0, momentum=0.0, vocabulary_rows="holders")
SMALL_MODELS = RoutingConfig(kind="small_models")


def sweep() -> dict[str, RunConfig]:
    grid = published.grid()
    rows = {
        "dense": published.dense(),
        "data_parallel": published.data_parallel(),
        "published": grid,
        "plain": dataclasses.replace(grid, outer=PLAIN),
        "small models": dataclasses.replace(grid, routing=SMALL_MODELS, outer=PLAIN),
    }
    return {
        f"{name} rate {rate:g}": dataclasses.replace(
            config, inner=dataclasses.replace(config.inner, learning_rate=rate)
        )
        for rate in RATES
        for name, config in rows.items()
    }
