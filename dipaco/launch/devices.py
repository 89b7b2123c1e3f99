"""Divides the devices of a machine among workers, by environment variables of their processes.

Eight workers may use eight GPUs, one each. Several may share one GPU, each with a fraction of its
memory. The visible devices are found without JAX, which would take them for this process.
"""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from dipaco.launch.errors import TooFewDevices

SHARED_MEMORY = 0.9  # Share of a GPU that several workers divide. The rest is for non-JAX memory.
TPU_BOUNDS = {
    1: "1,1,1",
    2: "1,2,1",
    4: "2,2,1",
    8: "2,4,1",
}  # the grid of chips
# JAX's variable for the memory share, by its present name and its older one. Both at once are an
# error.
MEMORY_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
FAKE_DEVICES = "--xla_force_host_platform_device_count"
JAX_DEVICES = "JAX_NUM_CPU_DEVICES"  # the same count as a variable


class VisibleDevices(NamedTuple):
    """The devices that a process on this machine would see."""

    kind: str  # gpu, tpu, cpu
    ids: tuple[str, ...]  # none for CPU: any number of CPU devices can be made


def visible_devices(
    environment: Mapping[str, str] = os.environ, dev: Path = Path("/dev")
) -> VisibleDevices:
    """The devices of this machine that its environment does not hide.

    CUDA numbers the GPUs that it finds from 0, whatever the names of their files are: a container
    that was given the fourth one has `/dev/nvidia3`, and calls it 0.
    """
    if is_told_to_use_cpu(environment):
        return VisibleDevices("cpu", ())
    gpus = len(list(dev.glob("nvidia[0-9]*")))
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if gpus and chosen not in ("", "-1"):
        return VisibleDevices("gpu", tuple(chosen.split(",") if chosen else map(str, range(gpus))))
    tpus = [*dev.glob("accel[0-9]*"), *dev.glob("vfio/[0-9]*")]
    if tpus:
        chosen = environment.get("TPU_VISIBLE_CHIPS")
        ids = chosen.split(",") if chosen else map(str, range(len(tpus)))
        return VisibleDevices("tpu", tuple(ids))
    return VisibleDevices("cpu", ())


def is_told_to_use_cpu(environment: Mapping[str, str] = os.environ) -> bool:
    """True if JAX takes the CPU, whatever other devices this machine has."""
    return environment.get("JAX_PLATFORMS", "").startswith("cpu")


def devices_of(
    visible: VisibleDevices,
    each: int | None,
    processes: int,
    memory_fraction: float | None,
    environment: Mapping[str, str] = os.environ,
) -> Callable[[int], dict[str, str]]:
    """A function from the number of a process to its environment variables.

    Args:
      visible: the devices to divide.
      each: devices of each process; None = every process sees all.
      processes: how many run at once.
      memory_fraction: share of a GPU for each process. None = nine tenths, divided among the
        processes that share it, or the share in the environment, which they inherit.
      environment: the variables of this process.

    Raises:
      TooFewDevices: there are fewer than the processes need.
    """
    is_said = any(environment.get(name) for name in MEMORY_FRACTIONS)

    def share_of(sharing: int) -> dict[str, str]:
        if memory_fraction is not None:
            return memory_limit(memory_fraction, environment)
        return {} if is_said or sharing < 2 else memory_limit(SHARED_MEMORY / sharing, environment)

    if each is None:
        fraction = share_of(processes if visible.kind == "gpu" else 1)
        return lambda process: fraction
    if visible.kind == "cpu":
        return lambda process: fake_cpus(each, environment)
    if each > len(visible.ids):
        raise TooFewDevices(asked=each, there=len(visible.ids), kind=visible.kind.upper())
    places = len(visible.ids) // each
    if processes > places and visible.kind == "tpu":
        raise TooFewDevices(asked=processes * each, there=len(visible.ids), kind="TPU")

    def variables(process: int) -> dict[str, str]:
        place = process % places
        first = place * each
        ids = ",".join(visible.ids[first : first + each])
        if visible.kind == "tpu":
            return {
                "TPU_VISIBLE_CHIPS": ids,
                "TPU_CHIPS_PER_PROCESS_BOUNDS": TPU_BOUNDS.get(each, f"1,{each},1"),
                "TPU_PROCESS_BOUNDS": "1,1,1",
            }
        # A worker that is added later finds those before it.
        sharing = max(math.ceil((processes - place) / places), process // places + 1)
        return {"CUDA_VISIBLE_DEVICES": ids, **share_of(sharing)}

    return variables


def memory_limit(fraction: float, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable for the share of a GPU's memory that JAX takes when the process starts, under
    its name in `environment`.
    """
    used = [name for name in MEMORY_FRACTIONS if environment.get(name)]
    return {(used or MEMORY_FRACTIONS)[0]: f"{fraction:.3f}"}


def fake_cpus(count: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Makes `count` CPU devices in one process, and replaces a count from the environment."""
    flags = environment.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if not flag.startswith(FAKE_DEVICES)]
    made = {"XLA_FLAGS": " ".join([*flags, f"{FAKE_DEVICES}={count}"])}
    if JAX_DEVICES in environment:  # JAX heeds it before the flag
        made[JAX_DEVICES] = str(count)
    return made


def make_cpu_devices(count: int) -> None:
    """Divides the CPU of this process into `count` devices, at most one for each core, unless its
    environment gives a count. It must run before JAX is used. Other devices stay as they are.
    """
    import jax

    if FAKE_DEVICES not in os.environ.get("XLA_FLAGS", "") and not os.environ.get(JAX_DEVICES):
        jax.config.update("jax_num_cpu_devices", min(count, os.cpu_count() or 1))


def use_cpu_only() -> None:
    """Hides devices from a process that only starts others: JAX takes the memory of all it sees."""
    import jax

    jax.config.update("jax_platforms", "cpu")
