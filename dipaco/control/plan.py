"""What a run consists of: its arms, and how many phases each takes. Values only.

An *arm* is one model that a run trains, as in an arm of a trial: `base`, `modular`, `dense`,
`dense_equal_tokens`. All arms are trained by the same tasks, so a baseline differs from the modular
model in its topology and in nothing else.
"""

import dataclasses
import functools

from dipaco.topology import Level, Topology

BASE = "base"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One model that the run trains."""

    name: str
    topology: Topology
    phases: int
    total_steps: int  # inner steps that each path takes, over all phases
    is_averaged: bool  # False: one path, plain AdamW; the trainer's result is the next module
    evaluate_every: int  # phases; the last one is evaluated always

    def is_evaluated(self, phase: int) -> bool:
        """Whether the modules of `phase` (1..phases) are released and scored."""
        return phase > 0 and (phase == self.phases or phase % self.evaluate_every == 0)

    def steps_before(self, phase: int) -> int:
        """Inner steps that a path has taken when `phase` starts; phases differ by one step at
        most.
        """
        return self.total_steps * phase // self.phases


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The base model, then the arms that start from it."""

    base: Arm
    arms: tuple[Arm, ...]

    @functools.cached_property
    def _by_name(self) -> dict[str, Arm]:
        return {arm.name: arm for arm in (self.base, *self.arms)}

    def arm(self, name: str) -> Arm:
        return self._by_name[name]


def one_path(part_names: tuple[str, ...]) -> Topology:
    """The topology of a dense model: one shared level that owns everything."""
    return Topology(levels=(Level(name="all", parts=part_names),))
