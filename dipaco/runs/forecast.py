"""What a run will need, as `dipaco plan` says it: memory, bytes, hours, and what would change
them.
"""

import dataclasses

from dipaco.config import MODULAR, RunConfig
from dipaco.evaluation.tables import seconds_over_link
from dipaco.model.config import num_parameters
from dipaco.outer.config import CODECS, CodecName
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
from dipaco.runs.snapshot_cost import ADAMW_VALUES, VALUE_BYTES
from dipaco.runs.worker_memory import step_memory, worker_memory

LONGER = (1, 2, 5, 10)  # times the inner steps of a phase
GOAL = 0.95  # share of the time in computing
HOUR_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineBytes:
    """That the mean machine transfers in a phase."""

    down: int
    up: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherPhase:
    """What another codec or longer phases would bring."""

    codec: str
    bits: float  # per value
    steps: int  # inner steps of a phase
    computing: float | None
    hours: float | None  # of as many inner steps in all


@dataclasses.dataclass(frozen=True, kw_only=True)
class LockStep:
    """As many machines that average gradients at every step."""

    bytes_of_a_phase: int
    transfer_seconds: float
    computing: float | None
    hours: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run will need; the JSON object of `dipaco plan --json`.

    Where the seconds of an inner step are not known, None stands for whatever depends on them.
    """

    name: str
    paths: int
    paths_in_a_phase: int
    modules: int
    parameters_per_path: int
    parameters_total: int
    workers: int  # machines
    machines_at_work: int  # the others would wait
    megabits: float  # a second, of every machine's link
    store_megabits: float | None  # of the link of bucket and database; None = no bottleneck
    phases: int
    steps: int  # inner steps of a phase
    codec: str
    delay: int  # inner steps
    delay_hides_transfers: bool
    step_seconds: float | None
    memory: dict[str, int]  # what for -> bytes of a worker
    memory_bytes: int
    memory_of_outer_step_bytes: int
    token_bytes_once: int
    bytes_of_a_phase: dict[str, MachineBytes]  # by the kind of bytes
    bytes_down: int  # in a phase, of all kinds
    bytes_up: int
    run_bytes: int  # of a machine
    transfer_seconds: float  # of a phase
    computing_seconds: float | None
    phase_seconds: float | None
    computing: float | None  # share of the time
    run_hours: float | None  # base model included
    baseline_hours: float | None  # of one machine that trains all of the other arms
    step_seconds_for_goal: float
    codecs: list[OtherPhase]
    lock_step: LockStep


def forecast(
    config: RunConfig,
    *,
    workers: int | None = None,
    megabits: float | None = None,
    store_megabits: float | None = None,
    step_seconds: float | None = None,
    steps_elsewhere: bool = False,
) -> Forecast:
    """What a run will need on these machines and links.

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
    is_timed = step_seconds is not None
    cost = phase_cost(config, given)
    return Forecast(
        name=config.name,
        paths=config.num_paths,
        paths_in_a_phase=paths,
        modules=len(sizes),
        parameters_per_path=num_parameters(config.model),
        parameters_total=sum(sizes.values()),
        workers=workers,
        machines_at_work=machines_at_work(config, workers),
        megabits=given.megabits,
        store_megabits=store_megabits,
        phases=config.phases,
        steps=config.inner.steps,
        codec=config.outer.codec,
        delay=config.outer.delay,
        delay_hides_transfers=config.outer.delay > 0 and steps_beside_training(config, given),
        step_seconds=step_seconds,
        memory=memory,
        memory_bytes=sum(memory.values()),
        memory_of_outer_step_bytes=step_memory(config),
        token_bytes_once=token_bytes(config),
        bytes_of_a_phase={
            kind: MachineBytes(down=round(each.down), up=round(each.up))
            for kind, each in cost.traffic.items()
        },
        bytes_down=round(cost.bytes_per_machine.down),
        bytes_up=round(cost.bytes_per_machine.up),
        run_bytes=round(config.phases * sum(cost.bytes_per_machine)),
        transfer_seconds=cost.transfer_seconds,
        computing_seconds=cost.computing_seconds if is_timed else None,
        phase_seconds=cost.seconds if is_timed else None,
        computing=cost.computing if is_timed else None,
        run_hours=run_seconds(config, given, cost) / HOUR_SECONDS if is_timed else None,
        baseline_hours=_baseline_hours(config, given) if is_timed else None,
        step_seconds_for_goal=_step_seconds_for_goal(config, given, cost),
        codecs=_other_phases(config, given, is_timed=is_timed),
        lock_step=_lock_step(config, given, is_timed=is_timed),
    )


def run_seconds(config: RunConfig, given: Circumstances, cost: PhaseCost) -> float:
    """Seconds of the base model, by one machine, and of all phases of the modular model. Preparing
    the text, routing, baselines and evaluation are left out.
    """
    base = config.plan.base
    saved = (1 + ADAMW_VALUES) * VALUE_BYTES * num_parameters(config.model) * base.phases
    base_seconds = base.total_steps * given.step_seconds
    if base.total_steps:
        base_seconds = seconds_over_link(base_seconds, saved, given.megabits)
    return base_seconds + config.phases * cost.seconds


def _other_phases(config: RunConfig, given: Circumstances, *, is_timed: bool) -> list[OtherPhase]:
    """Of every codec and some lengths; none where gradients are averaged at every step."""
    if config.plan.arm(MODULAR).is_synchronous:
        return []
    return [
        _other_phase(config, given, name, longer, is_timed=is_timed)
        for name in CODECS
        for longer in LONGER
    ]


def _other_phase(
    config: RunConfig, given: Circumstances, codec: CodecName, longer: int, *, is_timed: bool
) -> OtherPhase:
    steps = longer * config.inner.steps
    cost = phase_cost(config, given, steps=steps, codec_name=codec)
    return OtherPhase(
        codec=codec,
        bits=codec_for(config, codec).bits_per_value,
        steps=steps,
        computing=cost.computing if is_timed else None,
        hours=_hours(config, cost, longer) if is_timed else None,
    )


def _lock_step(config: RunConfig, given: Circumstances, *, is_timed: bool) -> LockStep:
    cost = lock_step_cost(config, given)
    return LockStep(
        bytes_of_a_phase=round(sum(cost.bytes_per_machine)),
        transfer_seconds=cost.transfer_seconds,
        computing=cost.computing if is_timed else None,
        hours=_hours(config, cost) if is_timed else None,
    )


def _hours(config: RunConfig, cost: PhaseCost, longer: int = 1) -> float:
    """Of the same inner steps in all."""
    return cost.seconds * config.phases / longer / HOUR_SECONDS


def _step_seconds_for_goal(config: RunConfig, given: Circumstances, cost: PhaseCost) -> float:
    """Of a phase whose computing is `GOAL` of the time."""
    steps = config.inner.steps * most_paths(config, given.workers)
    return GOAL / (1 - GOAL) * cost.transfer_seconds / steps


def _baseline_hours(config: RunConfig, given: Circumstances) -> float:
    """Of one machine that trains all of the other arms."""
    steps = sum(arm.path_steps for arm in config.plan.arms[1:])
    return steps * given.step_seconds / HOUR_SECONDS
