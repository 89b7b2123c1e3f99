"""The needs of a run: memory, bytes, operations, and hours by one formula.

    a phase = steps x seconds of a step x paths of a machine + 8 x bytes / (10^6 x Mbit/s) - hidden
    hours   = (steps of the base model x seconds of a step + phases x a phase) / 3600

The paths are the most that one machine trains. The bytes go over the busiest link: of the
machine that steps the largest module, whose contributions all come to it; of all machines and
executors together, over the bucket's link; or of an executor, one for each module, whose link is as
the bucket's (as a machine's, if that is not given). Hidden is the travel of modules beside
the `outer.delay` steps of a path. The seconds of outer steps, preparation, routing, evaluation,
database queries and the base model's bytes are left out.
"""

import dataclasses
import math
from collections.abc import Mapping

from dipaco.config import DATA_PARALLEL, MODULAR, RunConfig
from dipaco.evaluation.tables import seconds_over_link
from dipaco.model.config import num_parameters
from dipaco.outer.compress import BY_NAME
from dipaco.outer.config import CODECS
from dipaco.runs.forecast.memory import cpu_memory, step_flops, step_memory, worker_memory
from dipaco.runs.forecast.traffic import (
    NOTHING,
    Traffic,
    base_bytes,
    growth_bytes,
    kept_bytes,
    largest_of,
    lock_step_traffic,
    machine_bytes,
    machines_at_work,
    module_parameters,
    steps_bytes,
    token_bytes,
    total,
    traffic_of_a_phase,
)

LONGER = (1, 2, 5, 10)  # The table has phases of so many times the config's inner steps.
HOUR_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
    """Machines and links that a run is planned for.

    Attributes:
      workers: machines, each with one worker.
      megabits: a second, of each machine's link. Nothing goes down while something goes up.
      step_seconds: of an inner step of one path.
      store_megabits: of the link of bucket and database. None: it is never the bottleneck.
      steps_elsewhere: executors beside the bucket step the modules.
    """

    workers: int
    megabits: float
    step_seconds: float
    store_megabits: float | None = None
    steps_elsewhere: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """The terms of a phase's seconds."""

    computing_seconds: float
    transfer_seconds: float
    hidden_seconds: float
    busiest_link: str  # "machine", "bucket", or the module that is stepped behind it
    computing: float  # share of all machines' time that is inner steps

    @property
    def seconds(self) -> float:
        return self.computing_seconds + self.transfer_seconds - self.hidden_seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineBytes:
    """Bytes of the mean machine in a phase."""

    down: int
    up: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherPhase:
    """The same run with another codec, longer phases or lock-step."""

    codec: str
    bits: float  # per value
    steps: int  # inner steps of a phase
    bytes_of_a_phase: int
    computing: float | None
    hours: float | None  # for as many inner steps in all as the run has


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """The needs of a run: the JSON object of `dipaco plan --json`.

    If the seconds of an inner step are not known, None stands for whatever depends on them.
    """

    name: str
    paths: int
    paths_in_a_phase: int
    modules: int
    parameters_per_path: int
    parameters_total: int
    workers: int  # machines
    machines_at_work: int  # The others would wait.
    paths_per_machine: int  # The busiest machine trains so many.
    megabits: float  # a second, of every machine's link
    store_megabits: float | None
    phases: int
    steps: int  # inner steps of a phase
    codec: str
    memory: dict[str, int]  # bytes of a worker, by what they are for
    memory_bytes: int
    memory_on_cpu_bytes: int  # of the process, libraries included
    memory_of_outer_step_bytes: int
    token_bytes_once: int
    bytes_of_a_phase: dict[str, MachineBytes]  # kind -> bytes of the mean machine
    bytes_down: int  # sum over all kinds, of a phase
    bytes_up: int
    base_bytes: int  # A machine's share of what the base model's machine sends.
    run_bytes: int  # down and up in all phases, and that share
    lock_step_run_bytes: int
    kept_bytes: dict[str, int]  # kind -> bytes in the run's bucket or folder
    growth_bytes: int  # of these, a phase
    largest_step: str  # the module
    largest_step_bytes: int  # down and up, over the link behind which it is stepped
    step_flops: int
    run_flops: int  # all paths and the base model
    busiest_link: str  # "machine", "bucket", or the module that is stepped behind it
    transfer_seconds: float  # a phase's bytes over the busiest link
    step_seconds: float | None
    computing_seconds: float | None  # a phase's steps on the busiest machine
    hidden_seconds: float | None
    phase_seconds: float | None
    computing: float | None  # share of the time
    run_hours: float | None  # base model and all phases
    baseline_hours: float | None  # One machine trains all of the other arms.
    codecs: list[OtherPhase]
    lock_step: OtherPhase  # Gradients are averaged at every step.


