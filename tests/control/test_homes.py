"""Homes: a path's next phase is left to the worker whose machine has what it begins from."""

import pytest

from dipaco.control.tasks import Task
from tests.control.conftest import do_until, facts_of

HERE = {"host": "here", "pid": 1, "machine": "cpu", "version": "0"}


@pytest.fixture
def paths(ledger, plan):
    """`paths(worker)` -> the numbers of the paths that it can claim, one after another; all paths
    of the modular arm are ready, and of no other.
    """
    first = do_until(ledger, plan, "train")
    ledger.queue.give_back(first)
    for name in ("ana", "ben"):
        ledger.members.join(name, life=name, **HERE)
    for claim in iter(lambda: ledger.queue.claim("ana"), None):
        if claim.task.arm != "modular" or claim.task.kind != "train":
            ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
    ledger.queue.give_back_all()

    def claimed(worker, **settings):
        found = []
        while claims := ledger.queue.claim_stack(worker, limit=1, **settings):
            found.append(claims[0])
        for claim in found:
            ledger.queue.give_back(claim)
        return [claim.task.path for claim in found if claim.task.arm == "modular"]

    return claimed


def test_a_path_is_left_to_its_home_while_that_is_there_and_trains_nothing_else(ledger, paths):
    assert paths("ben") == [0, 1, 2, 3]
    for path in (0, 1):
        ledger.homes.settle("modular", path, "ana")
    assert ledger.homes.home_of("modular", 1) == "ana"
    assert paths("ben") == [2, 3]
    assert paths("ana") == [0, 1, 2, 3]
    held = ledger.queue.claim("ana")
    assert held.task == Task("train", "modular", "0", 0)
    assert paths("ben") == [1, 2, 3], "it trains another one: nobody waits for it"
    assert paths("ben", is_patient=True) == [2, 3]
    ledger.queue.give_back(held)
    ledger.members.leave("ana", "ana")
    assert paths("ben", is_patient=True) == [0, 1, 2, 3]


def test_paths_at_home_with_a_worker_come_before_others_and_after_more_urgent_tasks(ledger, paths):
    ledger.homes.settle("modular", 2, "ben")
    (first,) = ledger.queue.claim_stack("ben", limit=1, own=[("modular", 2)])
    assert first.task.path == 2
    ledger.queue.give_back(first)
    assert paths("ben", own=[("modular", 2)]) == [2, 0, 1, 3]


def test_paths_that_train_together_leave_others_to_their_homes(ledger, paths):
    """Their snapshots may be on the disks of these machines alone."""
    for path in (1, 3):
        ledger.homes.settle("modular", path, "ana")
    held = ledger.queue.claim_stack("ana", limit=1, own=[("modular", 3)])
    assert [claim.task.path for claim in held] == [3]
    stack = ledger.queue.claim_stack("ben", limit=4, is_patient=True)
    assert [claim.task.path for claim in stack] == [0, 2]
    ledger.members.leave("ana", "ana")
    assert [claim.task.path for claim in ledger.queue.claim_stack("ben", limit=4)] == [1]


def test_a_worker_that_waits_does_not_leave_for_paths_that_are_left_to_their_homes(ledger, paths):
    def has_others(worker):
        return ledger.queue.has_others(worker, ["train"], factor=None, is_patient=True)

    for path in (0, 1, 2):
        ledger.homes.settle("modular", path, "ana")
    assert has_others("ben")
    (claim,) = ledger.queue.claim_stack("ben", ["train"], limit=1, is_patient=True)
    while claim.task.arm != "modular":  # dense arms have no homes
        (claim,) = ledger.queue.claim_stack("ben", ["train"], limit=1, is_patient=True)
    assert claim.task.path == 3
    assert has_others("ana")
    assert not has_others("ben")
    ledger.members.leave("ana", "ana")
    assert has_others("ben")
