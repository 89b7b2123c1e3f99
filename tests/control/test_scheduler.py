"""Tables of facts -> tasks, on facts in memory; then whole runs, in any order of work."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.made_up_facts import (
    checked,
    contribution,
    evaluated,
    facts_of,
    labelled,
    ready,
    sampled,
    scored,
    slice_done,
    stage,
    trained,
)

from dipaco.control.planning.scheduler import awaited_steps, due, first_tasks, quorum_steps
from dipaco.control.planning.tasks import (
    PRIORITY,
    Contribution,
    Evaluated,
    Fact,
    ModuleReady,
    PathChecked,
    PathLabelled,
    PathScored,
    PathTrained,
    SliceDone,
    Task,
)
from dipaco.topology import Level, Topology
from tests.control.conftest import GRID, arm


@dataclasses.dataclass
class ListedFacts:
    """A frontier over a list of facts."""

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

    def trained(self, arm, phase):
        return {fact.path for fact in self._of(PathTrained, arm=arm, phase=phase)}

    def num_contributions(self, arm, module, phase):
        return len(self._of(Contribution, arm=arm, module=module, phase=phase))

    def num_labelled(self, arm, phase):
        return len(self._of(PathLabelled, arm=arm, phase=phase))

    def checked(self, arm, phase):
        return {fact.path for fact in self._of(PathChecked, arm=arm, phase=phase)}

    def num_slices(self, stage, step):
        return len(self._of(SliceDone, stage=stage, step=step))

    def num_scored(self, arm, phase):
        return len(self._of(PathScored, arm=arm, phase=phase))

    def evaluated(self):
        return {(fact.arm, fact.phase) for fact in self._of(Evaluated)}


def tasks_after(plan, known, new):
    """What `new` facts make due where `known` ones were recorded before."""
    return everything_due(plan, new, ListedFacts([*known, *new]))


def everything_due(plan, new, facts):
    """With the outer steps whose condition is met: in a ledger, a query sees to that."""
    gathered = [
        task
        for task, awaited in awaited_steps(plan, new)
        if facts.num_contributions(task.arm, task.module, task.phase) == awaited
    ]
    gathered += [quorum.task for quorum in quorum_steps(plan, new) if has_all(facts, quorum)]
    return [*gathered, *due(plan, new, facts)]


def has_all(facts, quorum, *, enough=None):
    """Whether a step with a quorum is due at once; or, with `enough`, when its grace is over."""
    _, arm, _, phase = quorum.task
    module = quorum.task.module
    return (
        module in facts.modules_at(arm, phase)
        and facts.num_contributions(arm, module, phase) >= (enough or quorum.awaited)
        and facts.num_contributions(arm, module, phase - 1) >= quorum.awaited_before
    )


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
    "one contribution of two": (
        [],
        [trained("modular", 0, 0), contribution("early/0000", 0, 0)],
        [],
    ),
    "the last contribution": (
        [contribution("early/0000", 0, 0)],
        [contribution("early/0000", 0, 1)],
        ["outer modular module early/0000 phase 0"],
    ),
    "contributions of another phase do not count": (
        [contribution("early/0000", 0, 0)],
        [contribution("early/0000", 1, 1)],
        [],
    ),
    "contributions at another module do not count": (
        [contribution("early/0000", 0, 0)],
        [contribution("late/0000", 0, 2)],
        [],
    ),
    "both modules of a path step at once": (
        [contribution("early/0000", 0, 0), contribution("late/0001", 0, 3)],
        [contribution("early/0000", 0, 1), contribution("late/0001", 0, 1)],
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


IN_SLICES = {
    "slices are read: the last one is waited for": (
        [slice_done("read", 0), slice_done("read", 2)],
        [slice_done("read", 1)],
        ["prepare merge slice 0"],
    ),
    "one is still being read": ([slice_done("read", 0)], [slice_done("read", 2)], []),
    "slices are merged: each is made tokens": (
        [slice_done("read", number) for number in range(3)],
        [slice_done("merge", 0)],
        [f"prepare tokenise slice {number}" for number in range(3)],
    ),
    "all slices are tokens: the corpus is put together": (
        [slice_done("tokenise", 0), slice_done("tokenise", 1)],
        [slice_done("tokenise", 2)],
        ["prepare"],
    ),
    "the base model is ready: features first": (
        [ready("base", "all/0000", 1)],
        [trained("base", 0, 1), ready("base", "all/0000", 2)],
        [f"route features slice {number}" for number in range(3)],
    ),
    "all features are there: documents are routed": (
        [slice_done("features", 0), slice_done("features", 2)],
        [slice_done("features", 1)],
        ["route"],
    ),
}


@pytest.mark.parametrize(("known", "new", "expected"), IN_SLICES.values(), ids=IN_SLICES.keys())
def test_the_text_in_slices_is_waited_for_step_by_step(plan, known, new, expected):
    sliced = dataclasses.replace(plan, slices=3, feature_slices=3)
    assert names(first_tasks(3)) == [f"prepare read slice {number}" for number in range(3)]
    assert names(tasks_after(sliced, known, new)) == expected


def done_in_order(plan, order):
    """The tasks of a run as they were done, each picked of those that are due."""
    facts, waiting, done = ListedFacts(), first_tasks(0), []
    while waiting:
        task = waiting.pop(order.draw(st.integers(0, len(waiting) - 1)))
        done.append(task)
        if task.kind == "train":  # whatever the tables say: all modules of a path are there
            needed = plan.arm(task.arm).topology.modules_of(task.path)
            assert facts.modules_at(task.arm, task.phase).issuperset(needed)
        if task.kind in ("train", "outer"):
            alternations = plan.arm(task.arm).alternations
            routed = [Task("route", phase=at) for at in alternations if at <= task.phase]
            assert set(routed) <= set(done), f"{task} has no shards yet"
        new = facts_of(plan, task)
        facts.known.extend(new)
        waiting.extend(everything_due(plan, new, facts))
    assert len(set(done)) == len(done)
    assert done[-1] == Task("report")
    return Counter((task.kind, task.arm) for task in done)


@given(order=st.data())
@settings(max_examples=20)
def test_in_any_order_of_work_every_task_becomes_due_once_and_the_report_is_last(plan, order):
    assert done_in_order(plan, order) == {
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


def test_the_cost_depends_on_what_changed_and_not_on_the_history(plan):
    """One path's score asks the frontier one question, and a contribution none."""

    class Counting(ListedFacts):
        asked = 0

        def _of(self, *args, **fields):
            self.asked += 1
            return super()._of(*args, **fields)

    facts = Counting([scored("modular", path, 1) for path in range(4)])
    assert due(plan, facts.known[-1:], facts) == [Task("evaluate", "modular", "", 1)]
    assert facts.asked == 1
    assert due(plan, [contribution("early/0000", 0, 0)], facts) == []
    assert len(awaited_steps(plan, [contribution("early/0000", 0, 0)])) == 1
    assert facts.asked == 1


