"""The second half of `dipaco plan --device`: what the compiler says of the programs of a worker."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dipaco.runs.errors import DoesNotFit
from dipaco.runs.forecast.devices import MEASURED_SHARE, Device, DeviceKind, on_devices
from dipaco.runs.forecast.memory import batch_devices, largest_batch, step_flops, worker_memory

if TYPE_CHECKING:
    from dipaco.config import RunConfig
    from dipaco.observe.progress import CompileProgress

MemoryOf = Callable[["RunConfig"], float]

HERE = "here"
STEPS_OF_SEARCH = 4  # two batches, with and without rematerialisation
WIDTHS = (30, 10, 10, 10, 9, 10)  # columns of the table
HEADS = ("program, on each device", "memory", "FLOP", "moved", "use", "seconds")


def estimated_seconds(config: "RunConfig", device: Device) -> tuple[float, str]:
    """The seconds of a step by arithmetic, and their source."""
    mesh = on_devices(config, device.number).mesh
    flops = step_flops(config) / (mesh.num_devices or 1)
    source = f"{MEASURED_SHARE:.0%} of the peak of {device.name}"
    return flops / (MEASURED_SHARE * device.kind.flops), source


def print_needs(config: "RunConfig", name: str, device: Device | None) -> dict[str, Any]:
    """Prints what each device needs, line by line as it is known, and returns it.

    Raises:
      DoesNotFit: the training step needs more memory than a device has.
      ExtraMissing, UnknownDevice, BadMesh: nothing can be compiled for it.
    """
    from dipaco.evaluation.tables import num_bytes
    from dipaco.observe.progress import CompileProgress

    found: dict[str, Any] = {"device": name}
    with CompileProgress() as progress:
        if device is not None and not device.kind.least:
            kind, config = device.kind, on_devices(config, device.number)
            memory_of: MemoryOf = _by_arithmetic
            needed = _by_arithmetic(config)
            print(f"\n{name} by arithmetic: {num_bytes(round(kind.memory))} a device")
        else:
            kind, config, memory_of, rows = _compile(config, name, device, progress)
            found["programs"], needed = rows, next(iter(rows.values()))["memory"]
        found |= {"memory": round(kind.memory), "memory_of_step": needed}
        fitting = found["largest_batch"] = {}
        for again in (False, True):
            most = largest_batch(config, kind.memory, memory_of, rematerialise=again)
            fitting["rematerialised" if again else "plain"] = most
            how = "with `inner.rematerialise`" if again else "in one piece"
            print(f"  rows of a device that fit {how:<28}{most:>10,}", flush=True)
    if needed > kind.memory:
        needs, has = num_bytes(needed), num_bytes(round(kind.memory))
        remedy = _remedy(config, fitting)
        raise DoesNotFit(name=name, needed=needs, memory=has, remedy=remedy)
    return found


def _compile(
    config: "RunConfig", name: str, device: Device | None, progress: "CompileProgress"
) -> tuple[DeviceKind, "RunConfig", MemoryOf, dict[str, Any]]:
    """Prints a row for every program, the training step first.

    Returns:
      what is known of the devices, the config on them, what tells the memory of a step of other
      rows, and the rows.
    """
    from dipaco.evaluation.tables import num_bytes
    from dipaco.plural import counted
    from dipaco.runs.forecast import compiled

    kind, devices = _compiled_for(device)
    config = on_devices(config, len(devices))
    print(f"\nCompiled for {name}: {config.mesh.num_devices} of {len(devices)} devices of ", end="")
    pieces = counted(config.inner.accumulation_steps, "piece")
    print(f"{num_bytes(round(kind.memory))}, a step in {pieces}")
    print(_row(HEADS))
    names, done, rows = compiled.program_names(config), itertools.count(), {}

    def tell(what: str) -> None:
        progress.show(f"compiling {what}", next(done), len(names) + STEPS_OF_SEARCH)

    def memory_of(tried: "RunConfig") -> float:
        tell(f"steps of {tried.inner.batch_size:,} rows")
        return compiled.memory_of_step(tried, devices)

    for program in names:
        tell(program)
        needs = compiled.needs_of(config, devices, program)
        rows[program] = dataclasses.asdict(needs) | _speed(needs, kind)
        print(_row(_cells(program, rows[program])), flush=True)
    return kind, config, memory_of, rows


def _by_arithmetic(config: "RunConfig") -> int:
    return sum(worker_memory(config).values())


def _compiled_for(device: Device | None) -> tuple[DeviceKind, Any]:
    """The kind of the devices, and the devices. None: those of this machine."""
    import jax

    from dipaco.runs.forecast import compiled, step_time

    if device is not None:
        return device.kind, compiled.devices_of(device)
    devices = jax.devices()
    stats = devices[0].memory_stats() or {}
    memory = stats.get("bytes_limit") or step_time.free_memory() or math.inf
    return DeviceKind(memory=memory, flops=0.0, bandwidth=0.0), devices


def _speed(needs: Any, kind: DeviceKind) -> dict[str, float | None]:
    """The least seconds that products and memory allow, and the share of the peak that the model's
    own operations have in them.
    """
    if needs.moved is None:
        return {"seconds": None, "use": None}
    seconds = max(needs.flops / kind.flops, needs.moved / kind.bandwidth)
    return {"seconds": seconds, "use": needs.model_flops / (kind.flops * seconds)}


def _cells(program: str, row: dict[str, Any]) -> tuple[str, ...]:
    from dipaco.evaluation.tables import num_bytes

    def told(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    moved = "" if row["moved"] is None else num_bytes(row["moved"])
    speed = told(row["use"], ".0%"), told(row["seconds"], ".3g")
    return program, num_bytes(row["memory"]), f"{row['flops']:.3g}", moved, *speed


def _row(cells: tuple[str, ...]) -> str:
    first, *others = zip(cells, WIDTHS, strict=True)
    return f"  {first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in others)


def _remedy(config: "RunConfig", fitting: dict[str, int]) -> str:
    def pieces(rows: int) -> int | None:
        """The fewest pieces of a batch of which one has at most so many rows on a device."""
        batch, share = config.inner.batch_size, batch_devices(config)
        found = (n for n in range(1, batch + 1) if batch % (n * share) == 0)
        return next((n for n in found if batch // (n * share) <= rows), None)

    plain, again = pieces(fitting["plain"]), pieces(fitting["rematerialised"])
    ways = [f"`--set inner.accumulation_steps={plain}`"] if plain else []
    if again:
        ways.append(f"`--set inner.rematerialise=true inner.accumulation_steps={again}`")
    if ways:
        return f"It fits with {', or with '.join(ways)}."
    return "Divide it among more devices: `mesh.fsdp`, `mesh.tensor`."
