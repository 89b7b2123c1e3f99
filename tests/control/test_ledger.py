"""The ledger's promises: claims, fencing, all or nothing, done is done, facts that come back."""

import dataclasses
import sqlite3
from collections import Counter

import psycopg
import pytest

from dipaco.control.database import KeyTaken
from dipaco.control.errors import NotAvailable
from dipaco.control.ledger import open_ledger
from dipaco.control.progress import NewestPhase, TrainingTotals
from dipaco.control.recording import record
from dipaco.control.retry import ConnectionLost
from dipaco.control.tasks import PRIORITY, Task
from dipaco.errors import ClaimLost
from dipaco.topology import ModuleId
from tests.control.conftest import (
    checked,
    contribution,
    evaluated,
    facts_of,
    ready,
    receipt,
    stage,
    trained,
)


def do_one(ledger, plan, worker="w"):
    claim = ledger.queue.claim(worker)
    if claim is not None:
        ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
    return claim


def do_until(ledger, plan, kind):
    """Does tasks until one of `kind` is claimed, and gives that claim."""
    while (claim := ledger.queue.claim("w")) is not None:
        if claim.task.kind == kind:
            return claim
        ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
    raise AssertionError(f"no task of kind {kind} came due")


IntegrityError = (sqlite3.IntegrityError, psycopg.errors.IntegrityConstraintViolation)

TABLES = (
    *("meta", "tasks", "modules", "contributions", "trained", "stages", "scores", "releases"),
    *("evaluations", "claims", "workers", "partial_snapshots", "refusals"),
    *("labels", "checks", "set_aside", "quorums", "taken"),
)


def everything(ledger):
    """All rows of all tables: for showing that nothing changed."""
    execute = ledger._database._connection.execute
    return {name: sorted(map(repr, execute(f"SELECT * FROM {name}").fetchall())) for name in TABLES}


# --- claiming -----------------------------------------------------------------------------------


def test_a_new_run_begins_with_prepare_and_remembers_what_it_is(ledger):
    assert ledger.meta.get("config") == "{}"
    assert ledger.meta.get("other") is None
    assert ledger.queue.claim("w").task == Task("prepare")


def test_a_claimed_task_is_nobody_elses(ledger):
    assert ledger.queue.claim("one") is not None
    assert ledger.queue.claim("two") is None


def test_two_programs_on_one_ledger_never_hold_the_same_task(ledger, plan, place):
    for _ in range(4):
        do_one(ledger, plan)
    with open_ledger(*place) as other:
        claims = [each.queue.claim("w") for _ in range(3) for each in (ledger, other)]
    ids = [claim.task_id for claim in claims if claim]
    assert len(ids) == len(set(ids)) >= 5


def test_the_most_urgent_task_is_claimed_first(ledger, plan):
    order = []
    while (claim := do_one(ledger, plan)) is not None:
        order.append(claim.task)
        waiting = [each.task.kind for each in ledger.queue.unfinished()]
        after = ledger.queue.claim("peek")
        if after is not None:
            assert PRIORITY[after.task.kind] == min(PRIORITY[kind] for kind in waiting)
            ledger.queue.give_back(after)
    assert order[-1] == Task("report")


def test_a_task_that_is_given_back_is_claimed_again_under_a_higher_attempt(ledger):
    first = ledger.queue.claim("one")
    ledger.queue.give_back(first)
    second = ledger.queue.claim("two")
    assert second.task_id == first.task_id
    assert second.attempt == first.attempt + 1


def test_a_crash_is_cured_by_giving_everything_back(ledger, plan):
    for _ in range(4):
        do_one(ledger, plan)
    held = [ledger.queue.claim("dead"), ledger.queue.claim("dead too")]
    assert all(held)
    assert ledger.queue.give_back_all() == 2
    again = [ledger.queue.claim("next"), ledger.queue.claim("next")]
    assert [claim.task for claim in again] == [claim.task for claim in held]


# --- finishing ----------------------------------------------------------------------------------


