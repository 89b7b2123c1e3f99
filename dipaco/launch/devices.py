"""Devices of this machine: which of them belong to which worker, and limits of one process.

Eight workers may use eight GPUs, one each. Several workers may share one GPU, each with a fraction
of its memory. The visible devices are found without JAX, which would take them for this process.
"""

import importlib.util
import itertools
import math
import os
import pkgutil
import re
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from dipaco.errors import BadSetting
from dipaco.launch.errors import NoSuchDevice, TooFewDevices

SHARED_MEMORY = 0.9  # share of a GPU that its workers divide; the rest is for non-JAX memory
TPU_BOUNDS = {
    1: "1,1,1",
    2: "1,2,1",
    4: "2,2,1",
    8: "2,4,1",
}  # chips of a process -> their grid
# JAX's variable for a process's share of GPU memory: today's name and the older one. JAX refuses
# both at once.
MEMORY_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
FAKE_DEVICES = "--xla_force_host_platform_device_count"
JAX_DEVICES = "JAX_NUM_CPU_DEVICES"  # an environment variable with the same effect
PLUGINS = "jax_plugins"  # JAX looks for plugins in these entry points and this namespace
MORE_PLUGINS = "PJRT_NAMES_AND_LIBRARY_PATHS"  # JAX's variable for further plugins
DEVICE = re.compile(r"cpu|gpu(?::(\d+))?")


class VisibleDevices(NamedTuple):
    """The devices that a new process on this machine would see."""

    kind: str  # gpu, tpu, cpu
    ids: tuple[str, ...]  # empty for cpu: any number of CPU devices can be made


def visible_devices(
    environment: Mapping[str, str] = os.environ, dev: Path = Path("/dev")
) -> VisibleDevices:
    """The devices of this machine that its environment does not hide.

    CUDA numbers the GPUs that it finds from 0, whatever their files are called. A container with
    the fourth GPU of a machine has `/dev/nvidia3`, and CUDA calls it 0.
    """
    if is_told_to_use_cpu(environment):
        return VisibleDevices("cpu", ())
    gpus = len(list(dev.glob("nvidia[0-9]*")))
    if ids := _visible_gpus(environment.get("CUDA_VISIBLE_DEVICES"), gpus):
        return VisibleDevices("gpu", ids)
    tpus = [*dev.glob("accel[0-9]*"), *dev.glob("vfio/[0-9]*")]
    if tpus:
        chosen = environment.get("TPU_VISIBLE_CHIPS")
        ids = chosen.split(",") if chosen else map(str, range(len(tpus)))
        return VisibleDevices("tpu", tuple(ids))
    return VisibleDevices("cpu", ())


def _visible_gpus(chosen: str | None, gpus: int) -> tuple[str, ...]:
    """The GPUs that CUDA shows: those named before the first that is none, such as -1."""
    if chosen is None:
        return tuple(map(str, range(gpus)))
    names = map(str.strip, chosen.split(",") if gpus else ())
    return tuple(
        itertools.takewhile(
            lambda name: name.startswith(("GPU-", "MIG-")) or name in map(str, range(gpus)), names
        )
    )


def is_told_to_use_cpu(environment: Mapping[str, str] = os.environ) -> bool:
    """True if JAX is told to use the CPU, whatever else this machine has."""
    return environment.get("JAX_PLATFORMS", "").startswith("cpu")


def is_for_cpu_only(environment: Mapping[str, str] = os.environ) -> bool:
    """True if no GPU or TPU plugin of JAX is installed. JAX itself stays unused.

    A machine with a GPU need not have a file that says so: WSL and ROCm have no `/dev/nvidia0`.
    """
    space = importlib.util.find_spec(PLUGINS)
    folders = () if space is None else space.submodule_search_locations
    return not (
        environment.get(MORE_PLUGINS)
        or entry_points(group=PLUGINS)
        or any(pkgutil.iter_modules(folders))
        or importlib.util.find_spec("libtpu")
    )


def devices_of(
    visible: VisibleDevices,
    each: int | None,
    processes: int,
    memory_fraction: float | None,
    environment: Mapping[str, str] = os.environ,
) -> Callable[[int], dict[str, str]]:
    """A function from the number of a process to its environment variables.

    Args:
      each: devices of each process. None = every process sees all.
      memory_fraction: share of a GPU's memory for each process. None = nine tenths, divided among
        the processes that share a GPU, unless the environment, which they inherit, sets a share.

    Raises:
      TooFewDevices: the processes need more devices.
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
        # A process beyond `processes`, added later, shares the device with those before it.
        sharing = max(math.ceil((processes - place) / places), process // places + 1)
        return {"CUDA_VISIBLE_DEVICES": ids, **share_of(sharing)}

    return variables


def memory_limit(fraction: float, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable for the share of a GPU's memory that JAX takes when a process starts. Its name
    is the one that `environment` uses already.
    """
    used = [name for name in MEMORY_FRACTIONS if environment.get(name)]
    return {(used or MEMORY_FRACTIONS)[0]: f"{fraction:.3f}"}


def fake_cpus(count: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that make `count` CPU devices in a process, whatever the environment sets."""
    flags = environment.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if not flag.startswith(FAKE_DEVICES)]
    made = {"XLA_FLAGS": " ".join([*flags, f"{FAKE_DEVICES}={count}"])}
    if JAX_DEVICES in environment:  # JAX prefers it to the flag
        made[JAX_DEVICES] = str(count)
    return made


def use_cpu_only() -> None:
    """Keeps JAX off the accelerators in a process that only starts others. JAX would take the
    memory of every device that it sees.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")


def lend_processors(count: int) -> None:
    """Limits this process to `count` of the processors that it may use.

    Raises:
      BadSetting: it has fewer, or the system cannot limit a process.
    """
    if not hasattr(os, "sched_setaffinity"):
        expected = "left out: this system does not limit the processors of a process"
        raise BadSetting(name="--threads", value=count, expected=expected)
    here = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(here):
        raise BadSetting(name="--threads", value=count, expected=f"1 to {len(here)}")
    os.sched_setaffinity(0, here[:count])


def lend_device(text: str) -> None:
    """Limits JAX to `cpu`, `gpu` or `gpu:1` (the second). Must be called before it computes.

    Raises:
      BadSetting: the text is none of these.
      NoSuchDevice: this machine has no such GPU.
    """
    found = DEVICE.fullmatch(text)
    if found is None:
        raise BadSetting(name="--device", value=text, expected="cpu, gpu, or gpu:0, gpu:1, …")
    if text != "cpu":
        there = visible_devices()
        ids, index = there.ids if there.kind == "gpu" else (), int(found[1] or 0)
        if index >= len(ids):
            raise NoSuchDevice(device=text, there=len(ids))
        if found[1] is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = ids[index]

    import jax

    jax.config.update("jax_platforms", "cpu" if text == "cpu" else "cuda")
