"""The plan of a run: its arms, and what is done once beside them."""

import dataclasses
import functools

from dipaco.schedule.arm import Arm
from dipaco.topology import Level, Topology

BASE = "base"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The base model, then the arms that start from it."""

    base: Arm
    arms: tuple[Arm, ...]
    samples: bool = False  # every release continues a few prompts
    slices: int = 1  # slices of the text; each is read, and made tokens, by a task of its own
    # Slices of the documents; the router's features of each are computed by a task of its own. 0 =
    # the router needs no features.
    feature_slices: int = 0
    reroutes: bool = False  # a router for every few tokens is trained and evaluated in the end

    @functools.cached_property
    def _by_name(self) -> dict[str, Arm]:
        return {arm.name: arm for arm in (self.base, *self.arms)}

    def arm(self, name: str) -> Arm:
        return self._by_name[name]


def one_path(part_names: tuple[str, ...]) -> Topology:
    """The topology of a dense model. One shared level owns everything."""
    return Topology(levels=(Level(name="all", parts=part_names),))


def one_model(part_names: tuple[str, ...], num_machines: int) -> Topology:
    """The topology of a dense model that several machines train, one path for each machine."""
    machines = Level(name="machines", experts=num_machines)
    return Topology(levels=(*one_path(part_names).levels, machines))
