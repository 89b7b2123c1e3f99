"""The scheduler says which tasks a new fact makes due. It is a pure function. Its cost depends on
the change, not on the history (after an evaluation also on the number of evaluations).

There is no global barrier (DiPaCo section 3): a module steps when its own contributions are in, and
a path continues when its own modules have stepped. Phase p starts from the modules at p. `train`
gives contributions of p, and `outer` the module at p + 1. An alternation is a barrier by its
nature: the router needs the labels of every path before it can route documents again, and until
then no path has data to train on.

Many paths may record contributions to one module at the same moment. So whether all are in is not
decided here: `AwaitedStep` states it as a condition, which the database checks.
`control/facts/commit.py` asks `due`, `awaited_steps` and `quorum_steps` in the transaction that
records the facts.

With a quorum (`outer.quorum`), a module may step while a path is late, and takes that path's
contribution with its next step (`QuorumStep`, checked by `control/facts/quorums.py`). The next step
waits for it, so no path is late by more than one phase. A late path finishes its phase before it
begins another. Each path goes through the phases that it takes part in, in order. Each phase starts
from the path's modules at its start. With a delay, these join later.

With a delay (`outer.delay`), a path goes ahead: it begins its next phase as soon as it has finished
one, and needs the modules only some steps later. If they are not there then, its task waits
(`waiting`) until the last of them is recorded, which makes it due again.

A *label* task scores the router's documents under a path: an alternation makes the labels of them.
A *check* task measures a path's loss on its hold-out, for early stopping. The *reroute* task comes
last: it trains a router that may change the path within a document. Text is prepared in *slices*,
one task each: `Task("prepare", "read", "3")` reads slice 3. Its `arm` holds the operation, and its
`subject` the slice.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

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
    SliceDone,
    StageDone,
    Task,
)
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import Plan
from dipaco.topology import ModuleId


class Frontier(Protocol):
    """The facts that a decision needs, those just recorded included."""

    def num_contributions(self, arm: str, module: ModuleId, phase: int) -> int:
        """Contributions to a module that were made in `phase`."""
        ...

    def trained(self, arm: str, phase: int) -> set[int]:
        """The paths that have finished `phase`."""
        ...

    # The modules at the start of `phase`, and what was measured of them.

    def modules_at(self, arm: str, phase: int) -> set[ModuleId]: ...

    def num_labelled(self, arm: str, phase: int) -> int: ...

    def checked(self, arm: str, phase: int) -> set[int]: ...

    def num_scored(self, arm: str, phase: int) -> int: ...

    # The run.

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
    awaited_before: int  # of the phase before, whether its own step took them or not
    grace_seconds: float  # counted from when there are enough


def first_tasks(slices: int) -> list[Task]:
    """The tasks that a new run begins with: each slice of its text is read. 0 slices: only
    the last `prepare` task is left, which records the corpus.
    """
    return _of_all_slices("prepare", "read", slices) or [Task("prepare")]


def due(plan: Plan, facts: Iterable[Fact], frontier: Frontier) -> list[Task]:
    """The tasks that `facts`, recorded together, make due: in a fixed order, each of them once."""
    tasks: dict[Task, None] = {}
    for fact in facts:
        if after := AFTER.get(type(fact)):
            tasks |= dict.fromkeys(after(plan, fact, frontier))
    return list(tasks)


def awaited_steps(plan: Plan, facts: Iterable[Fact]) -> list[AwaitedStep]:
    """The outer steps for which one of `facts` may have been the last contribution."""
    return [
        AwaitedStep(
            Task("outer", fact.arm, str(fact.module), fact.phase),
            len(plan.arm(fact.arm).contributors(fact.module, fact.phase)),
        )
        for fact in facts
        if isinstance(fact, Contribution) and not plan.arm(fact.arm).has_quorum
    ]


def quorum_steps(plan: Plan, facts: Iterable[Fact]) -> list[QuorumStep]:
    """The outer steps, in arms with a quorum, that one of `facts` may make due: that of the
    contribution's own phase and, as it may be late, the next one. The step of a phase that begins
    with an alternation, in which no path goes through the module, waits for the alternation
    instead.
    """
    return [
        _quorum_step(arm, fact.module, phase)
        for fact in facts
        if isinstance(fact, Contribution) and (arm := plan.arm(fact.arm)).has_quorum
        for phase in (fact.phase, fact.phase + 1)
        if phase < arm.phases
        and (arm.contributors(fact.module, phase) or phase not in arm.alternations)
    ]


def _quorum_step(arm: Arm, module: ModuleId, phase: int) -> QuorumStep:
    return QuorumStep(
        Task("outer", arm.name, str(module), phase),
        awaited=len(arm.contributors(module, phase)),
        enough=arm.enough_of(module, phase),
        awaited_before=len(arm.contributors(module, phase - 1)) if phase else 0,
        grace_seconds=arm.grace_seconds,
    )


def _after_slice(plan: Plan, fact: SliceDone, frontier: Frontier) -> Iterable[Task]:
    """`merge` waits for all `read` slices, the whole `prepare` for all `tokenise` slices, and
    `route` for all `features` slices.
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