def test_a_run_goes_from_prepare_to_report_and_every_task_is_done_once(ledger, plan):
    done = []
    while (claim := do_one(ledger, plan)) is not None:
        done.append(claim.task)
    assert len(done) == len(set(done)) == 40
    assert done[0] == Task("prepare")
    assert done[-1] == Task("report")
    assert ledger.queue.unfinished() == []
    assert ledger.queue.task_counts()["outer", "modular"] == {"done": 8}


def test_finishing_says_what_became_due(ledger, plan):
    claim = ledger.queue.claim("w")
    assert ledger.commit.finish(plan, claim, [stage("prepare")]) == [
        Task("pretrain", "base", "0", 0)
    ]


def test_a_finished_task_cannot_be_finished_again(ledger, plan):
    claim = do_one(ledger, plan)
    before = everything(ledger)
    with pytest.raises(ClaimLost, match=r"Task `prepare`.*Nothing was recorded"):
        ledger.commit.finish(plan, claim, [stage("prepare")])
    assert everything(ledger) == before


def test_a_commit_whose_answer_is_lost_is_not_done_again_and_is_not_lost(ledger, plan, place):
    """The connection breaks when everything is recorded: asked again, it is found done."""
    if not isinstance(place[0], str):
        return  # a file has no connection to lose
    claim = do_until(ledger, plan, "train")
    once, broken = ledger._database.once, []

    def breaks(query, **values):
        rows = once(query, **values)
        if not broken:
            broken.append(query)
            raise ConnectionLost(place="here", problem="cut")
        return rows

    ledger._database.once = breaks
    ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
    assert broken == ["finish_training"]
    path = claim.task.path
    assert ledger.facts.snapshot("modular", path, 0).receipt == trained("modular", path, 0).snapshot
    assert not ledger.queue.is_held(claim)


def test_what_is_recorded_on_a_server_outlives_a_power_cut(ledger, plan, place):
    """Its commit is not waited for under the locks, but it is waited for."""
    if not isinstance(place[0], str):
        return  # SQLite's log is flushed by the system: `SQLite.flush`
    execute = ledger._database._connection.execute

    def place_in_log(which):
        return execute(f"SELECT pg_current_wal_{which}_lsn()").fetchone()[0]

    is_flushed = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"
    flush = ledger._database._execute
    for _ in range(5):
        claim = ledger.queue.claim("w")
        seen = []

        def noting(query, values, seen=seen):
            if query == "flush":
                seen.append(place_in_log("insert"))
            return flush(query, values)

        ledger._database._execute = noting
        ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
        ledger._database._execute = flush
        assert execute(is_flushed, seen).fetchone() == (True,)


def test_a_finished_task_stays_finished_whatever_is_given_back(ledger, plan):
    claim = do_one(ledger, plan)
    ledger.queue.give_back(claim)
    ledger.queue.give_back_all()
    assert ledger.queue.task_counts()["prepare", ""] == {"done": 1}


def test_the_schema_itself_refuses_to_open_a_finished_task(ledger, plan):
    """The rule is the database's, not the program's."""
    do_one(ledger, plan)
    connection = ledger._database._connection
    for state in ("ready", "claimed"):
        with pytest.raises(IntegrityError, match="cannot be opened again"):
            connection.execute(f"UPDATE tasks SET state = '{state}' WHERE kind = 'prepare'")


def test_a_stale_claim_is_lost_and_records_nothing(ledger, plan):
    stale = ledger.queue.claim("slow")
    ledger.queue.give_back(stale)
    current = ledger.queue.claim("quick")
    before = everything(ledger)
    with pytest.raises(ClaimLost):
        ledger.commit.finish(plan, stale, [stage("prepare")])
    assert everything(ledger) == before
    ledger.commit.finish(plan, current, [stage("prepare")])


def test_a_claim_that_was_given_back_is_lost_though_nobody_has_it(ledger, plan):
    stale = ledger.queue.claim("slow")
    ledger.queue.give_back(stale)
    with pytest.raises(ClaimLost):
        ledger.commit.finish(plan, stale, [stage("prepare")])


