"""Which devices of a machine belong to which worker, as the variables that its process starts with.

Eight workers may share eight GPUs, each with its own; or several share one GPU and each takes a
fraction of its memory. What is visible is found without JAX: whoever asked it would hold the
devices.
"""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from dipaco.launch.errors import TooFewDevices

SHARED_MEMORY = 0.9  # of a GPU that several workers share; the rest is for what is not JAX's
TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}  # how chips of a host lie
FAKE_DEVICES = "--xla_force_host_platform_device_count"


class Visible(NamedTuple):
    """The devices that a process would see here."""

    kind: str  # gpu, tpu, cpu
    ids: tuple[str, ...]  # none for CPU, of which there may be as many as somebody asks for


def visible_devices(
    environment: Mapping[str, str] = os.environ, dev: Path = Path("/dev")
) -> Visible:
    """What is on this machine and not hidden by its environment."""
    if environment.get("JAX_PLATFORMS", "").startswith("cpu"):
        return Visible("cpu", ())
    gpus = sorted(dev.glob("nvidia[0-9]*"), key=lambda file: (len(file.name), file.name))
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if gpus and chosen != "":
        ids = chosen.split(",") if chosen else [gpu.name.removeprefix("nvidia") for gpu in gpus]
        return Visible("gpu", tuple(ids))
    tpus = [*dev.glob("accel[0-9]*"), *dev.glob("vfio/[0-9]*")]
    if tpus:
        chosen = environment.get("TPU_VISIBLE_CHIPS")
        ids = chosen.split(",") if chosen else map(str, range(len(tpus)))
        return Visible("tpu", tuple(ids))
    return Visible("cpu", ())


def devices_of(
    visible: Visible,
    each: int | None,
    processes: int,
    memory_fraction: float | None,
    environment: Mapping[str, str] = os.environ,
) -> Callable[[int], dict[str, str]]:
    """A function from the number of a process to its variables.

    Args:
      visible: the devices to be divided.
      each: devices of each process; None = all sees all.
      processes: that are wanted at once.
      memory_fraction: of a GPU, for each process; None = nine tenths of it, divided among the
        processes that share it.
      environment: of this process.

    Raises:
      TooFewDevices: a process cannot have as many.
    """
    if each is None:
        fraction = {} if memory_fraction is None else memory(memory_fraction)
        return lambda process: fraction
    if visible.kind == "cpu":
        return lambda process: fake_cpus(each, environment)
    if each > len(visible.ids):
        raise TooFewDevices(asked=each, there=len(visible.ids), kind=visible.kind.upper())
    places = len(visible.ids) // each
    sharing = math.ceil(processes / places)
    if sharing > 1 and visible.kind == "tpu":
        raise TooFewDevices(asked=processes * each, there=len(visible.ids), kind="TPU")
    if memory_fraction is None and sharing > 1:
        memory_fraction = SHARED_MEMORY / sharing

    def variables(process: int) -> dict[str, str]:
        first = process % places * each
        ids = ",".join(visible.ids[first : first + each])
        if visible.kind == "tpu":
            return {
                "TPU_VISIBLE_CHIPS": ids,
                "TPU_CHIPS_PER_PROCESS_BOUNDS": TPU_BOUNDS.get(each, f"1,{each},1"),
                "TPU_PROCESS_BOUNDS": "1,1,1",
            }
        fraction = {} if memory_fraction is None else memory(memory_fraction)
        return {"CUDA_VISIBLE_DEVICES": ids, **fraction}

    return variables


def memory(fraction: float) -> dict[str, str]:
    """How much of a GPU's memory a process takes at its start."""
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{fraction:.3f}"}


def fake_cpus(count: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """So many CPU devices in one process, whatever the environment said of it."""
    flags = environment.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if not flag.startswith(FAKE_DEVICES)]
    return {"XLA_FLAGS": " ".join([*flags, f"{FAKE_DEVICES}={count}"])}


def use_cpu_only() -> None:
    """For a process that only starts others: JAX takes the memory of every device it sees."""
    import jax

    jax.config.update("jax_platforms", "cpu")
