"""Under any interleaving of claims, crashes and finishes, by workers quick and stale, a task is
finished once: law 10 of the house, on the ledger itself. Whatever a plan's settings are, no task is
due before the facts are there that it reads, and the run comes to its end.
"""

import random
from pathlib import Path

import fuzz_plans
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from support.made_up_facts import facts_of

from dipaco.control.ledger import Ledger
from dipaco.errors import ClaimLost
from dipaco.schedule.plan import Plan, one_path
from dipaco.topology import Level, Topology
from tests.control.conftest import arm

PLAN = Plan(
    base=arm("base", one_path(("embed",)), 1),
    arms=(
        arm(
            "modular",
            Topology(levels=(Level(name="all", parts=("embed",)), Level(name="two", experts=2))),
            2,
            averaged=True,
        ),
    ),
)


class Workers(RuleBasedStateMachine):
    """Claims are kept after they were lost, as a worker does that was silent for a while."""

    claims = Bundle("claims")

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(Path(":memory:"))
        self.ledger.start({})
        self.holder = {}  # task id -> attempt of its holder
        self.finished = []

    @rule(target=claims, worker=st.sampled_from(["a", "b", "c"]))
    def claim(self, worker):
        claim = self.ledger.queue.claim(worker)
        if claim is None:
            return multiple()
        assert claim.task_id not in self.holder, "a held task was given away"
        assert claim.task not in self.finished, "a finished task was given out"
        self.holder[claim.task_id] = claim.attempt
        return claim

    @rule(claim=claims)
    def finish(self, claim):
        is_holder = self.holder.get(claim.task_id) == claim.attempt
        try:
            self.ledger.commit.finish(PLAN, claim, facts_of(PLAN, claim.task))
        except ClaimLost:
            assert not is_holder, "the holder was refused"
        else:
            assert is_holder, "a stale claim was accepted"
            del self.holder[claim.task_id]
            self.finished.append(claim.task)

    @rule(claim=claims)
    def give_back(self, claim):
        self.ledger.queue.give_back(claim)
        if self.holder.get(claim.task_id) == claim.attempt:
            del self.holder[claim.task_id]

    @rule()
    def all_workers_crash(self):
        assert self.ledger.queue.give_back_all() == len(self.holder)
        self.holder = {}

    @invariant()
    def a_task_is_finished_once_and_stays_so(self):
        assert len(set(self.finished)) == len(self.finished)
        states = self.ledger.queue.task_counts().values()
        assert sum(state.get("done", 0) for state in states) == len(self.finished)
        assert sum(state.get("claimed", 0) for state in states) == len(self.holder)

    def teardown(self):
        """Whatever happened, the run can be brought to its end by one worker."""
        self.ledger.queue.give_back_all()
        while (claim := self.ledger.queue.claim("last")) is not None:
            self.ledger.commit.finish(PLAN, claim, facts_of(PLAN, claim.task))
            self.finished.append(claim.task)
        # prepare, pretrain, route, 2 phases of 2 paths and 1 module, 3 releases (one of 1 path).
        assert len(set(self.finished)) == len(self.finished) == 3 + 2 * 3 + (1 + 2 * 2) + 3 + 1
        self.ledger.close()


Workers.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestWorkers = Workers.TestCase


@pytest.mark.parametrize("number", range(12))
def test_a_run_of_any_plan_comes_to_its_end_and_no_task_is_due_too_early(number):
    dice = random.Random(f"suite {number}")
    assert fuzz_plans.one_run(fuzz_plans.drawn(dice), None, 1, dice) in ("done", "refused")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_so_does_one_of_several_programs_on_a_server(postgresql_server, number):
    dice = random.Random(f"suite {number + 100}")
    settings = f"private outer.quorum=0.5 outer.grace_seconds=0 outer.path_share={(number + 1) / 4}"
    assert fuzz_plans.one_run(settings, postgresql_server.url, 3, dice) == "done"
