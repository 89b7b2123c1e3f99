"""Which tasks does a new fact make due? A pure function; its cost depends on what changed, not on
the history.

There is no global barrier (DiPaCo section 3): a module steps when its own contributions are in, and
a path continues when its own modules have stepped. An alternation is a barrier by its nature: the
router needs the labels of every path before it can route documents again, and until then no path
has data to train on.

Many paths may record contributions to one module at the same moment. So whether all are in is not
decided here: `AwaitedStep` states it as a condition, which the database checks where it counts.

With a quorum (`outer.quorum`), a module may step while a path is late, and takes that path's
contribution with its next step (`QuorumStep`). The next step waits for it, so no path is late by
more than one phase. A late path finishes its phase first; every path takes every phase in order,
each from its modules as they are at the start of that phase.

With a delay (`outer.delay`), a path begins its next phase as soon as it has finished one, and needs
the modules only some steps later. Where they are not there then, its task waits (`waiting`) until
the last of them is recorded, which makes it due again.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from dipaco.control.planning.tasks import (
    Contribution,
    Evaluated,
    Fact,
    Kind,
    ModuleReady,
    PathChecked,
    PathLabelled,
    PathScored,
    PathTrained,
    Sampled,
    SliceDone,
    StageDone,
    Task,
)
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import Plan
from dipaco.topology import ModuleId


class Frontier(Protocol):
    """The facts that a decision needs, those just recorded included."""

    def modules_at(self, arm: str, phase: int) -> set[ModuleId]: ...

    def num_contributions(self, arm: str, module: ModuleId, phase: int) -> int: ...

    def trained(self, arm: str, phase: int) -> set[int]: ...

    def num_labelled(self, arm: str, phase: int) -> int: ...

    def checked(self, arm: str, phase: int) -> set[int]: ...

    def num_scored(self, arm: str, phase: int) -> int: ...

    def evaluated(self) -> set[tuple[str, int]]: ...

    def num_slices(self, stage: str, step: str) -> int: ...


class AwaitedStep(NamedTuple):
    """An outer step that is due as soon as its module has `awaited` contributions."""

    task: Task
    awaited: int


class QuorumStep(NamedTuple):
    """An outer step that is due when its module has all contributions of its phase, or has enough
    and the grace is over. In both cases the contributions of the phase before must all be in.
    """

    task: Task
    awaited: int  # contributions of its phase
    enough: int
    awaited_before: int  # contributions of the phase before, taken by that step or late for it
    grace_seconds: float  # counted from when there are enough


def first_tasks(slices: int) -> list[Task]:
    """The tasks that a new run begins with: each slice of its text is read. 0 slices: its text is
    prepared already.
    """
    return _of_all_slices("prepare", "read", slices) or [Task("prepare")]


def due(plan: Plan, facts: Iterable[Fact], frontier: Frontier) -> list[Task]:
    """The tasks that `facts`, just recorded together, make due; in a fixed order, none twice."""
    tasks: dict[Task, None] = {}
    for fact in facts:
        match fact:
            case SliceDone():
                tasks |= dict.fromkeys(_after_slice(plan, fact, frontier))
            case StageDone(stage="prepare"):
                tasks[Task("pretrain", plan.base.name, "0", 0)] = None
            case ModuleReady(arm=arm, module=module, phase=phase):
                tasks |= dict.fromkeys(_after_module(plan, plan.arm(arm), module, phase, frontier))
            case PathLabelled(arm=arm, phase=phase):
                if frontier.num_labelled(arm, phase) == plan.arm(arm).topology.num_paths:
                    tasks[Task("route", phase=phase)] = None
            case PathChecked(arm=arm, path=path, phase=phase):
                tasks |= dict.fromkeys(_after_check(plan.arm(arm), path, phase, frontier))
            case PathScored(arm=arm, phase=phase):
                if frontier.num_scored(arm, phase) == plan.arm(arm).topology.num_paths:
                    tasks[Task("evaluate", arm, "", phase)] = None
            case Evaluated(arm=arm, phase=phase):
                # Only now: where likelihood routes, the scores of all paths say where prompts go.
                if plan.samples:
                    tasks[Task("sample", arm, "", phase)] = None
                # No text is waited for: one that cannot be made costs a run nothing else.
                if _evaluations(plan) <= frontier.evaluated():
                    tasks[Task("reroute" if plan.reroutes else "report")] = None
            case StageDone(stage="reroute"):
                tasks[Task("report")] = None
            case StageDone(stage="route", phase=0):
                # The base model is scored only now: its release names the router and the shards.
                tasks |= dict.fromkeys(_of_all_paths("score", plan.base, plan.base.phases))
            case StageDone(stage="route", phase=phase):
                for arm in plan.arms:
                    if phase in arm.alternations:
                        tasks |= dict.fromkeys(_after_routing(arm, phase))
            case PathTrained(arm=arm, path=path, phase=phase):
                tasks |= dict.fromkeys(_after_training(plan.arm(arm), path, phase, frontier))
            case StageDone() | Contribution() | Sampled():
                pass
    return list(tasks)


def awaited_steps(plan: Plan, facts: Iterable[Fact]) -> list[AwaitedStep]:
    """The outer steps for which one of `facts` may have been the last contribution."""
    return [
        AwaitedStep(
            Task("outer", fact.arm, str(fact.module), fact.phase),
            len(plan.arm(fact.arm).paths_through(fact.module, fact.phase)),
        )
        for fact in facts
        if isinstance(fact, Contribution) and not plan.arm(fact.arm).has_quorum
    ]


def quorum_steps(plan: Plan, facts: Iterable[Fact]) -> list[QuorumStep]:
    """The same for arms with a quorum: the step of the contribution's own phase and, as it may be
    late, the next one.
    """
    return [
        _quorum_step(plan.arm(fact.arm), fact.module, phase)
        for fact in facts
        if isinstance(fact, Contribution) and plan.arm(fact.arm).has_quorum
        for phase in (fact.phase, fact.phase + 1)
        if phase < plan.arm(fact.arm).phases
    ]


def _quorum_step(arm: Arm, module: ModuleId, phase: int) -> QuorumStep:
    return QuorumStep(
        Task("outer", arm.name, str(module), phase),
        awaited=len(arm.paths_through(module, phase)),
        enough=arm.quorum_of(module, phase),
        awaited_before=len(arm.paths_through(module, phase - 1)) if phase else 0,
        grace_seconds=arm.grace_seconds,
    )


def _after_slice(plan: Plan, fact: SliceDone, frontier: Frontier) -> list[Task]:
    """All text is read before it is known which documents stay, and all of it is tokens before it
    is put together; all features are there before documents are routed.
    """
    if fact.step == "merge":
        return _of_all_slices(fact.stage, "tokenise", plan.slices)
    awaited = plan.slices if fact.stage == "prepare" else plan.feature_slices
    if frontier.num_slices(fact.stage, fact.step) < awaited:
        return []
    return [Task("prepare", "merge", "0") if fact.step == "read" else Task(fact.stage)]


def _of_all_slices(kind: Kind, step: str, count: int) -> list[Task]:
    return [Task(kind, step, str(number)) for number in range(count)]


def _evaluations(plan: Plan) -> set[tuple[str, int]]:
    """Every (arm, phase) that a run evaluates: the report shows them all."""
    return {
        (arm.name, phase)
        for arm in plan.arms
        for phase in range(1, arm.phases + 1)
        if arm.is_evaluated(phase)
    } | {(plan.base.name, plan.base.phases)}


def _after_module(
    plan: Plan, arm: Arm, module: ModuleId, phase: int, frontier: Frontier
) -> Iterable[Task]:
    ready = frontier.modules_at(arm.name, phase)
    if arm.name == plan.base.name:
        if phase == arm.phases:
            yield from _of_all_slices("route", "features", plan.feature_slices) or [Task("route")]
        else:
            yield from _of_all_paths("pretrain", arm, phase)
        return
    through = arm.topology.paths_through(module)
    ready_paths = [path for path in through if ready.issuperset(arm.topology.modules_of(path))]
    is_last = len(ready) == len(arm.topology.modules)
    if phase < arm.phases and not arm.paths_through(module, phase):
        late = arm.paths_through(module, phase - 1) if arm.has_quorum and phase else ()
        if not late or frontier.num_contributions(arm.name, module, phase - 1) == len(late):
            yield Task(
                "outer", arm.name, str(module), phase
            )  # no path takes part: the module stays unchanged
    if phase in arm.alternations:
        yield from _of_all_paths("label", arm, phase) if is_last else ()
        return
    if arm.is_synchronous:
        if phase < arm.phases and is_last:
            yield Task("train", arm.name, "0", phase)  # of all paths
    elif phase < arm.phases:
        late = _late(arm, phase, frontier)
        for path in ready_paths:
            if path in arm.paths_in(phase) and path not in late:
                # Where the path went ahead this task exists: it may wait for this very module.
                yield Task("train", arm.name, str(path), phase)
    if arm.hold_out:
        has_new_shards = phase == arm.routed_at(phase)
        checked_before = set() if has_new_shards else frontier.checked(arm.name, phase - 1)
        for path in ready_paths:
            if has_new_shards or path in checked_before:
                yield Task("check", arm.name, str(path), phase)
    elif arm.is_evaluated(phase) and is_last:
        yield from _of_all_paths("score", arm, phase)


def _late(arm: Arm, phase: int, frontier: Frontier) -> set[int]:
    """Paths that have not finished the phase before, though their modules may have stepped."""
    if not arm.has_quorum or phase == 0:
        return set()
    return set(arm.paths_in(phase - 1)) - frontier.trained(arm.name, phase - 1)


def _after_training(arm: Arm, path: int, phase: int, frontier: Frontier) -> Iterable[Task]:
    """A late path continues if all its modules have stepped meanwhile; one that takes its modules
    late (`outer.delay`) continues at once.
    """
    after = phase + 1
    if arm.goes_ahead(path, after) and after < arm.phases:
        yield Task("train", arm.name, str(path), after)
        return
    if not arm.has_quorum or after >= arm.phases or after in arm.alternations:
        return
    if path in arm.paths_in(after) and frontier.modules_at(arm.name, after).issuperset(
        arm.topology.modules_of(path)
    ):
        yield Task("train", arm.name, str(path), after)


def _after_routing(arm: Arm, phase: int) -> Iterable[Task]:
    """The tasks that wait for an alternation; all modules are ready by then."""
    if phase < arm.phases:
        for path in arm.paths_in(phase):
            yield Task("train", arm.name, str(path), phase)
    if arm.hold_out:
        yield from _of_all_paths("check", arm, phase)
    elif arm.is_evaluated(phase):
        yield from _of_all_paths("score", arm, phase)


def _after_check(arm: Arm, path: int, phase: int, frontier: Frontier) -> Iterable[Task]:
    """A path is checked phase by phase: each check knows the best one before it."""
    topology, after = arm.topology, phase + 1
    goes_on = after <= arm.phases and after not in arm.alternations
    if goes_on and frontier.modules_at(arm.name, after).issuperset(topology.modules_of(path)):
        yield Task("check", arm.name, str(path), after)
    if arm.is_evaluated(phase) and len(frontier.checked(arm.name, phase)) == topology.num_paths:
        yield from _of_all_paths("score", arm, phase)


def _of_all_paths(kind: Kind, arm: Arm, phase: int) -> Iterable[Task]:
    for path in range(arm.topology.num_paths):
        yield Task(kind, arm.name, str(path), phase)