# --- alternations, early stopping, path sampling, re-routing -------------------------------------

ALL = ("early/0000", "early/0001", "late/0000", "late/0001")


def with_settings(plan, *, reroutes=False, **settings):
    """The plan with three phases of the modular arm, and settings of it."""
    modular = dataclasses.replace(plan.arm("modular"), phases=3, total_steps=30, **settings)
    return dataclasses.replace(plan, arms=(modular, plan.arm("dense")), reroutes=reroutes)


def of_all_paths(kind, phase):
    return [f"{kind} modular path {path} phase {phase}" for path in range(4)]


TABLE_OF_SETTINGS = {
    "an alternation is a barrier: one module is missing": (
        {"alternations": (1,)},
        modules("early/0000", "early/0001", phase=1),
        modules("late/0000", phase=1),
        [],
    ),
    "the last module is ready: every path is scored on the router's documents": (
        {"alternations": (1,)},
        modules(*ALL[:3], phase=1),
        modules(ALL[3], phase=1),
        of_all_paths("label", 1),
    ),
    "one path has not been scored yet": (
        {"alternations": (1,)},
        [labelled(0, 1), labelled(2, 1)],
        [labelled(3, 1)],
        [],
    ),
    "all are: the documents are routed again": (
        {"alternations": (1,)},
        [labelled(path, 1) for path in range(3)],
        [labelled(3, 1)],
        ["route phase 1"],
    ),
    "they are: training goes on, and the release is scored under the new router": (
        {"alternations": (1,)},
        modules(*ALL, phase=1),
        [stage("route", 1)],
        [*of_all_paths("train", 1), *of_all_paths("score", 1)],
    ),
    "an alternation after the last phase trains nothing": (
        {"alternations": (3,)},
        modules(*ALL, phase=3),
        [stage("route", 3)],
        of_all_paths("score", 3),
    ),
    "no alternation at this phase": (
        {"alternations": (1,)},
        modules("early/0000", phase=2),
        modules("late/0001", phase=2),
        ["train modular path 1 phase 2"],
    ),
    "the first check of a path": (
        {"hold_out": 0.1},
        modules("early/0000", phase=0),
        modules("late/0001", phase=0),
        ["train modular path 1 phase 0", "check modular path 1 phase 0"],
    ),
    "a check waits for the one before it": (
        {"hold_out": 0.1},
        modules("early/0000", phase=1),
        modules("late/0001", phase=1),
        ["train modular path 1 phase 1"],
    ),
    "which was there": (
        {"hold_out": 0.1},
        [*modules("early/0000", phase=1), checked(1, 0)],
        modules("late/0001", phase=1),
        ["train modular path 1 phase 1", "check modular path 1 phase 1"],
    ),
    "or comes": (
        {"hold_out": 0.1},
        modules("early/0000", "late/0001", phase=1),
        [checked(1, 0)],
        ["check modular path 1 phase 1"],
    ),
    "modules without their checks are not released": (
        {"hold_out": 0.1},
        [*modules(*ALL[:3], phase=1)],
        modules(ALL[3], phase=1),
        ["train modular path 1 phase 1", "train modular path 3 phase 1"],
    ),
    "the last check: the release is scored": (
        {"hold_out": 0.1},
        [checked(path, 3) for path in (0, 1, 3)],
        [checked(2, 3)],
        of_all_paths("score", 3),
    ),
    "after an alternation checks start again": (
        {"hold_out": 0.1, "alternations": (2,)},
        modules(*ALL, phase=2),
        [stage("route", 2)],
        [*of_all_paths("train", 2), *of_all_paths("check", 2)],
    ),
    "a path that goes ahead begins its next phase at once": (
        {"delay": 2},
        [],
        [trained("modular", 1, 0)],
        ["train modular path 1 phase 1"],
    ),
    "but not without new shards": (
        {"delay": 2, "alternations": (1,)},
        modules(*ALL, phase=1),
        [trained("modular", 1, 0)],
        [],
    ),
    "nor after the last phase": ({"delay": 2}, [], [trained("modular", 1, 2)], []),
    "the last of its modules calls back a path that waits for it": (
        {"delay": 2},
        [trained("modular", 1, 0), *modules("early/0000", phase=1)],
        modules("late/0001", phase=1),
        ["train modular path 1 phase 1"],
    ),
    "and none reaches across it": (
        {"hold_out": 0.1, "alternations": (2,)},
        modules(*ALL, phase=2),
        [checked(1, 1)],
        [],
    ),
}


