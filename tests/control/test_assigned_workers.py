"""A path's next phase is left to the worker whose machine has what it begins from."""

import pytest
from support.made_up_facts import facts_of

from dipaco.control.claims import failures
from dipaco.control.planning.tasks import Task
from dipaco.errors import ClaimLost
from tests.control.conftest import do, do_all_but, do_until
from tests.support.members import join, process_of


def settle(ledger, arm, path, worker):
    """The worker has what the next phase of a path begins from; a commit records it."""
    with ledger._database.transaction():
        ledger._database.change("change_meta", key=f"assigned {arm}/{path}", value=worker)


@pytest.fixture
def paths(ledger, plan):
    """`paths(worker)` -> the numbers of the paths that it can claim, one after another; all paths
    of the modular arm are ready, and of no other.
    """
    first = do_until(ledger, plan, "train")
    ledger.queue.give_back(first)
    for name in ("ana", "ben"):
        join(ledger, name)
    do_all_but(ledger, plan, lambda task: task.arm == "modular" and task.kind == "train")
    ledger.queue.give_back_all()

    def claimed(worker, **settings):
        found = [*iter(lambda: ledger.queue.claim(worker, **settings), None)]
        for claim in found:
            ledger.queue.give_back(claim)
        return [claim.task.path for claim in found if claim.task.arm == "modular"]

    return claimed


def test_a_path_is_left_to_its_home_while_that_is_there_and_trains_nothing_else(ledger, paths):
    assert paths("ben") == [0, 1, 2, 3]
    for path in (0, 1):
        settle(ledger, "modular", path, "ana")
    assert ledger.meta.get("assigned modular/1") == "ana"
    assert paths("ben") == [2, 3]
    assert paths("ben", left=[]) == [0, 1, 2, 3]
    assert paths("ben", left=[("modular", 1)]) == [0, 2, 3], "another kind of machine trained it"
    assert paths("ana") == [0, 1, 2, 3]
    held = ledger.queue.claim("ana")
    assert held.task == Task("train", "modular", "0", 0)
    assert paths("ben") == [1, 2, 3], "it trains another one: nobody waits for it"
    assert paths("ben", is_patient=True) == [2, 3]
    ledger.queue.give_back(held)
    ledger.members.leave("ana", process_of("ana"))
    assert paths("ben", is_patient=True) == [0, 1, 2, 3]


def test_a_silent_home_keeps_no_path(ledger, paths):
    """Its process may be frozen, or cut off, for as long as a person needs to see that."""
    settle(ledger, "modular", 0, "ana")
    assert paths("ben", is_patient=True) == [1, 2, 3]
    ledger.reaper._mark_silent({"ana": heartbeats_of(ledger, "ana")})
    assert paths("ben", is_patient=True) == [0, 1, 2, 3]
    ledger.members.heartbeat("ana", process_of("ana"))
    assert paths("ben", is_patient=True) == [1, 2, 3], "it is back"


def heartbeats_of(ledger, name):
    return next(member.heartbeats for member in ledger.members.list() if member.name == name)


def test_paths_at_home_with_a_worker_come_before_others_and_after_more_urgent_tasks(ledger, paths):
    settle(ledger, "modular", 2, "ben")
    first = ledger.queue.claim("ben", own=[("modular", 2)])
    assert first.task.path == 2
    ledger.queue.give_back(first)
    assert paths("ben", own=[("modular", 2)]) == [2, 0, 1, 3]


def test_a_worker_that_may_not_train_a_path_is_no_home_of_it(ledger, paths):
    settle(ledger, "modular", 0, "ana")
    ledger.members.leave("ana", process_of("ana"))
    join(ledger, "ana", process_id="later", kinds=("outer", "score"))
    assert paths("ben", is_patient=True) == [0, 1, 2, 3], "it came back to do other tasks"
    ledger.members.leave("ana", "later")
    join(ledger, "ana", process_id="at last", kinds=("outer", "train"))
    assert paths("ben") == [1, 2, 3]
    ledger.swarms.put_backbone("ana", "modular", 0, "there:1", is_staffed=False)
    assert paths("ana") == [], "a backbone without volunteers claims no path"
    assert paths("ben", is_patient=True) == [0, 1, 2, 3]


