"""Kinds of devices that a run can be planned for, whether or not this machine has one."""

import dataclasses
import math
import re

from dipaco.config import RunConfig
from dipaco.model.config import MESH_AXES
from dipaco.runs.errors import UnknownDevice

MEASURED_SHARE = 0.4  # of the peak: a training step of the paper's path on an H100 and an H200


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """What its maker says of one device.

    Attributes:
      memory: bytes that programs can have.
      flops: dense bfloat16, a second.
      bandwidth: bytes a second of its memory.
      least: the smallest slice that the compiler knows. Empty: nothing is compiled for it here.
      longest: chips along a side of the largest slice. The compiler aborts at more.
      of_chip: devices of a chip.
      cores: the compiler's name for how a chip's cores are divided among devices.
    """

    memory: float
    flops: float
    bandwidth: float
    least: str = ""
    longest: int = 16
    of_chip: int = 1
    cores: str = "default"


KINDS = {
    "v4": DeviceKind(
        memory=30.75 * 2**30, flops=275e12, bandwidth=1.228e12, least="2x2x1", cores="megacore"
    ),
    "v5e": DeviceKind(memory=15.75 * 2**30, flops=197e12, bandwidth=0.819e12, least="2x2"),
    "v5p": DeviceKind(
        memory=95.74 * 2**30, flops=459e12, bandwidth=2.765e12, least="2x2x1", longest=28
    ),
    "v6e": DeviceKind(memory=31.25 * 2**30, flops=918e12, bandwidth=1.64e12, least="2x2"),
    "tpu7x": DeviceKind(
        memory=94.75 * 2**30,
        flops=1153e12,
        bandwidth=3.69e12,
        least="2x2x1",
        longest=24,
        of_chip=2,
    ),
    "h100": DeviceKind(memory=80e9, flops=989e12, bandwidth=3.35e12),
    "h200": DeviceKind(memory=141e9, flops=989e12, bandwidth=4.8e12),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """Devices of one kind, such as `h100`, `h100:8` or the slice `v5e:2x4`."""

    name: str
    kind: DeviceKind
    number: int

    @property
    def topology(self) -> str:
        """Their name for the compiler."""
        kind, _, chips = self.name.partition(":")
        return f"{kind}:{chips or self.kind.least}"


def named(name: str) -> Device:
    """The devices of a name. Raises `UnknownDevice`."""
    kind_name, colon, chips = name.partition(":")
    kind = KINDS.get(kind_name)
    if kind is None or (colon and not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", chips)):
        raise UnknownDevice(name=name, known=_known())
    sides = [int(each) for each in (chips or kind.least or "1").split("x")]
    if kind.least and (len(sides) != len(kind.least.split("x")) or max(sides) > kind.longest):
        raise UnknownDevice(name=name, known=_known())
    return Device(name=name, kind=kind, number=math.prod(sides) * kind.of_chip)


def _known() -> str:
    return ", ".join(f"{name}:{kind.least}" if kind.least else name for name, kind in KINDS.items())


def on_devices(config: RunConfig, number: int) -> RunConfig:
    """The config with the mesh that it has on so many devices. Raises `BadMesh`."""
    shape = dict(zip(MESH_AXES, config.mesh.shape(number), strict=True))
    return dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, **shape))