@pytest.mark.parametrize(
    ("settings", "known", "new", "expected"), TABLE_OF_SETTINGS.values(), ids=TABLE_OF_SETTINGS
)
def test_each_setting_of_an_arm_makes_its_tasks_due(plan, settings, known, new, expected):
    assert names(tasks_after(with_settings(plan, **settings), known, new)) == expected


def test_a_module_waits_only_for_the_paths_that_take_part(plan):
    sampled = with_settings(plan, path_share=0.5)
    arm = sampled.arm("modular")
    for phase in range(3):
        for module in arm.topology.modules:
            facts = [contribution(module, phase, path) for path in arm.contributors(module, phase)]
            if not facts:
                continue
            assert not tasks_after(sampled, facts[:-2], facts[-2:-1]) or len(facts) == 1
            assert names(tasks_after(sampled, facts[:-1], facts[-1:])) == [
                f"outer modular module {module} phase {phase}"
            ]


def test_a_release_is_sampled_once_it_is_evaluated_and_the_report_waits_for_no_text(plan):
    """A text that cannot be made costs a run nothing else."""
    plan = dataclasses.replace(plan, samples=True)
    releases = [("base", 2), ("dense", 2), ("dense", 3), ("modular", 1), ("modular", 2)]
    *known, last = [evaluated(*release) for release in releases]
    assert names(tasks_after(plan, known[:-1], known[-1:])) == ["sample modular phase 1"]
    assert names(tasks_after(plan, known, [last])) == ["sample modular phase 2", "report"]
    rerouted = dataclasses.replace(plan, reroutes=True)
    assert names(tasks_after(rerouted, known, [last])) == ["sample modular phase 2", "reroute"]
    assert names(tasks_after(plan, [*known, last], [sampled("base", 2)])) == []


