"""What the base model costs a machine where several paths train it, and a whole run's hours."""

import dataclasses
import math

from dipaco.config import RunConfig
from dipaco.evaluation.tables import seconds_over_link
from dipaco.model.config import num_parameters
from dipaco.routing.config import RerouteConfig, RoutingConfig
from dipaco.runs.phase_cost import Circumstances, PhaseCost, phase_cost
from dipaco.runs.snapshot_cost import ADAMW_VALUES, VALUE_BYTES
from dipaco.store.retention import RetentionSettings


def base_cost(config: RunConfig, given: Circumstances) -> PhaseCost | None:
    """Of a phase of the base model where several paths train it, without its inner steps: it has
    the codec and the outer step of the run. None: one path does, or it is not trained.
    """
    base = config.plan.base
    if not base.is_averaged:
        return None
    outer = dataclasses.replace(
        config.outer, delay=0, stagger=False, path_share=1.0, quorum=1.0, synchronous=False
    )
    alike = dataclasses.replace(
        config,
        topology=base.topology,
        phases=base.phases,
        base=dataclasses.replace(config.base, steps=0, paths=1),
        routing=RoutingConfig(prefix_tokens=config.routing.prefix_tokens),
        inner=dataclasses.replace(config.inner, warmup_steps=0, least_steps_share=1.0),
        outer=outer,
        reroute=RerouteConfig(),
        retention=RetentionSettings(),
        baselines=(),
    )
    return phase_cost(alike, given, steps=0)


def run_seconds(config: RunConfig, given: Circumstances, cost: PhaseCost) -> float:
    """Base model, by one machine or one for each of its paths, and all phases of the modular model;
    without preparing the text, routing, baselines and evaluation.
    """
    base = config.plan.base
    saved = (1 + ADAMW_VALUES) * VALUE_BYTES * num_parameters(config.model) * base.phases
    most = math.ceil(base.topology.num_paths / given.workers)  # paths of it, one after another
    saved, base_seconds = most * saved, most * base.total_steps * given.step_seconds
    exchange = base_cost(config, given)
    if exchange is not None:
        base_seconds += base.phases * exchange.seconds
    elif base.total_steps:
        base_seconds = seconds_over_link(base_seconds, saved, given.megabits)
    return base_seconds + config.phases * cost.seconds


def base_bytes(config: RunConfig, given: Circumstances) -> int:
    """Of one of the machines that train the base model, where they exchange something for it."""
    exchange = base_cost(config, given)
    phases = config.plan.base.phases
    return 0 if exchange is None else round(phases * sum(exchange.bytes_per_machine))
