"""What a run will need, as `dipaco plan` says it: memory, bytes, hours, and what would change
them.
"""

import dataclasses
from typing import Any

from dipaco.config import MODULAR, RunConfig
from dipaco.model.config import num_parameters
from dipaco.outer.config import CODECS
from dipaco.runs.base_cost import base_bytes, run_seconds
from dipaco.runs.phase_cost import (
    Circumstances,
    PhaseCost,
    codec_for,
    lock_step_cost,
    machines_at_work,
    module_parameters,
    most_paths,
    phase_cost,
    steps_beside_training,
    token_bytes,
)
from dipaco.runs.worker_memory import step_memory, worker_memory

LONGER = (1, 2, 5, 10)  # times the inner steps of a phase
GOAL = 0.95  # share of the time in computing
HOUR_SECONDS = 3600.0


def forecast(
    config: RunConfig,
    *,
    workers: int | None = None,
    megabits: float | None = None,
    store_megabits: float | None = None,
    step_seconds: float | None = None,
    steps_elsewhere: bool = False,
) -> dict[str, Any]:
    """A JSON object.

    Args:
      config: of the run.
      workers: machines; None = one for each path of a phase.
      megabits: a second, of every machine's link; None = the first of `report.link_megabits`.
      store_megabits: of the link of bucket and database; None = never the bottleneck.
      step_seconds: of an inner step; None = not known, and so are hours and shares.
      steps_elsewhere: modules are stepped by executors beside the bucket.
    """
    paths = len(config.plan.arm(MODULAR).paths_in(0))
    workers = paths if workers is None else workers
    memory, sizes = worker_memory(config), module_parameters(config)
    given = Circumstances(
        workers=workers,
        megabits=config.report.link_megabits[0] if megabits is None else megabits,
        step_seconds=step_seconds or 0.0,
        store_megabits=store_megabits,
        steps_elsewhere=steps_elsewhere,
    )
    return {
        "name": config.name,
        "paths": config.num_paths,
        "paths_in_a_phase": paths,
        "modules": len(sizes),
        "parameters_per_path": num_parameters(config.model),
        "parameters_total": sum(sizes.values()),
        "workers": workers,
        "machines_at_work": machines_at_work(config, workers),
        "megabits": given.megabits,
        "store_megabits": store_megabits,
        "phases": config.phases,
        "steps": config.inner.steps,
        "codec": config.outer.codec,
        "delay": config.outer.delay,
        "delay_hides_transfers": config.outer.delay > 0 and steps_beside_training(config, given),
        "step_seconds": step_seconds,
        "memory": memory,
        "memory_bytes": sum(memory.values()),
        "memory_of_outer_step_bytes": step_memory(config),
        "token_bytes_once": token_bytes(config),
        **_of_phases(config, given, is_timed=step_seconds is not None),
    }


def _of_phases(config: RunConfig, given: Circumstances, *, is_timed: bool) -> dict[str, Any]:
    """Of the config as it is, of what it could be, and of lock-step."""
    cost, lock_step = phase_cost(config, given), lock_step_cost(config, given)
    is_synchronous = config.plan.arm(MODULAR).is_synchronous
    of_base = base_bytes(config, given)

    def shares(cost: PhaseCost, longer: int = 1) -> dict[str, float | None]:
        """Hours are of the same inner steps in all."""
        hours = cost.seconds * config.phases / longer / HOUR_SECONDS
        return {
            "computing": cost.computing if is_timed else None,
            "hours": hours if is_timed else None,
        }

    return {
        "bytes_of_a_phase": {
            kind: {"down": round(each.down), "up": round(each.up)}
            for kind, each in cost.traffic.items()
        },
        "bytes_down": round(cost.bytes_per_machine.down),
        "bytes_up": round(cost.bytes_per_machine.up),
        "base_bytes": of_base,
        "run_bytes": of_base + round(config.phases * sum(cost.bytes_per_machine)),
        "transfer_seconds": cost.transfer_seconds,
        "computing_seconds": cost.computing_seconds if is_timed else None,
        "phase_seconds": cost.seconds if is_timed else None,
        "computing": cost.computing if is_timed else None,
        "run_hours": run_seconds(config, given, cost) / HOUR_SECONDS if is_timed else None,
        "baseline_hours": _baseline_hours(config, given) if is_timed else None,
        "step_seconds_for_goal": _step_seconds_for_goal(config, given, cost),
        "codecs": [
            {
                "codec": name,
                "bits": codec_for(config, name).bits_per_value,
                "steps": longer * config.inner.steps,
                **shares(
                    phase_cost(config, given, steps=longer * config.inner.steps, codec_name=name),
                    longer,
                ),
            }
            for name in (() if is_synchronous else CODECS)
            for longer in LONGER
        ],
        "lock_step": {
            "bytes_of_a_phase": round(sum(lock_step.bytes_per_machine)),
            "transfer_seconds": lock_step.transfer_seconds,
            **shares(lock_step),
        },
    }


def _step_seconds_for_goal(config: RunConfig, given: Circumstances, cost: PhaseCost) -> float:
    """Of a phase whose computing is `GOAL` of the time."""
    steps = config.inner.steps * most_paths(config, given.workers)

    def seconds(cost: PhaseCost) -> float:
        return GOAL / (1 - GOAL) * cost.transfer_seconds / steps

    if config.retention.send_snapshots == "while_training":  # in such steps snapshots have time
        long = dataclasses.replace(given, step_seconds=seconds(cost))
        return seconds(phase_cost(config, long))
    return seconds(cost)


def _baseline_hours(config: RunConfig, given: Circumstances) -> float:
    """Of one machine that trains all of the other arms."""
    steps = sum(arm.path_steps for arm in config.plan.arms[1:])
    return steps * given.step_seconds / HOUR_SECONDS
