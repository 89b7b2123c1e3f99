"""Tables of facts -> tasks, on facts in memory; then whole runs, in any order of work."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dipaco.control.scheduler import due, first_task
from dipaco.control.tasks import Arrival, Evaluated, Fact, ModuleReady, PathScored, Task
from tests.control.conftest import (
    arrival,
    evaluated,
    facts_of,
    ready,
    scored,
    stage,
    trained,
)


@dataclasses.dataclass
class Facts:
    """What the ledger remembers, as a list."""

    known: list[Fact] = dataclasses.field(default_factory=list)

    def _of(self, kind, **fields):
        return [
            fact
            for fact in self.known
            if isinstance(fact, kind)
            and all(getattr(fact, name) == value for name, value in fields.items())
        ]

    def modules_at(self, arm, phase):
        return {fact.module for fact in self._of(ModuleReady, arm=arm, phase=phase)}

    def num_arrivals(self, arm, module, phase):
        return len(self._of(Arrival, arm=arm, module=module, phase=phase))

    def num_scored(self, arm, phase):
        return len(self._of(PathScored, arm=arm, phase=phase))

    def evaluated(self):
        return {(fact.arm, fact.phase) for fact in self._of(Evaluated)}


def tasks_after(plan, known, new):
    """What `new` facts make due where `known` ones were recorded before."""
    return due(plan, new, Facts([*known, *new]))


def names(tasks):
    return [str(task) for task in tasks]


def modules(*ids, phase):
    return [ready("modular", module, phase) for module in ids]


TABLE = {
    "a new run: tokens first, then the base model": (
        [],
        [stage("prepare")],
        ["pretrain base 0 phase 0"],
    ),
    "the base model goes on": (
        [],
        [trained("base", 0, 0), ready("base", "all/0000", 1)],
        ["pretrain base 0 phase 1"],
    ),
    "the base model is ready: route": (
        [ready("base", "all/0000", 1)],
        [trained("base", 0, 1), ready("base", "all/0000", 2)],
        ["route"],
    ),
    "one arrival of two": ([], [trained("modular", 0, 0), arrival("early/0000", 0, 0)], []),
    "the last arrival": (
        [arrival("early/0000", 0, 0)],
        [arrival("early/0000", 0, 1)],
        ["outer modular module early/0000 phase 0"],
    ),
    "arrivals of another phase do not count": (
        [arrival("early/0000", 0, 0)],
        [arrival("early/0000", 1, 1)],
        [],
    ),
    "arrivals at another module do not count": (
        [arrival("early/0000", 0, 0)],
        [arrival("late/0000", 0, 2)],
        [],
    ),
    "both modules of a path step at once": (
        [arrival("early/0000", 0, 0), arrival("late/0001", 0, 3)],
        [arrival("early/0000", 0, 1), arrival("late/0001", 0, 1)],
        ["outer modular module early/0000 phase 0", "outer modular module late/0001 phase 0"],
    ),
    "one module of a path is ready": ([], modules("early/0000", phase=1), []),
    "no barrier: a path goes on when its own modules are ready": (
        modules("early/0000", phase=1),
        modules("late/0001", phase=1),
        ["train modular path 1 phase 1"],
    ),
    "a module that two waiting paths need": (
        modules("late/0000", "late/0001", phase=1),
        modules("early/0001", phase=1),
        ["train modular path 2 phase 1", "train modular path 3 phase 1"],
    ),
    "a module of the phase before does not count": (
        modules("late/0000", "late/0001", phase=0),
        modules("early/0001", phase=1),
        [],
    ),
    "the last module of a phase: the last path goes on, the release is scored": (
        modules("early/0000", "early/0001", "late/0000", phase=1),
        modules("late/0001", phase=1),
        [
            "train modular path 1 phase 1",
            "train modular path 3 phase 1",
            *(f"score modular path {path} phase 1" for path in range(4)),
        ],
    ),
    "after the last phase nothing trains": (
        modules("early/0000", "early/0001", "late/0000", phase=2),
        modules("late/0001", phase=2),
        [f"score modular path {path} phase 2" for path in range(4)],
    ),
    "a dense arm needs no outer step, and is not evaluated at every phase": (
        [],
        [trained("dense", 0, 0), ready("dense", "all/0000", 1)],
        ["train dense path 0 phase 1"],
    ),
    "a dense arm goes on and is evaluated": (
        [],
        [trained("dense", 0, 1), ready("dense", "all/0000", 2)],
        ["train dense path 0 phase 2", "score dense path 0 phase 2"],
    ),
    "the last phase is evaluated though the interval does not divide it": (
        [],
        [trained("dense", 0, 2), ready("dense", "all/0000", 3)],
        ["score dense path 0 phase 3"],
    ),
    "some paths are scored": (
        [scored("modular", 0, 1), scored("modular", 1, 1), scored("modular", 2, 2)],
        [scored("modular", 3, 1)],
        [],
    ),
    "all paths are scored": (
        [scored("modular", path, 1) for path in (0, 3, 1)],
        [scored("modular", 2, 1)],
        ["evaluate modular phase 1"],
    ),
    "an arm between is evaluated": ([], [evaluated("modular", 1)], []),
    "all arms but one are evaluated": (
        [evaluated("base", 2), evaluated("dense", 2), evaluated("modular", 1)],
        [evaluated("modular", 2)],
        [],
    ),
    "the base model must be evaluated too": (
        [evaluated("dense", 2), evaluated("dense", 3), evaluated("modular", 1)],
        [evaluated("modular", 2)],
        [],
    ),
    "an evaluation of a phase before is still under way": (
        [evaluated("base", 2), evaluated("dense", 2), evaluated("dense", 3)],
        [evaluated("modular", 2)],
        [],
    ),
    "all arms are evaluated: report": (
        [
            evaluated("base", 2),
            evaluated("dense", 2),
            evaluated("modular", 2),
            evaluated("modular", 1),
        ],
        [evaluated("dense", 3)],
        ["report"],
    ),
    "the end": ([], [stage("report")], []),
}


@pytest.mark.parametrize(("known", "new", "expected"), TABLE.values(), ids=TABLE.keys())
def test_new_facts_make_due_exactly_what_they_complete(plan, known, new, expected):
    assert names(tasks_after(plan, known, new)) == expected


def test_routing_makes_every_arm_start_and_the_base_model_scored(plan):
    tasks = tasks_after(plan, [], facts_of(plan, Task("route")))
    assert sorted(names(tasks)) == sorted(
        [
            "score base path 0 phase 2",
            *(f"train modular path {path} phase 0" for path in range(4)),
            "train dense path 0 phase 0",
        ]
    )


@given(order=st.data())
@settings(max_examples=30, deadline=None)
def test_whatever_is_done_first_every_task_comes_due_once_and_the_report_is_last(plan, order):
    facts, waiting, done = Facts(), [first_task()], []
    while waiting:
        task = waiting.pop(order.draw(st.integers(0, len(waiting) - 1)))
        done.append(task)
        new = facts_of(plan, task)
        facts.known.extend(new)
        waiting.extend(due(plan, new, facts))
    assert len(set(done)) == len(done)
    assert done[-1] == Task("report")
    assert Counter((task.kind, task.arm) for task in done) == {
        ("prepare", ""): 1,
        ("pretrain", "base"): 2,
        ("route", ""): 1,
        ("train", "modular"): 4 * 2,
        ("train", "dense"): 3,
        ("outer", "modular"): 4 * 2,
        ("score", "base"): 1,
        ("score", "modular"): 4 * 2,
        ("score", "dense"): 2,
        ("evaluate", "base"): 1,
        ("evaluate", "modular"): 2,
        ("evaluate", "dense"): 2,
        ("report", ""): 1,
    }


def test_a_path_never_trains_on_a_module_that_has_not_stepped(plan):
    """The rule behind the tables: all modules of a path are there when its task comes due."""
    facts, waiting = Facts(), [first_task()]
    while waiting:
        task = waiting.pop()
        if task.kind == "train":
            needed = plan.arm(task.arm).topology.modules_of(task.path)
            assert facts.modules_at(task.arm, task.phase).issuperset(needed)
        new = facts_of(plan, task)
        facts.known.extend(new)
        waiting.extend(due(plan, new, facts))


def test_the_cost_goes_with_what_changed_and_not_with_the_history(plan):
    """One arrival asks the frontier one question."""

    class Counting(Facts):
        asked = 0

        def _of(self, *args, **fields):
            self.asked += 1
            return super()._of(*args, **fields)

    facts = Counting([arrival("early/0000", 0, 0), arrival("early/0000", 0, 1)])
    due(plan, facts.known[-1:], facts)
    assert facts.asked == 1
