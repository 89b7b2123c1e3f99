"""Limits a process to a part of this machine: some of its processors, one of its devices."""

import os
import re

from dipaco.errors import BadSetting
from dipaco.launch.devices import visible_devices
from dipaco.launch.errors import NoSuchDevice

DEVICE = re.compile(r"cpu|gpu(?::(\d+))?")


def lend_processors(count: int) -> None:
    """Limits this process to so many of its allowed processors.

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
    """Makes JAX compute on `cpu`, `gpu` or `gpu:1` (the second) alone. Call it before JAX computes.

    Raises:
      BadSetting: it is another word.
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