def forecast(
    config: RunConfig,
    *,
    workers: int | None = None,
    megabits: float | None = None,
    store_megabits: float | None = None,
    step_seconds: float | None = None,
    steps_elsewhere: bool = False,
) -> Forecast:
    """Forecasts a run on these machines and links.

    Args:
      workers: machines. None: one for each path of a phase.
      megabits: a second, of every machine's link. None: the first of `report.link_megabits`.
      store_megabits: of the link of bucket and database. None: it is never the bottleneck.
      step_seconds: of an inner step. None: not known.
      steps_elsewhere: executors beside the bucket step the modules.
    """
    plan, is_timed = config.plan, step_seconds is not None
    arm = plan.arm(MODULAR)
    given = Machines(
        workers=arm.num_at_once if workers is None else workers,
        megabits=config.report.link_megabits[0] if megabits is None else megabits,
        step_seconds=step_seconds or 0.0,
        store_megabits=store_megabits,
        steps_elsewhere=steps_elsewhere,
    )
    traffic = traffic_of_a_phase(config, given.workers, steps_elsewhere=steps_elsewhere)
    of_phase, time = total(traffic.values()), phase_time(config, given, traffic)
    memory, sizes = worker_memory(config), module_parameters(config)
    step, step_bytes = largest_of(
        steps_bytes(config, given.workers, steps_elsewhere=steps_elsewhere)
    )

    def bytes_until(phase: int, arm_name: str = MODULAR) -> int:
        of_base = base_bytes(config)
        elsewhere = given.steps_elsewhere
        return round(
            machine_bytes(
                config, arm_name, phase, of_base, given.workers, steps_elsewhere=elsewhere
            )
        )

    baseline_steps = sum(other.path_steps for other in plan.arms[1:])
    base_seconds = plan.base.total_steps * given.step_seconds
    return Forecast(
        name=config.name,
        paths=config.num_paths,
        paths_in_a_phase=arm.num_at_once,
        modules=len(sizes),
        parameters_per_path=num_parameters(config.model),
        parameters_total=sum(sizes.values()),
        workers=given.workers,
        machines_at_work=machines_at_work(config, given.workers),
        paths_per_machine=paths_per_machine(config, given.workers),
        megabits=given.megabits,
        store_megabits=store_megabits,
        phases=config.phases,
        steps=config.inner.steps,
        codec=config.outer.codec,
        memory=memory,
        memory_bytes=sum(memory.values()),
        memory_on_cpu_bytes=cpu_memory(memory),
        memory_of_outer_step_bytes=step_memory(config),
        token_bytes_once=token_bytes(config),
        bytes_of_a_phase={
            kind: MachineBytes(down=round(each.down), up=round(each.up))
            for kind, each in traffic.items()
        },
        bytes_down=round(of_phase.down),
        bytes_up=round(of_phase.up),
        base_bytes=bytes_until(0),
        run_bytes=bytes_until(config.phases),
        lock_step_run_bytes=bytes_until(config.phases, DATA_PARALLEL),
        kept_bytes=kept_bytes(config),
        growth_bytes=growth_bytes(config),
        largest_step=step,
        largest_step_bytes=round(step_bytes),
        step_flops=step_flops(config),
        run_flops=(plan.base.path_steps + arm.path_steps) * step_flops(config),
        busiest_link=time.busiest_link,
        transfer_seconds=time.transfer_seconds,
        step_seconds=step_seconds,
        computing_seconds=time.computing_seconds if is_timed else None,
        hidden_seconds=time.hidden_seconds if is_timed else None,
        phase_seconds=time.seconds if is_timed else None,
        computing=time.computing if is_timed else None,
        run_hours=(base_seconds + config.phases * time.seconds) / HOUR_SECONDS
        if is_timed
        else None,
        baseline_hours=baseline_steps * given.step_seconds / HOUR_SECONDS if is_timed else None,
        codecs=_other_phases(config, given, is_timed=is_timed),
        lock_step=_other_phase(
            config,
            given,
            lock_step_traffic(config, given.workers, range(config.phases)),
            codec="lock-step",
            bits=32.0,
            is_timed=is_timed,
        ),
    )


