"""Facts and progress: what was recorded comes back as it was; on both databases."""

import dataclasses
from collections import Counter

import pytest
from support.made_up_facts import (
    checked,
    contribution,
    evaluated,
    facts_of,
    ready,
    receipt,
    sampled,
    slice_done,
    stage,
    trained,
)

from dipaco.control.database.contract import KeyTaken
from dipaco.control.errors import NotAvailable
from dipaco.control.facts.progress import NewestPhase, TrainingTotals
from dipaco.control.facts.recording import record
from dipaco.control.ledger import open_ledger
from dipaco.control.planning.tasks import FIRST_KINDS, Task
from dipaco.topology import ModuleId
from tests.control.conftest import DATABASES, IntegrityError, do_all, do_until, everything

pytestmark = pytest.mark.parametrize("place", DATABASES[:2], indirect=True)


def test_reading_a_fact_before_it_is_recorded_names_what_is_missing(ledger):
    questions = {
        "stage `route`": lambda: ledger.facts.stage("route"),
        "module early/0001 of `modular` at phase 0": lambda: ledger.facts.module(
            "modular", ModuleId("early", 1), 0
        ),
        "path 2 of `modular` after phase 0": lambda: ledger.facts.snapshot("modular", 2, 0),
        "release of `modular`": lambda: ledger.facts.release("modular"),
        "release of `base`": lambda: ledger.facts.release("base", 1),
    }
    for what, ask in questions.items():
        with pytest.raises(NotAvailable, match=f"no {what} yet"):
            ask()


def test_what_was_recorded_comes_back_and_is_never_changed(finished, place):
    facts, progress = finished.facts, finished.progress
    assert facts.stage("prepare") == stage("prepare")
    assert [fact.stage for fact in facts.stages()] == ["prepare", "route", "report"]
    module = ModuleId("early", 1)
    fresh, stepped = (facts.module("modular", module, phase) for phase in (0, 2))
    assert fresh == (ready("modular", module, 0).parameters, None)
    assert stepped == (receipt("modular", module, 2), receipt("state", "modular", module, 2))
    assert facts.modules_at("modular", 2) == {
        ModuleId(level, expert) for level in ("early", "late") for expert in (0, 1)
    }
    fact = trained("modular", 3, 1)
    of_path = (fact.snapshot, fact.step, fact.position, fact.batches)
    assert facts.snapshot("modular", 3, 1) == of_path
    assert progress.steps_in_partial_snapshots("modular") == 0
    assert progress.losses("modular") == {path: [2.0, 1.5, 1.0, 0.5] for path in range(4)}
    totals = progress.training_totals("modular")
    assert totals == TrainingTotals(tokens=800, seconds=8.0, path_phases=8)
    newest = {each.path: each for each in progress.newest_phases() if each.arm == "modular"}
    assert newest[2] == NewestPhase("modular", path=2, phase=1, step=20, loss=0.5, tokens=200)
    assert evaluated("modular", 2) in facts.evaluations()
    assert facts.scores("modular", 2) == [
        receipt("scores", "modular", path, 2) for path in range(4)
    ]
    release = facts.release("modular", 1)
    assert release.modules_of(2) == {
        module: receipt("modular", "early/0001", 1),
        ModuleId("late", 0): receipt("modular", "late/0000", 1),
    }
    assert release.companions == {"prepare_made": "prepare", "route_made": "route"}
    assert facts.release("modular").phase == 2
    releases = Counter(arm for arm, _ in facts.releases())
    assert releases == {"base": 1, "modular": 2, "dense": 2}
    before = everything(finished)
    with open_ledger(*place) as again:
        assert everything(again) == before
    with pytest.raises(IntegrityError, match="never changed"):
        finished._database._connection.execute("UPDATE releases SET body = '{}'")


def test_slices_of_the_text_come_back_in_order_and_are_no_stages(place, plan):
    sliced = dataclasses.replace(plan, slices=11)
    with open_ledger(*place) as ledger:
        ledger.start({"config": "{}"}, sliced.slices)
        done = []
        while (claim := ledger.queue.claim("w", FIRST_KINDS)).task.kind == "prepare":
            done.append(claim.task)
            ledger.commit.finish(sliced, claim, facts_of(sliced, claim.task))
        of_step = dict.fromkeys(task.arm for task in done)
        assert list(of_step) == ["read", "merge", "tokenise", ""]
        assert len(done) == 11 + 1 + 11 + 1
        read = ledger.facts.slices("prepare", "read")
        assert read == [slice_done("read", number) for number in range(11)]
        assert len(ledger.facts.slices("prepare")) == 23
        assert ledger.facts.num_slices("prepare", "tokenise") == 11
        assert [fact.stage for fact in ledger.facts.stages()] == ["prepare"]
        maker = ledger.redos.maker_of(sliced, receipt("tokenise", 7).name)
        assert maker == Task("prepare", "tokenise", "7")


