"""An arm: one model that a run trains, and every question about its schedule, answered once.

The word is that of a trial: `base`, `modular`, `dense`, `data_parallel`, `dense_equal_tokens` are
arms. All arms are trained by the same tasks, so a baseline differs from the modular model in its
topology, in who steps together, and in nothing else. Scheduler, workers and the oracle
(`algorithm/variants.py`) ask the same arm:

    who takes part in a phase            paths_in, phases_of, trained_before
    who contributes to a module          paths_through
    when a module may step               quorum_of, grace_seconds
    what a contribution brings           sends_all
    how many inner steps                 steps_before, steps_in
    which shards a phase trains on       alternations, routed_at
    where a path takes its modules late  goes_ahead, merges_at
    what is evaluated                    is_evaluated
    who steps together                   is_averaged, is_synchronous, is_dealt
"""

import dataclasses
import math
from collections.abc import Sequence

from dipaco.schedule.path_sampling import paths_drawn, phases_drawn
from dipaco.topology import ModuleId, Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One model that the run trains."""

    name: str
    topology: Topology
    phases: int
    total_steps: int  # inner steps of each path over all phases
    is_averaged: bool  # False: one path, plain AdamW, and the module becomes what the path trained
    evaluate_every: int  # phases; the last one is always evaluated
    alternations: tuple[int, ...] = ()  # phases before which documents are routed again
    path_share: float = 1.0  # share of the paths that take part in a phase
    seed: int = 0  # seed of the draw of those paths
    quorum: float = 1.0  # share of a phase's contributions with which a module may step
    grace_seconds: float = 0.0  # a step waits as long for the other contributions after its quorum
    delay: int = 0  # inner steps of a phase before a path takes its modules
    hold_out: float = 0.0  # above 0: each path is released as it was at its best
    is_synchronous: bool = False  # all paths step together, as one task a phase; not `is_averaged`
    is_dealt: bool = False  # its paths, all alike, take batches of everything in turn

    @property
    def is_routed(self) -> bool:
        """Whether its paths have shards of their own; else they train on everything."""
        return (self.is_averaged or self.is_synchronous) and not self.is_dealt

    def is_evaluated(self, phase: int) -> bool:
        """Whether the modules of `phase` (1..phases) are released and scored."""
        return phase > 0 and (phase == self.phases or phase % self.evaluate_every == 0)

    def steps_before(self, phase: int) -> int:
        """Inner steps that a path has taken when `phase` starts; phases differ by one step at
        most.
        """
        return self.total_steps * phase // self.phases

    def steps_in(self, phase: int) -> int:
        """Inner steps of a phase."""
        return self.steps_before(phase + 1) - self.steps_before(phase)

    def routed_at(self, phase: int) -> int:
        """The phase at whose start the shards of `phase` were routed."""
        return max((at for at in self.alternations if at <= phase), default=0)

    def paths_in(self, phase: int) -> tuple[int, ...]:
        """The paths that take part in a phase, ascending: all, or drawn by (seed, phase)."""
        return paths_drawn(self.topology.num_paths, self.path_share, self.seed, phase)

    def phases_of(self, path: int, before: int) -> Sequence[int]:
        """The phases before one that a path takes part in, ascending."""
        return phases_drawn(self.topology.num_paths, self.path_share, self.seed, path, before)

    @property
    def num_at_once(self) -> int:
        """Paths that take part in a phase, as many in every one: machines that work at once."""
        return len(self.paths_in(0))

    def paths_through(self, module: ModuleId, phase: int) -> tuple[int, ...]:
        """The paths through a module that take part in a phase."""
        through = self.topology.paths_through(module)
        if self.path_share == 1:
            return through
        taking_part = set(self.paths_in(phase))
        return tuple(path for path in through if path in taking_part)

    @property
    def has_quorum(self) -> bool:
        """Whether a module may step while a path is late."""
        return self.quorum < 1

    def quorum_of(self, module: ModuleId, phase: int) -> int:
        """How many contributions of a phase must be in before a module may step. All of them in
        the last phase and in the phase before an alternation, so that no late one is left out.
        """
        paths = len(self.paths_through(module, phase))
        if phase + 1 == self.phases or phase + 1 in self.alternations:
            return paths
        return min(paths, math.ceil(round(self.quorum * paths, 9)))

    def trained_before(self, path: int, phase: int) -> int | None:
        """The last phase before `phase` that a path took part in; None where there is none."""
        before = (at for at in reversed(range(phase)) if path in self.paths_in(at))
        return next(before, None)

    def sends_all(self, phase: int) -> bool:
        """Whether contributions of a phase bring all that paths have learned, also what would
        have its turn later. Those of the last phase do, and those of one before documents are
        routed again.
        """
        return phase + 1 == self.phases or phase + 1 in self.alternations

    def goes_ahead(self, path: int, phase: int) -> bool:
        """Whether a path begins a phase from its own parameters and takes its modules `delay` steps
        late. It does if it took part in the phase before and documents were not routed since.
        """
        if not self.delay or phase == 0 or phase in self.alternations:
            return False
        return path in self.paths_in(phase) and path in self.paths_in(phase - 1)

    def merges_at(self, path: int, phase: int) -> int | None:
        """The step of the schedule after which a path that goes ahead takes its modules."""
        return self.steps_before(phase) + self.delay if self.goes_ahead(path, phase) else None

    @property
    def path_steps(self) -> int:
        """Inner steps that all paths take together."""
        return self.num_at_once * self.total_steps