def paths_per_machine(config: RunConfig, workers: int) -> int:
    """Paths of the machine that trains most in a phase."""
    return math.ceil(config.plan.arm(MODULAR).num_at_once / machines_at_work(config, workers))


def phase_time(
    config: RunConfig,
    given: Machines,
    traffic: Mapping[str, Traffic],
    longer: int = 1,
    codec_name: str | None = None,
) -> PhaseTime:
    """The formula above, for a phase of `longer` times the config's inner steps."""
    machines, steps = machines_at_work(config, given.workers), longer * config.inner.steps
    computing_seconds = steps * given.step_seconds * paths_per_machine(config, given.workers)
    of_machine = sum(total(traffic.values()))
    links = {"machine": (of_machine, given.megabits)}
    of_bucket = machines * of_machine
    if "gradients" not in traffic:  # averaged at every step, they take no outer steps
        each_step = steps_bytes(
            config, given.workers, steps_elsewhere=given.steps_elsewhere, codec_name=codec_name
        )
        (module, of_largest), of_steps = largest_of(each_step), sum(each_step.values())
        if given.steps_elsewhere:
            of_bucket += of_steps
            links[module] = of_largest, given.store_megabits or given.megabits
        elif of_largest > of_steps / machines:
            links[module] = of_machine - of_steps / machines + of_largest, given.megabits
    if given.store_megabits is not None:
        links["bucket"] = of_bucket, given.store_megabits
    seconds_over = {name: seconds_over_link(0.0, *link) for name, link in links.items()}
    busiest = max(seconds_over, key=lambda name: seconds_over[name])
    transfer_seconds = seconds_over[busiest]
    hidden_seconds = min(_hidden_seconds(config, given, traffic), computing_seconds)
    seconds = computing_seconds + transfer_seconds - hidden_seconds
    trained_seconds = config.plan.arm(MODULAR).num_at_once * steps * given.step_seconds / machines
    return PhaseTime(
        computing_seconds=computing_seconds,
        transfer_seconds=transfer_seconds,
        hidden_seconds=hidden_seconds,
        busiest_link=busiest,
        computing=trained_seconds / seconds if seconds else 1.0,
    )


def _hidden_seconds(config: RunConfig, given: Machines, traffic: Mapping[str, Traffic]) -> float:
    """Seconds in which modules travel beside the `outer.delay` steps of a path, which takes these
    only if executors step the modules meanwhile.
    """
    if not (given.steps_elsewhere and config.outer.delay):
        return 0.0
    of_modules = seconds_over_link(0.0, traffic.get("modules", NOTHING).down, given.megabits)
    return min(config.outer.delay * given.step_seconds, of_modules)


def _other_phases(config: RunConfig, given: Machines, *, is_timed: bool) -> list[OtherPhase]:
    """A row for every codec and length. None if gradients are averaged at every step."""
    if config.plan.arm(MODULAR).is_synchronous:
        return []
    rows = []
    for name in CODECS:
        traffic = traffic_of_a_phase(
            config, given.workers, steps_elsewhere=given.steps_elsewhere, codec_name=name
        )
        bits = BY_NAME[name].bits_per_value
        rows += [
            _other_phase(
                config, given, traffic, codec=name, bits=bits, longer=longer, is_timed=is_timed
            )
            for longer in LONGER
        ]
    return rows


def _other_phase(
    config: RunConfig,
    given: Machines,
    traffic: Mapping[str, Traffic],
    *,
    codec: str,
    bits: float,
    longer: int = 1,
    is_timed: bool,
) -> OtherPhase:
    time = phase_time(config, given, traffic, longer, codec)
    return OtherPhase(
        codec=codec,
        bits=bits,
        steps=longer * config.inner.steps,
        bytes_of_a_phase=round(sum(total(traffic.values()))),
        computing=time.computing if is_timed else None,
        hours=time.seconds * config.phases / longer / HOUR_SECONDS if is_timed else None,
    )
