"""How large a dense model paths of 0.48 M parameters equal: 4, 16 and 64 of them beside dense
models of 1, 2, 4, 9 and 18 times a path's size, after equally many steps.

    dipaco ablate configs/ablations/size_factor.py --run runs/size_factor --only "* rate *"
    dipaco ablate configs/ablations/size_factor.py --run runs/size_factor --seeds 0,1,2 --only \\
        "dense 1x rate 0.024" ...

The first command brackets rates with one seed, the second gives the rows at their best rates three
seeds. All rows have the text, base steps, batches and steps of a path of `reproduction.py`, train
with Muon, and are called `WHAT rate RATE`. A dense model has a base model of its own size. WHAT is

  dense Nx         one model of N times a path's size
  lock-step P      P machines that train one model of a path's size in lock-step
  KxK holders      K * K paths, every part shared, rows of the vocabulary by who holds the token
  KxK private      K * K paths with blocks shared, and what touches the vocabulary each path's own

Cost on two cores that have nothing else to do: a row of four paths 4 minutes, of 16 paths 15, of 64
paths an hour; dense 1x one and a half, 9x 15, 18x 30.
"""

import dataclasses

from reproduction import data_parallel, dense, inner, of, private_grid, shared_grid, sized

from dipaco.config import RunConfig
from dipaco.inner.config import InnerSettings
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig

SIZES = {1: (64, 192), 2: (96, 320), 4: (160, 448), 9: (256, 704), 18: (384, 1024)}
RATES = (12e-3, 24e-3, 48e-3)
RATES_OF_LARGER = (1.5e-3, 3e-3, 6e-3, 12e-3)  # the larger the model, the lower its best rate
PHASES, STEPS = 50, 10
MEAN = OuterSettings(learning_rate=1.0, momentum=0.0, rescale_by_fan_in=False)
ROUTING = RoutingConfig(kind="product_kmeans", rule="likelihood")


def sweep() -> dict[str, RunConfig]:
    rows = {}
    for times, (d_model, d_ff) in SIZES.items():
        for rate in RATES if times == 1 else RATES_OF_LARGER:
            rows[f"dense {times}x rate {rate:g}"] = dense(
                model=sized(d_model, d_ff), inner=muon(rate), phases=PHASES
            )
    for rate in RATES:
        for k in (2, 4):
            rows[f"lock-step {k * k} rate {rate:g}"] = data_parallel(
                k, inner=muon(rate), phases=PHASES
            )
        for k in (2, 4, 8):
            rows[f"{k}x{k} holders rate {rate:g}"] = paths(k, rate, private=False)
            rows[f"{k}x{k} private rate {rate:g}"] = paths(k, rate, private=True)
    return {name: at_its_end(row) for name, row in rows.items()}


def paths(k: int, rate: float, *, private: bool) -> RunConfig:
    outer = dataclasses.replace(MEAN, vocabulary_rows="documents" if private else "holders")
    grid = private_grid(k) if private else shared_grid(k)
    return of(grid, inner=muon(rate), outer=outer, phases=PHASES, routing=ROUTING)


def muon(rate: float) -> InnerSettings:
    return dataclasses.replace(inner(rate), optimizer="muon", steps=STEPS)


def at_its_end(config: RunConfig) -> RunConfig:
    evaluation = dataclasses.replace(config.evaluation, every_phases=PHASES)
    return dataclasses.replace(config, evaluation=evaluation)
