"""What a phase costs a machine: bytes down and up, and how long it computes and transfers.

From the config alone, before anything has run. It follows what workers do, one thing after another:

    modules down -> inner steps -> contributions and snapshot up      (`train`)
    contributions, outer state down -> module and outer state up      (`outer`)

A path stays with its machine, which has its snapshot and its modules as they were; any machine may
step a module. A module that has stepped comes whole, or as the contributions of the other paths,
where these are fewer bytes (`outer.fetch`). The machines work side by side; a phase ends when the
last module has stepped. That may take as long as `outer.delay` steps without holding up a path, if
others than the machines that train step it: these take their late steps first.
Where levels step in turn (`outer.stagger`), a phase is the mean one.
Computing of outer steps, evaluation and questions to the database are left out.
`tools/bench_links.py` compares with what shaped links carry.
"""

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast

from dipaco.config import MODULAR, RunConfig
from dipaco.evaluation.tables import seconds_over_link
from dipaco.model.config import num_parameters, part_parameters
from dipaco.outer.compress import Codec, codec_named
from dipaco.outer.config import CodecName
from dipaco.runs.snapshot_cost import (
    VALUE_BYTES,
    sent_share,
    snapshot_bytes,
)
from dipaco.topology import ModuleId

WORTH = 0.9  # of a whole module; contributions that are more bytes than that are not fetched
KINDS = ("modules", "contributions", "snapshots", "outer states")


class Traffic(NamedTuple):
    """Bytes over a machine's link."""

    down: float
    up: float

    def times(self, factor: float) -> "Traffic":
        return Traffic(factor * self.down, factor * self.up)


NOTHING = Traffic(0.0, 0.0)