def test_a_path_of_volunteers_is_not_left_to_the_home_that_it_had_before(ledger, paths):
    settle(ledger, "modular", 0, "ana")
    ledger.swarms.put_backbone("ben", "modular", 0, "there:1")
    assert paths("ana") == [1, 2, 3], "it is left to its backbone"
    assert paths("ben", is_patient=True) == [0]


def test_a_worker_that_waits_with_a_path_does_not_leave_it_for_one_that_is_left_to_its_home(
    ledger, paths
):
    for path in range(4):
        settle(ledger, "modular", path, "ana")
    held = ledger.queue.claim("ana", ["train"])

    def has_others(worker, **settings):
        return ledger.queue.has_others(worker, ["train"], factor=None, **settings)

    assert has_others("ana")
    assert has_others("ben"), "ana trains another one"
    assert not has_others("ben", is_patient=True)
    ledger.queue.give_back(held)
    assert not has_others("ben")


def test_a_worker_that_waits_with_a_path_does_not_leave_it_for_one_of_volunteers(ledger, paths):
    """It may not claim that one: it gave its path back, and took it again, without end."""
    for path in range(3):
        assert ledger.queue.claim("ana", ["train"]).task.path == path
    ledger.swarms.put_backbone("cem", "modular", 3, "there:1")
    join(ledger, "cem")
    assert ledger.queue.claim("ben", ["train"]) is None
    assert not ledger.queue.has_others("ben", ["train"], factor=None)
    ledger.members.leave("cem", process_of("cem"))
    assert ledger.queue.has_others("ben", ["train"], factor=None)


def test_a_task_that_went_wrong_at_its_home_may_be_tried_by_others(ledger, paths, monkeypatch):
    monkeypatch.setattr(failures, "wait_seconds", lambda errors, deaths: 0.0)
    settle(ledger, "modular", 0, "ana")
    for patient_too in (False, True):
        assert not ledger.failures.fail(ledger.queue.claim("ana", ["train"]), "a disk of ana's")
        assert paths("ben") == [0, 1, 2, 3]
        assert (0 in paths("ben", is_patient=True)) == patient_too, "it would train phases again"
    assert ledger.queue.claim("ben", ["train"]).task.path == 0


def test_a_task_that_its_home_lost_goes_on_elsewhere_before_that_counts_as_silent(ledger, paths):
    settle(ledger, "modular", 0, "ana")
    held = ledger.queue.claim("ana", ["train"], lease_seconds=0.001)
    while ledger.queue.is_held(held):
        ledger.reaper.reap("ben")
    assert paths("ben") == [0, 1, 2, 3]
    assert paths("ben", is_patient=True) == [1, 2, 3]


def test_a_path_has_its_home_from_the_commit_of_its_phase(ledger, plan):
    claim = do_until(ledger, plan, "train")
    facts = facts_of(plan, claim.task)
    ledger.queue.give_back(claim)
    late = ledger.queue.claim("ben", ["train"])
    with pytest.raises(ClaimLost):
        ledger.commit.finish(plan, claim, facts, assigns=True)
    assert ledger.meta.get("assigned modular/0") is None
    ledger.commit.finish(plan, late, facts, assigns=True)
    assert ledger.meta.get("assigned modular/0") == "ben"
    ledger.redos.redo(ledger.queue.claim("ana", ["train"]), late.task, "a snapshot", "it is lost")
    again = ledger.queue.claim("ana", ["train"])
    assert again.task == late.task
    ledger.commit.finish(plan, again, facts, assigns=True)
    assert ledger.meta.get("assigned modular/0") == "ana", "it has what a lost one is made of again"
    other = ledger.queue.claim("ana", ["train"])
    do(ledger, plan, other)
    at = f"assigned {other.task.arm}/{other.task.path}"
    assert ledger.meta.get(at) is None, "machines share a disk"
