"""Commits: all or nothing, once, only under a claim that is still valid; on both databases."""

import dataclasses

import pytest
from support.made_up_facts import facts_of, receipt, stage, trained

from dipaco.control.database.retry import ConnectionLost
from dipaco.control.errors import NotReproduced
from dipaco.control.facts.recording import record
from dipaco.control.ledger import open_ledger
from dipaco.control.planning.tasks import Task
from dipaco.errors import ClaimLost
from tests.control.conftest import (
    DATABASES,
    do,
    do_all,
    do_one,
    do_until,
    do_until_a_second_phase,
    everything,
)

pytestmark = pytest.mark.parametrize("place", DATABASES, indirect=True)


def test_a_run_goes_from_prepare_to_report_and_every_task_is_done_once(ledger, plan):
    done = do_all(ledger, plan)
    assert len(done) == len(set(done)) == 40
    assert done[0] == Task("prepare")
    assert done[-1] == Task("report")
    assert ledger.queue.unfinished() == []
    assert ledger.queue.task_counts()["outer", "modular"] == {"done": 8}


def test_a_module_steps_when_the_contributions_of_all_its_paths_are_in(ledger, plan):
    steps = 0
    while (claim := ledger.queue.claim("w")) is not None:
        if claim.task.kind == "outer":
            of = claim.task.arm, claim.task.module, claim.task.phase
            paths = {contribution.path for contribution in ledger.facts.contributions(*of)}
            assert paths == {*plan.arm(claim.task.arm).topology.paths_through(claim.task.module)}
            steps += 1
        do(ledger, plan, claim)
    assert steps == 8


def test_what_is_done_again_with_other_bytes_is_refused(ledger, plan):
    """A module that has stepped; its bytes are lost, and another program makes others."""
    claim = do_until_a_second_phase(ledger, plan)
    module = plan.arm("modular").topology.modules_of(claim.task.path)[0]
    cause = Task("outer", "modular", str(module), 0)
    ledger.redos.redo(claim, cause, "objects/lost", "it is missing")
    again = do_until(ledger, plan, "outer")
    assert again.task == cause
    (fact,) = facts_of(plan, cause)
    before = everything(ledger)
    with pytest.raises(NotReproduced):
        ledger.commit.finish(
            plan, again, [dataclasses.replace(fact, parameters=receipt("other bytes"))]
        )
    assert everything(ledger) == before
    ledger.commit.finish(plan, again, [fact])


def test_a_finished_task_cannot_be_finished_again(ledger, plan):
    claim = do_one(ledger, plan)
    before = everything(ledger)
    with pytest.raises(ClaimLost, match=r"Task `prepare`.*Nothing was recorded"):
        ledger.commit.finish(plan, claim, [stage("prepare")])
    assert everything(ledger) == before


@pytest.mark.parametrize("case", ["alone", "before its backup", "without a history"])
def test_a_commit_whose_answer_is_lost_happens_exactly_once(ledger, plan, place, case):
    """The connection breaks when everything is recorded: asked again, it is found done."""
    if not isinstance(place[0], str):
        return  # a file has no connection to lose
    has_backup, claim = case == "before its backup", do_until(ledger, plan, "train")
    if has_backup:  # what it does is for nothing
        with ledger._database.transaction():
            row = ledger._database.one("claim_backup", task_id=claim.task_id)
            backup = ledger.queue._hold(row, "second", 60.0)
    once, broken = ledger._database.once, []

    def breaks(query, **values):
        rows = once(query, **values)
        if not broken:
            broken.append(query)
            if case == "without a history":
                ledger.history.prune(0)
            raise ConnectionLost(place="here", problem="cut")
        return rows

    ledger._database.once = breaks
    do(ledger, plan, claim)
    assert broken == ["finish_training"]
    path = claim.task.path
    assert ledger.facts.snapshot("modular", path, 0).receipt == trained("modular", path, 0).snapshot
    assert not ledger.queue.is_held(claim)
    if has_backup:
        assert not ledger.queue.is_finished_by(backup)
        with pytest.raises(ClaimLost):
            do(ledger, plan, backup)


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
        do(ledger, plan, claim)
        ledger._database._execute = flush
        assert execute(is_flushed, seen).fetchone() == (True,)


def test_if_one_fact_fails_none_is_recorded_and_the_task_is_not_finished(ledger, plan):
    """The second contribution is recorded already: nothing of the others may remain."""
    claim = do_until(ledger, plan, "train")
    good = facts_of(plan, claim.task)
    before = everything(ledger)
    with pytest.raises(ClaimLost):
        ledger.commit.finish(plan, claim, [*good, good[-1]])
    assert everything(ledger) == before
    ledger.commit.finish(plan, claim, good)


def test_an_exception_while_finishing_leaves_nothing(ledger, plan):
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

        monkeypatch.setattr("dipaco.control.facts.commit.record", watched)
        ledger.commit.finish(plan, claim, [stage("prepare")])
        seen.append((len(other.facts.stages()), len(other.queue.unfinished())))
    assert seen == [(0, 1), (1, 1)]
