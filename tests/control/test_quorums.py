"""Modules that step while a path is late: when, with whose contributions, and that each counts
once; on both databases.
"""

import dataclasses

import pytest
from support.made_up_facts import facts_of

from dipaco.control.facts.quorums import TakenContribution
from dipaco.control.ledger import open_ledger
from dipaco.control.planning.tasks import Task
from dipaco.errors import ClaimLost
from dipaco.topology import ModuleId
from tests.control.conftest import GRID, claim_all, do_until, everything
from tests.control.test_rollback import FACTS

EARLY = ModuleId("early", 0)  # of paths 0 and 1


@pytest.fixture
def quorum_plan(plan):
    """Three phases of 2x2 paths, of which one of two is enough for a module, after an hour."""
    arm = dataclasses.replace(
        plan.arm("modular"),
        phases=3,
        total_steps=30,
        evaluate_every=3,
        quorum=0.5,
        grace_seconds=3600.0,
    )
    return dataclasses.replace(plan, arms=(arm,))


def do(ledger, plan, claim):
    """As a worker does it: what a step takes is said before."""
    if claim.task.kind == "outer":
        ledger.quorums.take(claim)
    ledger.commit.finish(plan, claim, facts_of(plan, claim.task))


def do_all(ledger, plan):
    for claim in iter(lambda: ledger.queue.claim("w"), None):
        do(ledger, plan, claim)


def claims_of(ledger):
    """All that is ready: name of the task -> its claim."""
    return {str(claim.task): claim for claim in claim_all(ledger)}


@pytest.fixture
def late(ledger, quorum_plan):
    """(ledger, plan, the claim of path 0): every path but 0 has finished phase 0."""
    plan = quorum_plan
    first = do_until(ledger, plan, "train")
    claims = {str(first.task): first, **claims_of(ledger)}
    path_0 = claims.pop("train modular path 0 phase 0")
    for claim in claims.values():
        do(ledger, plan, claim)
    return ledger, plan, path_0


def set_clock_of_graces(ledger, change):
    with ledger._database.transaction():
        ledger._database._connection.execute(f"UPDATE quorums SET {change}")


def an_hour_later(ledger, plan):
    """The steps that become due."""
    set_clock_of_graces(ledger, "until = until - 3600")
    return ledger.quorums.end_grace(plan)


def outer_tasks(ledger):
    return sorted(u.task.subject for u in ledger.queue.unfinished() if u.task.kind == "outer")


def steps_of(ledger, module):
    taken = ledger.quorums.taken("modular")
    return {step: of_step for (of, step), of_step in taken.items() if of == module}


def test_a_module_with_all_contributions_steps_at_once_and_one_with_a_quorum_after_the_grace(late):
    ledger, plan, _ = late
    assert outer_tasks(ledger) == ["early/0001", "late/0001"]
    waiting = ledger.quorums.in_grace("modular")
    assert [str(at.module) for at in waiting] == ["early/0000", "late/0000"]
    assert all(3500 < at.seconds_left <= 3600 for at in waiting)
    assert ledger.quorums.end_grace(plan) == []
    assert an_hour_later(ledger, plan) == [
        Task("outer", "modular", "early/0000", 0),
        Task("outer", "modular", "late/0000", 0),
    ]
    assert ledger.quorums.end_grace(plan) == []
    assert outer_tasks(ledger) == ["early/0000", "early/0001", "late/0000", "late/0001"]


def test_a_contribution_within_the_grace_is_taken_and_ends_the_wait(late):
    ledger, plan, path_0 = late
    do(ledger, plan, path_0)
    assert ledger.quorums.in_grace("modular") == []
    assert outer_tasks(ledger) == ["early/0000", "early/0001", "late/0000", "late/0001"]
    for claim in claim_all(ledger):
        do(ledger, plan, claim)
    assert steps_of(ledger, EARLY) == {0: [TakenContribution(0, 0, 0), TakenContribution(0, 1, 0)]}
    assert ledger.quorums.late("modular") == {}


def step_without_path_0(ledger, plan):
    an_hour_later(ledger, plan)
    claims = claims_of(ledger)
    for name in [name for name in claims if name.startswith("outer")]:
        do(ledger, plan, claims.pop(name))
    return {**claims, **claims_of(ledger)}


def test_a_later_contribution_is_taken_by_the_next_step_which_waits_for_it(late):
    ledger, plan, path_0 = late
    claims = step_without_path_0(ledger, plan)
    # All modules have stepped: all paths go on but the one that has not finished.
    assert sorted(claims) == [f"train modular path {path} phase 1" for path in (1, 2, 3)]
    for claim in claims.values():
        do(ledger, plan, claim)
    an_hour_later(ledger, plan)  # of no use: it is late already
    assert outer_tasks(ledger) == ["early/0001", "late/0001"]
    do(ledger, plan, path_0)
    # It goes on from its modules as they are at phase 1.
    unfinished = [each.task for each in ledger.queue.unfinished()]
    assert Task("train", "modular", "0", 1) in unfinished
    # The steps of phase 1 have a quorum now, and wait for its second contribution.
    assert {at.phase for at in ledger.quorums.in_grace("modular")} == {1}
    do_all(ledger, plan)
    assert steps_of(ledger, EARLY) == {
        0: [TakenContribution(0, 1, 0)],
        1: [TakenContribution(0, 0, 1), TakenContribution(1, 0, 1), TakenContribution(1, 1, 1)],
        2: [TakenContribution(2, 0, 2), TakenContribution(2, 1, 2)],
    }
    late_ones = ledger.quorums.late("modular")
    assert set(late_ones) == {(module, 1) for module in GRID.modules_of(0)}
    assert ledger.quorums.num_taken("modular") == 4 * 2 * 3
    assert not ledger.queue.unfinished()