def _after_module(plan: Plan, fact: ModuleReady, frontier: Frontier) -> Iterable[Task]:
    arm, module, phase = plan.arm(fact.arm), fact.module, fact.phase
    ready = frontier.modules_at(arm.name, phase)
    all_ready = len(ready) == len(arm.topology.modules)
    if arm.name == plan.base.name:
        yield from _after_base_phase(plan, phase)
        return
    if phase in arm.alternations:
        if all_ready:
            yield from _of_all_paths("label", arm, phase)
        return
    through = arm.topology.paths_through(module)
    paths = [path for path in through if ready.issuperset(arm.topology.modules_of(path))]
    if phase < arm.phases:
        yield from _step_without_paths(arm, module, phase, frontier)
        yield from _training(arm, phase, paths, frontier, all_ready=all_ready)
    if arm.hold_out:
        yield from _checks(arm, phase, paths, frontier)
    elif arm.is_evaluated(phase) and all_ready:
        yield from _of_all_paths("score", arm, phase)


def _after_base_phase(plan: Plan, phase: int) -> Iterable[Task]:
    """The base model goes on training. After its last phase, documents are routed by it."""
    if phase < plan.base.phases:
        return [_pretraining(plan, phase)]
    return _of_all_slices("route", "features", plan.feature_slices) or [Task("route")]


def _pretraining(plan: Plan, phase: int) -> Task:
    """The one path of the base model goes through a phase."""
    return Task("pretrain", plan.base.name, "0", phase)


def _step_without_paths(
    arm: Arm, module: ModuleId, phase: int, frontier: Frontier
) -> Iterable[Task]:
    """The outer step of a phase, if no path of the module takes part in it. The module stays as it
    is, unless contributions of the phase before are late.
    """
    if arm.contributors(module, phase):
        return
    may_be_late = arm.has_quorum and phase and not arm.waits_for_all(phase - 1)
    late = arm.contributors(module, phase - 1) if may_be_late else ()
    if not late or frontier.num_contributions(arm.name, module, phase - 1) == len(late):
        yield Task("outer", arm.name, str(module), phase)


def _training(
    arm: Arm, phase: int, paths: Iterable[int], frontier: Frontier, *, all_ready: bool
) -> Iterable[Task]:
    """Training tasks of `paths`, whose modules are all at `phase`.

    Args:
      all_ready: every module of the arm is at `phase`.
    """
    if arm.is_synchronous:
        if all_ready:
            yield Task("train", arm.name, "0", phase)  # One task trains all paths.
        return
    late = _late(arm, phase, frontier)
    for path in paths:
        if path in arm.paths_in(phase) and path not in late:
            # If the path went ahead, this task exists: it may wait for this very module.
            yield Task("train", arm.name, str(path), phase)


def _checks(arm: Arm, phase: int, paths: Iterable[int], frontier: Frontier) -> Iterable[Task]:
    """Checks of `paths`, whose modules are all at `phase`, where the phase before is checked."""
    is_first = phase == 0  # after an alternation `_after_alternation` makes the first
    checked_before = set() if is_first else frontier.checked(arm.name, phase - 1)
    for path in paths:
        if is_first or path in checked_before:
            yield Task("check", arm.name, str(path), phase)


def _late(arm: Arm, phase: int, frontier: Frontier) -> set[int]:
    """Paths that have not finished the phase before, though their modules may have stepped."""
    if not arm.has_quorum or phase == 0:
        return set()
    return set(arm.paths_in(phase - 1)) - frontier.trained(arm.name, phase - 1)