def total(traffics: Iterable[Traffic]) -> Traffic:
    """Of all of them."""
    each = list(traffics)
    return Traffic(sum(one.down for one in each), sum(one.up for one in each))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What a run is given.

    Attributes:
      workers: machines, each with one worker. Those beyond one for each path would wait.
      megabits: a second, of each machine's link; nothing goes down while something goes up.
      step_seconds: of an inner step of one path.
      store_megabits: of the link of bucket and database, each way; None = they keep up with all.
      steps_elsewhere: modules are stepped by executors beside the bucket.
    """

    workers: int
    megabits: float
    step_seconds: float
    store_megabits: float | None = None
    steps_elsewhere: bool = False

    def transfer_seconds(self, of_machine: Traffic, of_all: Traffic) -> float:
        """Of what all machines transfer at the same time, this one so much."""
        seconds = seconds_over_link(0.0, sum(of_machine), self.megabits)
        if self.store_megabits is None:
            return seconds
        both = (seconds_over_link(0.0, each, self.store_megabits) for each in of_all)
        return max(seconds, sum(both))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseCost:
    """Of one phase.

    Attributes:
      traffic: kind of bytes -> of the mean machine.
      computing_seconds: of the machine that trains most.
      seconds: from one outer step to the next.
      computing: share of all machines' time that is inner steps.
    """

    traffic: dict[str, Traffic]
    computing_seconds: float
    seconds: float
    computing: float

    @property
    def bytes_per_machine(self) -> Traffic:
        """Of all kinds."""
        return total(self.traffic.values())

    @property
    def transfer_seconds(self) -> float:
        """In which the machine that trains most does not compute."""
        return self.seconds - self.computing_seconds


def machines_at_work(config: RunConfig, workers: int) -> int:
    """Of so many; the others would wait, for there is one task for each path and phase."""
    return min(workers, len(config.plan.arm(MODULAR).paths_in(0)))


def steps_beside_training(config: RunConfig, given: Circumstances) -> bool:
    """Whether modules step while all paths train on: by executors, or machines without a path."""
    return given.steps_elsewhere or given.workers > machines_at_work(config, given.workers)


def most_paths(config: RunConfig, workers: int) -> int:
    """Of the machine that trains most in a phase."""
    paths = len(config.plan.arm(MODULAR).paths_in(0))
    return math.ceil(paths / machines_at_work(config, workers))


def phase_cost(
    config: RunConfig,
    given: Circumstances,
    *,
    steps: int | None = None,
    codec_name: CodecName | None = None,
    phases: Sequence[int] | None = None,
) -> PhaseCost:
    """Of the modular model.

    Args:
      config: of the run.
      given: its machines and links.
      steps: inner steps of a phase; None = the config's.
      codec_name: of contributions; None = the config's.
      phases: whose mean it is; None = of all of the run.
    """
    steps = config.inner.steps if steps is None else steps
    phases = range(config.plan.arm(MODULAR).phases) if phases is None else phases
    if config.plan.arm(MODULAR).is_synchronous:
        return lock_step_cost(config, given, steps=steps)
    paths = len(config.plan.arm(MODULAR).paths_in(0))
    machines = machines_at_work(config, given.workers)
    most = most_paths(config, given.workers)
    codec = codec_for(config, codec_name, phases)
    of_task = _training(config, machines, codec, phases, steps_elsewhere=given.steps_elsewhere)
    of_modules = [] if given.steps_elsewhere else _stepping(config, machines, codec, phases)

    def of_machine(paths_here: float) -> Traffic:
        return total(of_task(paths_here).values())

    computing_seconds = most * steps * given.step_seconds
    # Modules go to machines as these become free: the costliest first comes close.
    loads = [(0.0, machine, NOTHING) for machine in range(machines)]
    for traffic in sorted((total(each.values()) for each in of_modules), key=sum, reverse=True):
        _, machine, load = loads[0]
        load = total((load, traffic))
        heapq.heapreplace(loads, (sum(load), machine, load))
    _, _, most_stepping = max(loads)
    all_stepping = total(load for _, _, load in loads)
    trained = of_task(paths / machines)
    stepping_seconds = given.transfer_seconds(most_stepping, all_stepping)
    fetching_seconds = given.transfer_seconds(
        of_task(most)["modules"], trained["modules"].times(machines)
    )
    # A path takes these steps while its modules step and travel, where a machine is free for that.
    late_seconds = 0.0
    if steps_beside_training(config, given):
        travelling_seconds = stepping_seconds + fetching_seconds
        late_seconds = min(config.outer.delay * given.step_seconds, travelling_seconds)
    seconds = (
        computing_seconds
        + given.transfer_seconds(of_machine(most), of_machine(paths / machines).times(machines))
        + stepping_seconds
        - min(late_seconds, computing_seconds)
    )
    stepped = {kind: total(each[kind] for each in of_modules).times(1 / machines) for kind in KINDS}
    return PhaseCost(
        traffic={kind: total((trained[kind], stepped[kind])) for kind in KINDS},
        computing_seconds=computing_seconds,
        seconds=seconds,
        computing=paths * steps * given.step_seconds / (machines * seconds),
    )


def lock_step_cost(
    config: RunConfig, given: Circumstances, *, steps: int | None = None
) -> PhaseCost:
    """Of as many machines that average gradients at every step of a phase: a gradient up and the
    mean down each time, as float32. (Whatever runs them; here one worker does it for all.)
    """
    steps = config.inner.steps if steps is None else steps
    machines = machines_at_work(config, given.workers)
    size = VALUE_BYTES * num_parameters(config.model)
    traffic = Traffic(size, size).times(steps if machines > 1 else 0)
    computing_seconds = steps * given.step_seconds
    seconds = computing_seconds + given.transfer_seconds(traffic, traffic.times(machines))
    return PhaseCost(
        traffic={"gradients": traffic},
        computing_seconds=computing_seconds,
        seconds=seconds,
        computing=computing_seconds / seconds if seconds else 1.0,
    )


def token_bytes(config: RunConfig) -> int:
    """Of the text that one path trains on, at most: a shard that is read again is fetched once."""
    arm = config.plan.arm(MODULAR)
    of_token = 2 if config.data.vocab_size <= 1 << 16 else 4
    return arm.total_steps * config.inner.batch_size * config.data.length * of_token


def module_parameters(config: RunConfig) -> dict[str, int]:
    """Module -> how many parameters it has."""
    in_part, topology = part_parameters(config.model), config.topology
    return {
        str(module): sum(in_part[part] for part in topology.parts_of(module))
        for module in topology.modules
    }


def codec_for(
    config: RunConfig, name: CodecName | None = None, phases: Sequence[int] | None = None
) -> Codec:
    """The codec of this name with the config's settings; None = the config's. Its bits are those of
    the mean phase, of these or of all.
    """
    name = config.outer.codec if name is None else name
    codec, arm = codec_named(name, config.outer), config.plan.arm(MODULAR)
    if not codec.keeps_own:
        return codec
    phases = range(arm.phases) if phases is None else phases
    whole = _mean(map(arm.sends_all, phases))
    of_all = codec_named(name, config.outer, sends_all=True)

    def leaf_bits(leaf: str, shape: tuple[int, ...]) -> int:
        return round(
            (1 - whole) * codec.leaf_bits(leaf, shape) + whole * of_all.leaf_bits(leaf, shape)
        )

    return codec._replace(leaf_bits=leaf_bits)


def _training(
    config: RunConfig, machines: int, codec: Codec, phases: Sequence[int], *, steps_elsewhere: bool
) -> Callable[[float], dict[str, Traffic]]:
    """Paths that a machine trains in a phase -> kind -> its traffic for that."""
    sizes, arm = module_parameters(config), config.plan.arm(MODULAR)
    snapshot = snapshot_bytes(config, codec) * sent_share(config, phases)
    sent = sum(
        _steps_share(config, module, phases) * _through(config, module) * sizes[str(module)]
        for module in arm.topology.modules
    )
    elsewhere = 1 if steps_elsewhere else 1 - 1 / machines  # the chance that another stepped it
    # What a phase fetches has stepped after the one before; before the first, no machine has any.
    before = [phase - 1 for phase in phases if phase > 0]
    stepped, first = len(before) / len(phases), 1 - len(before) / len(phases)
    fetched = codec_for(config, cast(CodecName, codec.name), before or phases)

    def traffic(paths_here: float) -> dict[str, Traffic]:
        modules = sum(
            _is_here(config, module, paths_here)
            * (
                first * VALUE_BYTES * sizes[str(module)]
                + stepped
                * _steps_share(config, module, before or phases)
                * _fetched_bytes(config, module, sizes[str(module)], fetched, paths_here)
            )
            for module in config.topology.modules
        )
        contributions = paths_here * sent * codec.bits_per_value / 8
        return {
            "modules": Traffic(elsewhere * modules, 0.0),
            "contributions": Traffic(0.0, contributions),
            "snapshots": Traffic(0.0, paths_here * snapshot),
            "outer states": NOTHING,
        }

    return traffic


def _stepping(
    config: RunConfig, machines: int, codec: Codec, phases: Sequence[int]
) -> list[dict[str, Traffic]]:
    """For each module, the traffic of the machine that steps it, by kind."""
    arm, sizes = config.plan.arm(MODULAR), module_parameters(config)
    elsewhere, paths_here = 1 - 1 / machines, len(arm.paths_in(0)) / machines
    costs = []
    for module in arm.topology.modules:
        size = sizes[str(module)]
        sent = _fan_in(config, module) * size * codec.bits_per_value / 8
        state = VALUE_BYTES * size if config.outer.momentum else 0
        whole = VALUE_BYTES * size
        comes_whole = _fetched_bytes(config, module, size, codec, paths_here) == whole
        is_here = _is_here(config, module, paths_here)
        has_state = 0.0 if comes_whole else is_here  # of a machine that computes its steps
        of_step = {
            "modules": Traffic(elsewhere * (1 - is_here) * whole, whole),
            "contributions": Traffic(elsewhere * sent, 0.0),
            "snapshots": NOTHING,
            "outer states": Traffic(elsewhere * (1 - has_state) * state, state),
        }
        share = _steps_share(config, module, phases)
        costs.append({kind: each.times(share) for kind, each in of_step.items()})
    return costs


def _fetched_bytes(
    config: RunConfig, module: ModuleId, size: int, codec: Codec, paths_here: float
) -> float:
    """Of a module after its step: whole, or the messages of the paths of other machines."""
    fan_in, whole = _fan_in(config, module), VALUE_BYTES * size
    if config.outer.fetch == "whole":
        return whole
    own = max(1.0, paths_here * fan_in / len(config.plan.arm(MODULAR).paths_in(0)))
    messages = max(0.0, fan_in - own) * size * codec.bits_per_value / 8
    return messages if messages < WORTH * whole else whole


def _fan_in(config: RunConfig, module: ModuleId) -> float:
    """Paths through a module that take part in a phase, in the mean."""
    arm = config.plan.arm(MODULAR)
    share = len(arm.paths_in(0)) / arm.topology.num_paths
    return share * len(arm.topology.paths_through(module))


def _is_here(config: RunConfig, module: ModuleId, paths_here: float) -> float:
    """The chance that a machine trains a path through the module, of so many paths."""
    through = _through(config, module)
    return 1 - (1 - through) ** paths_here if paths_here > 1 else paths_here * through


def _through(config: RunConfig, module: ModuleId) -> float:
    """The share of the paths that go through a module."""
    return len(config.topology.paths_through(module)) / config.topology.num_paths


def _steps_share(config: RunConfig, module: ModuleId, phases: Sequence[int]) -> float:
    """The share of phases at whose end a module steps: all, unless levels step in turn."""
    arm = config.plan.arm(MODULAR)
    return _mean(arm.steps_after(module, phase) for phase in phases)


def _mean(values: Iterable[float]) -> float:
    each = list(values)
    return sum(each) / len(each)