def test_contributions_come_back_in_path_order_whichever_came_first(ledger, plan):
    do_until(ledger, plan, "train")
    module = ModuleId("late", 0)
    with ledger._database.transaction():
        for path in (2, 0):
            record(ledger._database, contribution(module, 0, path))
    assert ledger.facts.contributions("modular", module, 0) == [
        contribution(module, 0, path) for path in (0, 2)
    ]


def test_samples_come_back_character_by_character_and_come_with_every_release(ledger, plan):
    plan = dataclasses.replace(plan, samples=True)
    assert ledger.facts.newest_samples("modular") is None
    assert do_all(ledger, plan)[-1] == Task("report")
    assert {(e.arm, e.phase) for e in ledger.facts.samples()} == ledger.facts.evaluated()
    assert ledger.facts.samples("modular") == [sampled("modular", phase) for phase in (1, 2)]
    assert ledger.facts.newest_samples("modular") == sampled("modular", 2)
    assert [each.arm for each in ledger.facts.samples()] == [
        *("base", "dense", "dense", "modular", "modular")
    ]


def test_the_same_fact_cannot_be_recorded_twice(ledger):
    """The unique indexes refuse the second."""
    with ledger._database.transaction():
        record(ledger._database, ready("modular", "early/0000", 1))
    before = everything(ledger)
    with pytest.raises(KeyTaken), ledger._database.transaction():
        record(ledger._database, ready("modular", "early/0000", 1))
    assert everything(ledger) == before


def test_every_kind_of_fact_has_a_table(finished):
    rows = {name: len(content) for name, content in everything(finished).items()}
    assert rows == {
        "meta": 1,
        "tasks": 40,
        "modules": 2 + 4 * 3 + 4,
        "contributions": 4 * 2 * 2,
        "trained": 2 + 4 * 2 + 3,
        "stages": 3,
        "scores": 1 + 4 * 2 + 2,
        "releases": 1 + 2 + 2,
        "evaluations": 1 + 2 + 2,
        "samples": 0,
        "claims": 0,
        "workers": 0,
        "partial_snapshots": 0,
        "refusals": 0,
        "labels": 0,
        "checks": 0,
        "set_aside": 0,
        "quorums": 0,
        "taken": 0,
        "path_totals": 1 + 4 + 1,
        "path_machines": 1 + 4 + 1,
        "module_totals": 1 + 4 + 1,
        "history": 40,  # each task was tried once
        "settled_tasks": 22,  # of 40 tasks: those of several phases share a row
    }


def test_a_release_with_early_stopping_has_each_path_at_its_best_phase(ledger, plan):
    modular = dataclasses.replace(plan.arm("modular"), hold_out=0.1)
    plan = dataclasses.replace(plan, arms=(modular, plan.arm("dense")))
    best = {(0, 2): 1, (2, 2): 0}  # (path, phase) -> where it was best; others now

    def facts(task):
        if task.kind == "check":
            return [checked(task.path, task.phase, best.get((task.path, task.phase)))]
        return facts_of(plan, task)

    while (claim := ledger.queue.claim("w")) is not None:
        ledger.commit.finish(plan, claim, facts(claim.task))
    assert not ledger.queue.unfinished()
    release = ledger.facts.release("modular", 2)
    assert release.paths == tuple(
        {
            str(m): ready("modular", m, phase).parameters.digest
            for m in modular.topology.modules_of(p)
        }
        for p, phase in enumerate((1, 2, 0, 2))
    )
    assert release.companions["route_made"] == "route"


def test_a_release_has_the_router_of_its_last_alternation(ledger, plan):
    modular = dataclasses.replace(plan.arm("modular"), alternations=(1, 2))
    plan = dataclasses.replace(plan, arms=(modular, plan.arm("dense")))
    do_all(ledger, plan)
    made = {
        phase: ledger.facts.release("modular", phase).companions["route_made"] for phase in (1, 2)
    }
    assert made == {1: "route-1", 2: "route-2"}
    assert ledger.facts.release("dense").companions["route_made"] == "route"
    assert [(s.stage, s.phase) for s in ledger.facts.stages()] == [
        *(("prepare", 0), ("route", 0), ("route", 1), ("route", 2), ("report", 0))
    ]
    with pytest.raises(NotAvailable, match="`route` at phase 3"):
        ledger.facts.stage("route", 3)