def test_the_last_step_waits_for_all(late):
    ledger, plan, path_0 = late
    do(ledger, plan, path_0)
    while True:
        claims = claims_of(ledger)
        last = [name for name in claims if name == "train modular path 0 phase 2"]
        for name, claim in claims.items():
            if name not in last:
                do(ledger, plan, claim)
        if last and len(claims) == 1:
            break
        if last:
            ledger.queue.give_back(claims[last[0]])
    assert ledger.quorums.in_grace("modular") == []
    assert an_hour_later(ledger, plan) == []
    assert outer_tasks(ledger) == []


def test_what_a_step_takes_is_decided_once_by_the_worker_that_holds_it(late):
    ledger, plan, path_0 = late
    an_hour_later(ledger, plan)
    step = next(c for c in iter(lambda: ledger.queue.claim("w"), None) if c.task.module == EARLY)
    assert ledger.quorums.take(step) == [TakenContribution(0, 1, 0)]
    do(ledger, plan, path_0)  # comes too late for a step that has begun
    assert ledger.quorums.take(step) == [TakenContribution(0, 1, 0)]
    ledger.queue.give_back(step)
    with pytest.raises(ClaimLost):
        ledger.quorums.take(step)
    again = ledger.queue.claim("other")
    assert (again.task, again.attempt) == (step.task, step.attempt + 1)
    assert ledger.quorums.take(again) == [TakenContribution(0, 1, 0)]


def test_a_contribution_that_arrives_before_a_due_step_is_claimed_is_not_late(late):
    ledger, plan, path_0 = late
    an_hour_later(ledger, plan)
    do(ledger, plan, path_0)
    for claim in claim_all(ledger):
        if claim.task.kind == "outer":
            do(ledger, plan, claim)
    assert steps_of(ledger, EARLY) == {0: [TakenContribution(0, 0, 0), TakenContribution(0, 1, 0)]}


@pytest.mark.parametrize(
    "change",
    ["epoch = 'before', until = 5", "until = until + 26 * 3600"],
    ids=["a reboot", "a clock that is set back"],
)
def test_after_a_change_of_the_clock_the_grace_starts_again(late, change):
    ledger, plan, _ = late
    set_clock_of_graces(ledger, change)
    assert bool(ledger.quorums.in_grace("modular")) == ("epoch" not in change)
    assert ledger.quorums.end_grace(plan) == []
    assert all(3500 < at.seconds_left <= 3600 for at in ledger.quorums.in_grace("modular"))
    assert len(ledger.quorums.in_grace("modular")) == 2


def test_two_programs_that_end_a_grace_make_the_step_due_once(late, place):
    ledger, plan, _ = late
    set_clock_of_graces(ledger, "until = until - 3600")
    with open_ledger(*place) as other:
        assert len([*other.quorums.end_grace(plan), *ledger.quorums.end_grace(plan)]) == 2


def test_after_a_rollback_the_next_step_takes_a_late_contribution_again(late):
    ledger, plan, path_0 = late
    claims = step_without_path_0(ledger, plan)
    for claim in [path_0, *claims.values()]:
        do(ledger, plan, claim)
    do_all(ledger, plan)
    before = everything(ledger)
    counts = ledger.rollbacks.go_back(
        "modular", 1, [Task("train", "modular", str(path), 1) for path in range(4)]
    )
    assert counts["taken"] == 4 * 2 * 2 + 2  # of two steps of four modules, and the late ones
    assert steps_of(ledger, EARLY) == {0: [TakenContribution(0, 1, 0)]}
    do_all(ledger, plan)
    after = everything(ledger)
    names = (*FACTS, "taken")
    assert {name: after[name] for name in names} == {name: before[name] for name in names}


def test_contributions_that_no_step_has_taken_yet_are_kept(late):
    ledger, plan, path_0 = late
    claims = step_without_path_0(ledger, plan)
    do(ledger, plan, path_0)
    late_name, in_time = (a.message.name for a in ledger.facts.contributions("modular", EARLY, 0))

    def superseded():
        return [
            name
            for newest in (1, 2, 3)
            for name in ledger.retention.superseded_contributions(
                plan.arm("modular"), EARLY, newest, 1
            )
        ]

    def live():
        return ledger.retention.live_names(snapshots=1, contributions=1)

    assert superseded() == [in_time]
    assert late_name in live()
    assert in_time not in live()
    for claim in claims.values():
        do(ledger, plan, claim)
    do_all(ledger, plan)
    assert late_name in superseded()
    assert not {late_name, in_time} & live()
