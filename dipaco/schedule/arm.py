"""An arm is one model that a run trains. Each question about its schedule is answered here, once.

The word comes from trials: `base`, `modular`, `dense`, `data_parallel`, `dense_equal_tokens` are
arms. The same tasks train all of them. A baseline is an arm with other values: its topology is one
path, or copies of one; it takes no outer steps; it trains on all documents; `dense_equal_tokens`
takes more steps. Scheduler, workers and the oracle (`algorithm/variants.py`) ask the same arm:

    who takes part in a phase            paths_in, trained_before
    who contributes to a module          contributors
    when a module may step               enough_of, waits_for_all, grace_seconds
    how many inner steps                 steps_before, steps_in
    which shards a phase trains on       alternations, routed_at
    whether a path goes ahead            goes_ahead, merges_at
    what is evaluated                    is_evaluated
    who steps together                   has_outer_steps, is_synchronous, is_dealt
"""

import dataclasses
import math

from dipaco.schedule.path_sampling import paths_drawn
from dipaco.topology import ModuleId, Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One model that the run trains."""

    name: str
    topology: Topology
    phases: int
    # Inner steps of the schedule. A path skips the steps of phases in which it takes no part.
    total_steps: int
    # True: modules take outer steps. False: they become what the inner steps made of them, in one
    # path or, if `is_synchronous`, in all paths together.
    has_outer_steps: bool
    evaluate_every: int  # phases; the last one is always evaluated
    alternations: tuple[int, ...] = ()  # phases before which documents are routed again
    path_share: float = 1.0  # share of the paths that take part in a phase
    seed: int = 0  # seed of the draw of those paths
    quorum: float = 1.0  # share of a phase's contributions with which a module may step
    grace_seconds: float = 0.0  # that a step with its quorum still waits for the others
    delay: int = 0  # inner steps of a phase before a path takes its modules
    hold_out: float = 0.0  # above 0: each path is released as it was at its best
    # All paths step together, as one task a phase. `has_outer_steps` is False then.
    is_synchronous: bool = False
    is_dealt: bool = False  # no shards: of all batches, each of the P paths takes every P-th

    @property
    def is_routed(self) -> bool:
        """True if each path has a shard. Otherwise its paths train on all documents, or take the
        batches in turn (`is_dealt`).
        """
        return (self.has_outer_steps or self.is_synchronous) and not self.is_dealt

    def is_evaluated(self, phase: int) -> bool:
        """True if the modules of `phase` are released and scored. The modules of phase p are those
        after p outer steps: phase p starts from them, and those of `phases` are the last.
        """
        return phase > 0 and (phase == self.phases or phase % self.evaluate_every == 0)

    def steps_before(self, phase: int) -> int:
        """Inner steps of the schedule before `phase` starts. Phases differ by at most one step."""
        return self.total_steps * phase // self.phases

    def steps_in(self, phase: int) -> int:
        """Inner steps of a phase."""
        return self.steps_before(phase + 1) - self.steps_before(phase)

    def routed_at(self, phase: int) -> int:
        """The phase at whose start the shards of `phase` were routed."""
        return max((at for at in self.alternations if at <= phase), default=0)

    def paths_in(self, phase: int) -> tuple[int, ...]:
        """The paths that take part in a phase, ascending. They depend on seed and phase alone. Each
        phase has as many, at least one.
        """
        return paths_drawn(self.topology.num_paths, self.path_share, self.seed, phase)

    @property
    def num_at_once(self) -> int:
        """Number of paths in each phase, and so of machines that can train at once. Every phase
        has as many as the first (`paths_drawn`).
        """
        return len(self.paths_in(0))

    def contributors(self, module: ModuleId, phase: int) -> tuple[int, ...]:
        """The paths through a module that take part in a phase."""
        through = self.topology.paths_through(module)
        taking_part = self.paths_in(phase)
        if len(taking_part) == self.topology.num_paths:
            return through
        return tuple(path for path in through if path in taking_part)

    @property
    def has_quorum(self) -> bool:
        """True if a module may step while a path is late."""
        return self.quorum < 1

    def enough_of(self, module: ModuleId, phase: int) -> int:
        """Contributions of a phase that must be in before a module may step: all of them where the
        step waits for all.
        """
        paths = len(self.contributors(module, phase))
        if self.waits_for_all(phase):
            return paths
        return min(paths, math.ceil(round(self.quorum * paths, 9)))

    def trained_before(self, path: int, phase: int) -> int | None:
        """The last phase before `phase` in which a path took part, or None."""
        before = (at for at in reversed(range(phase)) if path in self.paths_in(at))
        return next(before, None)

    def waits_for_all(self, phase: int) -> bool:
        """True if the outer steps of a phase wait for every contribution, whatever the quorum: at
        the last phase, and at a phase before an alternation.
        """
        return phase + 1 == self.phases or phase + 1 in self.alternations

    def goes_ahead(self, path: int, phase: int) -> bool:
        """True if a path begins a phase from its own parameters and takes its modules `delay` steps
        late. It does if it took part in the phase before and documents were not routed since.
        """
        if not self.delay or phase == 0 or phase in self.alternations:
            return False
        return path in self.paths_in(phase) and path in self.paths_in(phase - 1)

    def merges_at(self, path: int, phase: int) -> int | None:
        """Inner step after which a path that goes ahead takes its modules, or None."""
        return self.steps_before(phase) + self.delay if self.goes_ahead(path, phase) else None

    @property
    def path_steps(self) -> int:
        """Inner steps that all paths take together."""
        return self.num_at_once * self.total_steps