def _after_training(plan: Plan, fact: PathTrained, frontier: Frontier) -> Iterable[Task]:
    """A late path continues if all its modules have stepped meanwhile. A path that goes ahead
    (`outer.delay`) continues at once.
    """
    arm, path, after = plan.arm(fact.arm), fact.path, fact.phase + 1
    if after >= arm.phases:
        return
    if arm.goes_ahead(path, after):
        yield Task("train", arm.name, str(path), after)
        return
    may_be_late = arm.has_quorum and not arm.waits_for_all(fact.phase)
    if not may_be_late or path not in arm.paths_in(after):
        return
    if frontier.modules_at(arm.name, after).issuperset(arm.topology.modules_of(path)):
        yield Task("train", arm.name, str(path), after)


def _after_stage(plan: Plan, fact: StageDone, frontier: Frontier) -> Iterable[Task]:
    if fact.stage == "prepare":
        yield _pretraining(plan, 0)
    elif fact.stage == "reroute":
        yield Task("report")
    elif fact.stage == "route" and fact.phase == 0:
        # The base model is scored only now: its release names the router and the shards.
        yield from _of_all_paths("score", plan.base, plan.base.phases)
    elif fact.stage == "route":
        for arm in plan.arms:
            if fact.phase in arm.alternations:
                yield from _after_alternation(arm, fact.phase, frontier)


def _after_alternation(arm: Arm, phase: int, frontier: Frontier) -> Iterable[Task]:
    """The tasks that wait for an alternation. All modules are ready by then. A module that no path
    goes through waits too: paths may train on it next, and need their new shards.
    """
    if phase < arm.phases:
        for module in arm.topology.modules:
            yield from _step_without_paths(arm, module, phase, frontier)
        for path in arm.paths_in(phase):
            yield Task("train", arm.name, str(path), phase)
    if arm.hold_out:
        yield from _of_all_paths("check", arm, phase)
    elif arm.is_evaluated(phase):
        yield from _of_all_paths("score", arm, phase)


def _after_labels(plan: Plan, fact: PathLabelled, frontier: Frontier) -> Iterable[Task]:
    """All paths have labelled: documents are routed again."""
    if frontier.num_labelled(fact.arm, fact.phase) == plan.arm(fact.arm).topology.num_paths:
        yield Task("route", phase=fact.phase)


def _after_check(plan: Plan, fact: PathChecked, frontier: Frontier) -> Iterable[Task]:
    """A path is checked phase by phase: each check knows the best one before it."""
    arm, path, phase = plan.arm(fact.arm), fact.path, fact.phase
    topology, after = arm.topology, phase + 1
    goes_on = after <= arm.phases and after not in arm.alternations
    if goes_on and frontier.modules_at(arm.name, after).issuperset(topology.modules_of(path)):
        yield Task("check", arm.name, str(path), after)
    if arm.is_evaluated(phase) and len(frontier.checked(arm.name, phase)) == topology.num_paths:
        yield from _of_all_paths("score", arm, phase)


def _after_scores(plan: Plan, fact: PathScored, frontier: Frontier) -> Iterable[Task]:
    """All paths have scored: the release is evaluated."""
    if frontier.num_scored(fact.arm, fact.phase) == plan.arm(fact.arm).topology.num_paths:
        yield Task("evaluate", fact.arm, "", fact.phase)


def _after_evaluation(plan: Plan, fact: Evaluated, frontier: Frontier) -> Iterable[Task]:
    # Prompts are continued only now: if likelihood routes, the scores of all paths route them.
    if plan.samples:
        yield Task("sample", fact.arm, "", fact.phase)
    # Nothing waits for a sample: one that cannot be made costs a run nothing else.
    if _evaluations(plan) <= frontier.evaluated():
        yield Task("reroute" if plan.reroutes else "report")


def _of_all_paths(kind: Kind, arm: Arm, phase: int) -> Iterable[Task]:
    for path in range(arm.topology.num_paths):
        yield Task(kind, arm.name, str(path), phase)


# The tasks after each kind of fact. A `Contribution` makes none due by itself: see `awaited_steps`
# and `quorum_steps`. Nothing follows a `Sampled`.
AFTER: dict[type[Fact], Callable[[Plan, Any, Frontier], Iterable[Task]]] = {
    SliceDone: _after_slice,
    StageDone: _after_stage,
    ModuleReady: _after_module,
    PathTrained: _after_training,
    PathLabelled: _after_labels,
    PathChecked: _after_check,
    PathScored: _after_scores,
    Evaluated: _after_evaluation,
}
