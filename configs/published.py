"""The quickstart's 2x2 with the settings that the paper published: outer rate 0.7 and Nesterov
momentum 0.9, rows of the vocabulary weighed by documents, routing by features. CPU, five minutes.

AdamW inside a path, in phases of twenty steps, at the rate that this outer step wants here.
`dense`, `diloco` and `flat` are what the paper compares it with, at the same rate; the sweeps of
`configs/ablations` begin with these four."""

import dataclasses

import baseline_dense
import baseline_diloco
import baseline_flat_moe
import quickstart

from dipaco.config import RunConfig
from dipaco.data.prompts import SampleSettings
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.store.retention import RetentionSettings


def run() -> RunConfig:
    return _published(quickstart.run(), name="published", outer=OuterSettings())


def grid() -> RunConfig:
    """2x2 alone."""
    return dataclasses.replace(run(), baselines=())


def dense() -> RunConfig:
    return _published(baseline_dense.run())


def data_parallel() -> RunConfig:
    """What four machines make of one model in lock-step."""
    config = diloco()
    return dataclasses.replace(
        config,
        outer=OuterSettings(synchronous=True),
        routing=RoutingConfig(kind="random"),
        evaluation=dataclasses.replace(config.evaluation, best_path=False),
    )


def diloco() -> RunConfig:
    return _published(baseline_diloco.run(), outer=OuterSettings(rescale_by_fan_in=False))


def flat() -> RunConfig:
    return _published(baseline_flat_moe.run(), outer=OuterSettings())


def _published(config: RunConfig, **changes: object) -> RunConfig:
    return dataclasses.replace(
        config,
        phases=5,
        inner=dataclasses.replace(config.inner, optimizer="adamw", steps=20, learning_rate=3e-3),
        evaluation=dataclasses.replace(config.evaluation, every_phases=1),
        retention=RetentionSettings(),
        routing=dataclasses.replace(config.routing, rule="features"),
        samples=SampleSettings(),
        **changes,
    )
