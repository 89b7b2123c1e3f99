"""Muon or AdamW inside a path, how outer steps move a module, how often paths meet, and in how many
bits: the quickstart's four paths and as many steps in all, beside one dense model and lock-step.

    dipaco ablate configs/ablations/muon.py --run runs/muon

Rows are called `WHAT INNER RATE OUTER PHASESxSTEPS CODEC`, without what is the commonest: `mean`
(outer rate 1, no momentum, no root of the fan-in), 20 phases of 5 steps, float32. `root` keeps the
root of the fan-in (as published), `nesterov 0.9` is DiLoCo's outer step (rate 0.7), `nesterov 0.5`
what Muon is used with elsewhere. In `2x2 private` what touches the vocabulary is each path's own.
The rate is also that of the base model.

Cost on two cores that have nothing else to do: a base model half a minute, once for a seed, an
optimiser and a rate; dense half a minute, every other row two to three.
"""

import dataclasses

import published

from dipaco.config import RunConfig
from dipaco.outer.config import OuterSettings
from dipaco.topology import PER_PATH, Level, Topology, blocks

MEAN = OuterSettings(
    learning_rate=1.0, momentum=0.0, rescale_by_fan_in=False, vocabulary_rows="holders"
)
OUTERS = {
    "mean": MEAN,
    "root": dataclasses.replace(MEAN, rescale_by_fan_in=True),
    "nesterov 0.9": dataclasses.replace(MEAN, learning_rate=0.7, momentum=0.9),
    "nesterov 0.5": dataclasses.replace(MEAN, learning_rate=0.7, momentum=0.5),
}
INNERS = {"muon": (12e-3, 24e-3, 48e-3), "adamw": (3e-3, 6e-3, 12e-3)}
BEST = {"muon": 24e-3, "adamw": 6e-3}
STEPS = 100
PRIVATE = Topology(
    levels=(
        Level(name="own", parts=("embed", "final_norm", "head"), experts=PER_PATH),
        Level(name="early", parts=blocks(0, 1), experts=2),
        Level(name="late", parts=blocks(2, 3), experts=2),
    )
)


def sweep() -> dict[str, RunConfig]:
    rows = {}
    for inner, rates in INNERS.items():
        for rate in rates:
            rows[f"dense {inner} {rate:g}"] = trained(published.dense(), inner, rate, 5)
            rows[f"data_parallel {inner} {rate:g}"] = trained(
                published.data_parallel(), inner, rate, 5
            )
            rows[f"2x2 {inner} {rate:g}"] = paths(inner, rate)
    for inner, rate in BEST.items():
        for phases in (5, 20):
            for outer in OUTERS:
                if (outer, phases) != ("mean", 20):
                    name = f"2x2 {inner} {rate:g} {outer} {phases}x{STEPS // phases}"
                    rows[name] = paths(inner, rate, outer, phases)
    for outer in ("mean", "nesterov 0.9", "nesterov 0.5"):
        diloco = dataclasses.replace(published.diloco(), outer=OUTERS[outer])
        rows[f"diloco muon {BEST['muon']:g} {outer}"] = trained(diloco, "muon", BEST["muon"], 20)
    for inner, rate in BEST.items():
        private = dataclasses.replace(paths(inner, rate), topology=PRIVATE)
        rows[f"2x2 private {inner} {rate:g}"] = private
    for codec in ("int4", "int2"):
        of_codec = dataclasses.replace(MEAN, codec=codec)
        row = dataclasses.replace(paths("muon", BEST["muon"]), outer=of_codec)
        rows[f"2x2 muon {BEST['muon']:g} {codec}"] = row
    return rows


def paths(inner: str, rate: float, outer: str = "mean", phases: int = 20) -> RunConfig:
    grid = published.grid()
    routing = dataclasses.replace(grid.routing, rule="likelihood")
    settings = dataclasses.replace(grid, outer=OUTERS[outer], routing=routing)
    return trained(settings, inner, rate, phases)


def trained(config: RunConfig, inner: str, rate: float, phases: int) -> RunConfig:
    settings = dataclasses.replace(
        config.inner, optimizer=inner, learning_rate=rate, steps=STEPS // phases
    )
    every = dataclasses.replace(config.evaluation, every_phases=phases)
    return dataclasses.replace(config, phases=phases, inner=settings, evaluation=every)