def test_a_release_is_sampled_before_training_goes_on():
    """Texts are read while it does; with one worker all of training would come first."""
    assert PRIORITY["evaluate"] < PRIORITY["sample"] < PRIORITY["train"]


ANY_SETTINGS = {
    "path_share": st.sampled_from([1.0, 0.5, 0.25]),
    "hold_out": st.sampled_from([0.0, 0.1]),
    "alternations": st.sampled_from([(), (1,), (2, 3)]),
}


@given(order=st.data(), of=st.fixed_dictionaries(ANY_SETTINGS))
@settings(max_examples=40)
def test_with_any_settings_every_task_becomes_due_once_and_the_report_is_last(plan, order, of):
    count = done_in_order(with_settings(plan, **of, reroutes=True), order)
    assert count["train", "modular"] == 3 * round(4 * of["path_share"])
    assert count["outer", "modular"] == 4 * 3
    assert count["label", "modular"] == 4 * len(of["alternations"])
    assert count["route", ""] == 1 + len(of["alternations"])
    assert count["check", "modular"] == (4 * 4 if of["hold_out"] else 0)
    assert count["score", "modular"] == 4 * 3


# --- quorum: modules that step while a path is late ----------------------------------------------


def sent_by(path, phase):
    """What a path records, and what it sends to its two modules."""
    sent = [contribution(module, phase, path) for module in GRID.modules_of(path)]
    return [trained("modular", path, phase), *sent]


def test_with_a_quorum_a_late_path_continues_when_it_has_finished_its_phase(plan):
    half = with_settings(plan, quorum=0.5, evaluate_every=3)
    others = [fact for path in (1, 2, 3) for fact in sent_by(path, 0)]
    known = [*modules(*ALL, phase=0), *others, *modules(*ALL[:3], phase=1)]
    # The last of its modules steps without path 0, which goes through early/0000 and late/0000 ...
    assert names(tasks_after(half, known, modules(ALL[3], phase=1))) == [
        "train modular path 1 phase 1",
        "train modular path 3 phase 1",
    ]
    # ... and goes on where the others are, as soon as it has come.
    known += modules(ALL[3], phase=1)
    assert names(tasks_after(half, known, sent_by(0, 0))) == [
        "outer modular module early/0000 phase 0",  # done by then: nothing changes
        "outer modular module late/0000 phase 0",
        "train modular path 0 phase 1",
    ]
    # Where it comes in time, it waits for its modules, as ever.
    assert "train modular path 0 phase 1" not in names(
        tasks_after(half, [*modules(*ALL, phase=0), *others], sent_by(0, 0))
    )


def test_a_step_waits_for_contributions_that_were_late_for_the_one_before(plan):
    half = with_settings(plan, quorum=0.5)
    known = [
        *modules(*ALL, phase=0),
        *(contribution("early/0000", 0, path) for path in (1,)),
        *modules("early/0000", phase=1),
    ]
    new = [contribution("early/0000", 1, 1)]
    (quorum,) = [each for each in quorum_steps(half, new) if each.task.phase == 1]
    assert (quorum.awaited, quorum.enough, quorum.awaited_before) == (2, 1, 2)
    assert not has_all(ListedFacts([*known, *new]), quorum, enough=quorum.enough)
    late = contribution("early/0000", 0, 0)
    assert has_all(ListedFacts([*known, *new, late]), quorum, enough=quorum.enough)
    assert [each.task.phase for each in quorum_steps(half, [late])] == [0, 1]


