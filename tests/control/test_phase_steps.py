"""How many inner steps a path takes in a phase, by the speed of its worker: the rule, and that it
is decided once; on both databases.
"""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.control.phase_steps import ALIKE_SHARE, speed_share, steps_by_speed
from dipaco.control.tasks import PathTrained, Task
from dipaco.errors import ClaimLost
from tests.control.conftest import do_until, facts_of

MEASURED = [("a", 100.0), ("a", 10.0), ("a", 110.0), ("b", 50.0), ("b", 52.0)]


@pytest.mark.parametrize(
    ("share", "steps"),
    [(1.0, 50), (0.96, 50), (0.94, 47), (0.519, 25), (0.3, 15), (0.1, 13), (0.0, 13)],
)
def test_steps_follow_the_share_of_the_speed_down_to_a_bound(share, steps):
    assert steps_by_speed(share, 50, 0.25) == steps


@given(st.floats(0.0, 1.0), st.integers(1, 1000), st.floats(0.001, 1.0))
def test_no_path_takes_none_or_too_many(share, all_steps, least):
    steps = steps_by_speed(share, all_steps, least)
    assert 1 <= steps <= all_steps
    assert steps >= min(least, 1.0) * all_steps - 1e-6
    assert share < ALIKE_SHARE or steps == all_steps


def test_a_worker_is_compared_with_the_fastest_by_medians():
    assert speed_share("a", MEASURED) == 1.0
    assert speed_share("b", MEASURED) == 0.51


def test_one_that_has_not_trained_counts_as_fast():
    assert speed_share("c", MEASURED) == speed_share("c", []) == 1.0


@pytest.fixture
def by_speed(ledger, plan):
    """(ledger, plan, arm, claims of phase 1): in phase 0 worker `slow` trained path 0 at half of
    the speed of the others.
    """
    arm = dataclasses.replace(
        plan.arm("modular"), phases=3, total_steps=30, evaluate_every=3, least_steps_share=0.25
    )
    plan = dataclasses.replace(plan, arms=(arm,))
    ledger.queue.give_back(do_until(ledger, plan, "train"))
    slow = ledger.queue.claim("slow")
    assert slow.task == Task("train", "modular", "0", 0)
    finish(ledger, plan, arm, slow, seconds=2.0)
    while (claim := ledger.queue.claim("fast")) is not None:
        if claim.task.phase == 1 and claim.task.kind == "train":
            ledger.queue.give_back(claim)
            return ledger, plan, arm
        finish(ledger, plan, arm, claim)
    raise AssertionError("no path came to phase 1")


def finish(ledger, plan, arm, claim, seconds=1.0):
    if claim.task.kind == "train":
        assert ledger.phase_steps.decide(claim, arm) == 10
    facts = [
        dataclasses.replace(fact, seconds=seconds) if isinstance(fact, PathTrained) else fact
        for fact in facts_of(plan, claim.task)
    ]
    ledger.commit.finish(plan, claim, facts)


def test_a_path_takes_the_steps_of_its_worker(by_speed):
    ledger, _, arm = by_speed
    slow, fast, new = (ledger.queue.claim(name, ["train"]) for name in ("slow", "fast", "new"))
    assert [ledger.phase_steps.decide(claim, arm) for claim in (slow, fast, new)] == [5, 10, 10]
    rows = {each.worker: each for each in ledger.phase_steps.newest("modular") if each.phase}
    assert (rows["slow"].steps, rows["slow"].out_of, rows["slow"].share) == (5, 10, 0.5)
    assert ledger.phase_steps.num_left_out("modular") == 5


def test_it_is_decided_once_for_all_workers_that_train_the_path(by_speed):
    ledger, _, arm = by_speed
    slow = ledger.queue.claim("slow", ["train"])
    assert ledger.phase_steps.decide(slow, arm) == 5
    ledger.queue.give_back(slow)
    with pytest.raises(ClaimLost):
        ledger.phase_steps.decide(slow, arm)
    again = ledger.queue.claim("fast", ["train"])
    assert again.task == slow.task
    assert ledger.phase_steps.decide(again, arm) == 5
    # Its time is the other worker's now.
    newest = {(each.path, each.phase): each for each in ledger.phase_steps.newest("modular")}
    assert newest[slow.task.path, 1].worker == "fast"


def test_a_path_that_no_worker_has_begun_takes_all_steps_once_an_outer_step_asks(by_speed):
    ledger, _, arm = by_speed
    slow = ledger.queue.claim("slow", ["train"])
    path = slow.task.path
    assert ledger.phase_steps.decide(slow, arm) == 5
    expected = {each: 5 if each == path else 10 for each in range(4)}
    assert ledger.phase_steps.in_phase(arm, 1, range(4)) == expected
    late = ledger.queue.claim("slow", ["train"])  # though its worker is slow
    assert ledger.phase_steps.decide(late, arm) == 10
    assert ledger.phase_steps.in_phase(arm, 1, range(4)) == expected


def test_after_a_rollback_they_are_decided_again(by_speed):
    ledger, _, arm = by_speed
    slow = ledger.queue.claim("slow", ["train"])
    ledger.phase_steps.decide(slow, arm)
    ledger.queue.give_back(slow)
    due = [Task("train", "modular", str(path), 1) for path in range(4)]
    assert ledger.rollbacks.go_back("modular", 1, due)["phase_steps"] == 1
    assert {phase for _, phase in ledger.phase_steps.all("modular")} == {0}
    fast = ledger.queue.claim("fast", ["train"])
    assert ledger.phase_steps.decide(fast, arm) == 10