def test_a_stale_claim_cannot_give_back_what_another_holds(ledger, plan):
    stale = ledger.queue.claim("slow")
    ledger.queue.give_back_all()
    current = ledger.queue.claim("quick")
    ledger.queue.give_back(stale)
    assert ledger.queue.claim("third") is None
    ledger.commit.finish(plan, current, [stage("prepare")])


def test_a_fact_that_fails_takes_all_others_and_the_finish_with_it(ledger, plan):
    """The second contribution is recorded already: nothing of the others may remain."""
    claim = do_until(ledger, plan, "train")
    good = facts_of(plan, claim.task)
    before = everything(ledger)
    with pytest.raises(ClaimLost):
        ledger.commit.finish(plan, claim, [*good, good[-1]])
    assert everything(ledger) == before
    ledger.commit.finish(plan, claim, good)


def test_a_program_error_in_the_middle_of_finishing_leaves_nothing(ledger, plan):
    claim = ledger.queue.claim("w")
    before = everything(ledger)
    unwritable = stage("prepare")
    unwritable.summary["x"] = object()
    with pytest.raises(TypeError):
        ledger.commit.finish(plan, claim, [unwritable])
    assert everything(ledger) == before
    ledger.commit.finish(plan, claim, [stage("prepare")])


def test_facts_and_the_tasks_they_make_due_are_seen_together_by_other_programs(
    ledger, plan, place, monkeypatch
):
    seen = []
    claim = ledger.queue.claim("w")
    with open_ledger(*place) as other:

        def watched(database, fact):
            record(database, fact)
            seen.append((len(other.facts.stages()), len(other.queue.unfinished())))

        monkeypatch.setattr("dipaco.control.commit.record", watched)
        ledger.commit.finish(plan, claim, [stage("prepare")])
        seen.append((len(other.facts.stages()), len(other.queue.unfinished())))
    assert seen == [(0, 1), (1, 1)]


# --- facts come back as they were ---------------------------------------------------------------


@pytest.fixture
def finished(ledger, plan):
    while do_one(ledger, plan) is not None:
        pass
    return ledger


def test_what_is_asked_for_too_early_is_said_to_be_not_yet(ledger):
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


def test_stages_come_back(finished):
    assert finished.facts.stage("prepare") == stage("prepare")
    assert [fact.stage for fact in finished.facts.stages()] == ["prepare", "route", "report"]


def test_modules_come_back_with_and_without_an_outer_state(finished):
    module = ModuleId("early", 1)
    fresh, stepped = (finished.facts.module("modular", module, phase) for phase in (0, 2))
    assert fresh == (ready("modular", module, 0).parameters, None)
    assert stepped == (receipt("modular", module, 2), receipt("state", "modular", module, 2))
    assert finished.facts.modules_at("modular", 2) == {
        ModuleId(level, expert) for level in ("early", "late") for expert in (0, 1)
    }


def test_arrivals_come_back_in_path_order_whoever_came_first(ledger, plan):
    do_until(ledger, plan, "train")
    module = ModuleId("late", 0)
    with ledger._database.transaction():
        for path in (2, 0):
            record(ledger._database, contribution(module, 0, path))
    assert ledger.facts.contributions("modular", module, 0) == [
        contribution(module, 0, path) for path in (0, 2)
    ]


def test_snapshots_losses_and_totals_come_back(finished):
    fact = trained("modular", 3, 1)
    assert finished.facts.snapshot("modular", 3, 1) == (
        *(fact.snapshot, fact.step, fact.position, fact.batches),
    )
    assert finished.progress.steps_in_partial_snapshots("modular") == 0
    assert finished.progress.losses("modular") == {path: [2.0, 1.5, 1.0, 0.5] for path in range(4)}
    totals = finished.progress.training_totals("modular")
    assert totals == TrainingTotals(tokens=800, seconds=8.0, bytes_sent=128, path_phases=8)
    newest = {
        each.path: each for each in finished.progress.newest_phases() if each.arm == "modular"
    }
    assert newest[2] == NewestPhase("modular", path=2, phase=1, step=20, loss=0.5, tokens=200)