def test_a_module_without_paths_steps_after_an_alternation_whatever_is_made_again(plan):
    """Its contributions of the phase before came again, and it stepped before documents were
    routed: paths were then told to train without shards.
    """
    half = with_settings(plan, quorum=0.5, alternations=(1,), path_share=0.25)
    path = half.arm("modular").paths_in(0)[0]
    again = [contribution(module, 0, path) for module in GRID.modules_of(path)]
    at_alternation = [quorum.task for quorum in quorum_steps(half, again) if quorum.task.phase]
    through = {*GRID.modules_of(half.arm("modular").paths_in(1)[0])}
    assert {task.module for task in at_alternation} <= through
    # A refused one comes again only after documents were routed: the step does not wait for it.
    (idle, *_) = sorted({*GRID.modules_of(path)} - through)
    known = [stage("route"), *modules(*ALL, phase=0), *modules(*ALL, phase=1)]
    step = f"outer modular module {idle} phase 1"
    assert step in names(tasks_after(half, known, [stage("route", 1)]))


def test_at_the_end_and_before_an_alternation_a_module_waits_for_all(plan):
    arm = with_settings(plan, quorum=0.5, alternations=(1,)).arm("modular")
    assert [arm.enough_of(arm.topology.modules[0], phase) for phase in range(3)] == [2, 1, 2]


@pytest.mark.parametrize(
    ("quorum", "paths", "enough"),
    [(1.0, 4, 4), (0.75, 4, 3), (0.7, 10, 7), (0.55, 20, 11), (0.01, 4, 1), (0.99, 4, 4)],
)
def test_a_share_is_rounded_up_to_whole_paths(quorum, paths, enough):
    shared = Topology(levels=(Level(name="all", parts=("embed",)), Level(name="n", experts=paths)))
    of = arm("modular", shared, 2, averaged=True)
    assert dataclasses.replace(of, quorum=quorum).enough_of(shared.modules[0], 0) == enough


@given(order=st.data(), of=st.fixed_dictionaries(ANY_SETTINGS))
@settings(max_examples=50)
def test_with_a_quorum_every_task_becomes_due_once_and_no_contribution_is_late_by_two_steps(
    plan, order, of
):
    """Any module may step without late paths, as soon as the rules allow it."""
    plan = with_settings(plan, **of, quorum=0.5)
    facts, waiting, done, in_grace = ListedFacts(), first_tasks(0), [], {}
    taken: dict[tuple, int] = {}
    while waiting:
        over = [task for task in in_grace if task not in done and task not in waiting]
        index = order.draw(st.integers(0, len(waiting) + len(over) - 1))
        if index >= len(waiting):
            waiting.append(over[index - len(waiting)])
            continue
        task = waiting.pop(index)
        done.append(task)
        new = facts_of(plan, task)
        if task.kind == "train" and task.arm == "modular":
            assert facts.modules_at("modular", task.phase) >= set(GRID.modules_of(task.path))
            before = plan.arm("modular").trained_before(task.path, task.phase)
            assert before is None or task.path in facts.trained("modular", before)
        if task.kind == "outer":
            for fact in facts._of(Contribution, module=task.module):
                key = (fact.module, fact.phase, fact.path)
                assert fact.phase <= task.phase
                if key not in taken:
                    taken[key] = task.phase
                    assert task.phase - fact.phase <= 1
        facts.known.extend(new)
        waiting += [t for t in everything_due(plan, new, facts) if t not in (*waiting, *done)]
        in_grace |= {
            quorum.task: None
            for quorum in quorum_steps(plan, new)
            if has_all(facts, quorum, enough=quorum.enough)
        }
    assert len(set(done)) == len(done)
    assert done[-1] == Task("report")
    count = Counter((task.kind, task.arm) for task in done)
    assert count["train", "modular"] == 3 * round(4 * of["path_share"])
    assert count["outer", "modular"] == 4 * 3
    assert len(taken) == len(facts._of(Contribution)), "a contribution is lost"
