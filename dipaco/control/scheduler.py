"""Which tasks does a new fact make due? A pure function; its cost goes with what changed, not with
the history.

There is no global barrier (DiPaCo section 3): a module steps when its own arrivals are in, and a
path goes on when its own modules have stepped.
"""

from collections.abc import Iterable
from typing import Protocol

from dipaco.control.plan import Arm, Plan
from dipaco.control.tasks import (
    Arrival,
    Evaluated,
    Fact,
    ModuleReady,
    PathScored,
    PathTrained,
    StageDone,
    Task,
)
from dipaco.topology import ModuleId


class Frontier(Protocol):
    """The facts that a decision needs, those just recorded included."""

    def modules_at(self, arm: str, phase: int) -> set[ModuleId]: ...

    def num_arrivals(self, arm: str, module: ModuleId, phase: int) -> int: ...

    def num_scored(self, arm: str, phase: int) -> int: ...

    def evaluated(self) -> set[tuple[str, int]]: ...


def first_task() -> Task:
    """What a new run begins with."""
    return Task("prepare")


def due(plan: Plan, facts: Iterable[Fact], frontier: Frontier) -> list[Task]:
    """The tasks that `facts`, just recorded together, make due; in a fixed order, none twice."""
    tasks: dict[Task, None] = {}
    for fact in facts:
        match fact:
            case StageDone(stage="prepare"):
                tasks[Task("pretrain", plan.base.name, "0", 0)] = None
            case ModuleReady(arm=arm, module=module, phase=phase):
                tasks |= dict.fromkeys(_after_module(plan, plan.arm(arm), module, phase, frontier))
            case Arrival(arm=arm, module=module, phase=phase):
                fan_in = plan.arm(arm).topology.fan_in(module)
                if frontier.num_arrivals(arm, module, phase) == fan_in:
                    tasks[Task("outer", arm, str(module), phase)] = None
            case PathScored(arm=arm, phase=phase):
                if frontier.num_scored(arm, phase) == plan.arm(arm).topology.num_paths:
                    tasks[Task("evaluate", arm, "", phase)] = None
            case Evaluated():
                if _evaluations(plan) <= frontier.evaluated():
                    tasks[Task("report")] = None
            case StageDone(stage="route"):
                # The base model is scored here: its release names the router and the shards, which
                # are known by now.
                tasks[Task("score", plan.base.name, "0", plan.base.phases)] = None
            case PathTrained() | StageDone():
                pass
    return list(tasks)


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
            yield Task("route")
        else:
            yield Task("pretrain", arm.name, "0", phase)
        return
    if phase < arm.phases:
        for path in arm.topology.paths_through(module):
            if ready.issuperset(arm.topology.modules_of(path)):
                yield Task("train", arm.name, str(path), phase)
    if arm.is_evaluated(phase) and len(ready) == len(arm.topology.modules):
        for path in range(arm.topology.num_paths):
            yield Task("score", arm.name, str(path), phase)