def test_evaluations_and_scores_come_back(finished):
    assert evaluated("modular", 2) in finished.facts.evaluations()
    assert finished.facts.scores("modular", 2) == [
        receipt("scores", "modular", path, 2) for path in range(4)
    ]


def test_a_release_holds_the_modules_of_every_path_and_what_belongs_to_them(finished):
    release = finished.facts.release("modular", 1)
    assert release.modules_of(2) == {
        ModuleId("early", 1): receipt("modular", "early/0001", 1),
        ModuleId("late", 0): receipt("modular", "late/0000", 1),
    }
    assert release.companions == {"prepare_made": "prepare", "route_made": "route"}
    assert finished.facts.release("modular").phase == 2
    assert Counter(arm for arm, _ in finished.facts.releases()) == {
        "base": 1,
        "modular": 2,
        "dense": 2,
    }


def test_a_release_is_never_changed(finished):
    with pytest.raises(IntegrityError, match="never changed"):
        finished._database._connection.execute("UPDATE releases SET body = '{}'")


@pytest.mark.parametrize("keep", [1, 2])
def test_contributions_are_superseded_once_their_module_has_stepped(finished, plan, keep):
    """With two phases kept, the last are there: should the module's bytes be damaged, they make it
    again.
    """
    module = ModuleId("early", 1)
    paths = plan.arm("modular").topology.paths_through(module)
    names = {
        phase: [receipt("message", module, phase, path).name for path in paths] for phase in (0, 1)
    }
    left = {
        at: finished.retention.superseded_contributions("modular", module, at, keep)
        for at in (1, 2)
    }
    assert left == {at: names.get(at - keep, []) for at in (1, 2)}
    live = finished.retention.live_names(snapshots=1, contributions=keep)
    assert live.issuperset(names[1]) == (keep == 2)
    assert live.isdisjoint(names[0])


def test_only_what_no_other_fact_has_is_superseded_of_a_module(finished):
    module = ModuleId("all", 0)
    assert finished.retention.superseded_modules("dense", module, 1) == [
        receipt("dense", module, 1).name,
        receipt("state", "dense", module, 1).name,
    ]
    shared = ready("dense", module, 9)
    parameters = receipt("dense", module, 1)
    with finished._database.transaction():
        record(finished._database, dataclasses.replace(shared, parameters=parameters))
    assert finished.retention.superseded_modules("dense", module, 1) == [
        receipt("state", "dense", module, 1).name
    ]


def test_snapshots_of_two_phases_before_are_superseded(finished):
    assert finished.retention.superseded_snapshots("dense", 0, 1, 2) == []
    assert finished.retention.superseded_snapshots("dense", 0, 2, 2) == [
        receipt("snapshot", "dense", 0, 0).name
    ]


def test_a_ledger_that_is_opened_again_is_the_same(finished, place):
    before = everything(finished)
    with open_ledger(*place) as again:
        assert everything(again) == before


def test_the_same_fact_cannot_be_recorded_twice(ledger, plan):
    """The unique indexes: whoever comes second records nothing."""
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
        "claims": 0,
        "workers": 0,
        "partial_snapshots": 0,
        "refusals": 0,
        "labels": 0,
        "checks": 0,
        "set_aside": 0,
        "quorums": 0,
        "taken": 0,
    }


def test_a_release_with_early_stopping_has_each_path_as_it_was_at_its_best(ledger, plan):
    modular = dataclasses.replace(plan.arm("modular"), stops_early=True)
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
    while do_one(ledger, plan) is not None:
        pass
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


def test_the_last_two_snapshots_of_a_path_stay_however_far_apart(ledger, plan):
    for phase in (0, 3, 4, 9):
        record(ledger._database, trained("modular", 0, phase))
    old, *last_two = (receipt("snapshot", "modular", 0, phase).name for phase in (3, 4, 9))
    assert ledger.retention.superseded_snapshots("modular", 0, 9, 2) == [old]
    assert ledger.retention.live_names(snapshots=2, contributions=2) == set(last_two)
