"""Under any interleaving of claims, crashes and finishes, by workers quick and stale, a task is
finished once: law 10 of the house, on the ledger itself. Whatever a plan's settings are, no task is
due before the facts are there that it reads, and the run comes to its end. Tasks that hang,
deletions and rollbacks leave every task its inputs.
"""

import contextlib
import random
from pathlib import Path

import fuzz_plans
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
)
from support.made_up_facts import facts_of

from dipaco.control.ledger import Ledger
from dipaco.control.planning.tasks import Task
from dipaco.control.process_id import ProcessId
from dipaco.errors import ClaimLost, WorkersActive
from dipaco.receipt import Receipt
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
    outcome, *_ = fuzz_plans.one_run(random.Random(f"suite {number}"), None)
    assert outcome in ("done", "refused")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_so_does_one_of_several_programs_on_a_server(postgresql_server, number):
    dice = random.Random(f"suite {number + 100}")
    settings = f"private outer.quorum=0.5 outer.grace_seconds=0 outer.path_share={(number + 1) / 4}"
    outcome, *_ = fuzz_plans.one_run(dice, postgresql_server.url, 3, settings)
    assert outcome == "done"


LONGER = Plan(
    base=arm("base", one_path(("embed",)), 1),
    arms=(arm("modular", PLAN.arm("modular").topology, 5, averaged=True, evaluate_every=5),),
)
MODULAR = LONGER.arm("modular")


class Keeping(RuleBasedStateMachine):
    """A run goes on and back, tasks of all kinds hang, and a worker deletes what was superseded,
    one object at a time: alive, or suspended meanwhile. No task ever lacks an input.
    """

    def __init__(self):
        super().__init__()
        self.ledger = Ledger(Path(":memory:"))
        self.ledger.start({})
        self.ledger.members.join(
            "w", host="h", pid=1, machine="m", version="0", process_id=str(ProcessId.here())
        )
        self.there = set()  # names of the objects that are there
        self.batch = []  # what the worker has decided to delete

    @rule(number=st.integers(1, 12))
    def work(self, number):
        for _ in range(number):
            if (claim := self.ledger.queue.claim("w")) is not None:
                self.finish(claim)

    @rule()
    def hang(self):
        if (claim := self.ledger.queue.claim("w")) is not None:
            self.ledger.queue.renew(claim, 60.0, stalled_seconds=1e9)
            assert self.ledger.reaper.reap("other") == ["w"]
            with pytest.raises(ClaimLost):
                self.finish(claim)
            self.ledger.failures.retry()

    def finish(self, claim):
        assert self.there >= self.needed(claim.task), claim.task
        facts = facts_of(LONGER, claim.task)
        self.ledger.commit.finish(LONGER, claim, facts)
        self.there |= {receipt.name for fact in facts for receipt in receipts_in(fact)}

    def needed(self, task):
        if task.arm != "modular" or task.kind not in ("train", "outer"):
            return set()
        if task.kind == "outer":
            rows = self.ledger.facts.contributions("modular", task.module, task.phase)
            return {row.message.name for row in rows} | self.module_at(task.module, task.phase)
        modules = MODULAR.topology.modules_of(task.path)
        names = set().union(*(self.module_at(module, task.phase) for module in modules))
        return names | self.snapshot_before(task.path, task.phase)

    def module_at(self, module, phase):
        stored = self.ledger.facts.module("modular", module, phase)
        return {each.name for each in (stored.parameters, stored.outer_state) if each}

    def snapshot_before(self, path, phase):
        if not phase:
            return set()
        return {self.ledger.facts.snapshot("modular", path, phase - 1).receipt.name}

    @precondition(lambda self: not self.batch)
    @rule()
    def begin_to_delete(self):
        self.batch = self.ledger.retention.begin_deleting(self.superseded)

    def superseded(self):
        retention, names = self.ledger.retention, []
        for phase in range(MODULAR.phases):
            for module in MODULAR.topology.modules:
                names += retention.superseded_contributions(MODULAR, module, phase + 1, 1)
                names += retention.superseded_modules("modular", module, phase - 1, phase + 1)
            for path in range(MODULAR.topology.num_paths):
                names += retention.superseded_snapshots("modular", path, phase, 2)
        return sorted(set(names) & self.there)

    @precondition(lambda self: self.batch)
    @rule()
    def delete_one(self):
        if not self.ledger.retention.may_delete():
            self.batch = []
            return
        self.there.discard(self.batch.pop())
        if not self.batch:
            self.ledger.retention.end_deleting()

    @rule(
        number=st.integers(0, 9),
        meanwhile=st.sampled_from(["nothing", "a batch"]),
        is_suspended=st.booleans(),
    )
    def roll_back(self, number, meanwhile, is_suspended):
        """Deletions go on between the check of the bytes and the rollback. The worker is in the
        middle of one, or is suspended until the run has gone back.
        """
        (member,) = self.ledger.members.list()
        if is_suspended:
            self.ledger._database.change("mark_silent", name="w", heartbeats=member.heartbeats)
        may_delete = not is_suspended and self.ledger.retention.may_delete()
        under_way = {*self.batch[-1:]} if may_delete else set()
        with contextlib.suppress(WorkersActive):
            token = self.ledger.rollbacks.begin()
            phases = [phase for phase in range(MODULAR.phases) if self.can_begin(phase)]
            if phases:
                if meanwhile == "a batch" and not self.batch:
                    self.there -= {*self.ledger.retention.begin_deleting(self.superseded)}
                    self.ledger.retention.end_deleting()
                phase = phases[number % len(phases)]
                due = [Task("train", "modular", str(path), phase) for path in (0, 1)]
                self.ledger.rollbacks.go_back("modular", phase, due, token)
                self.there -= under_way
        self.ledger.members.heartbeat("w", str(ProcessId.here()))

    def can_begin(self, phase):
        """True if the run was at the start of this phase, and its objects are there."""
        modules, paths = MODULAR.topology.modules, range(MODULAR.topology.num_paths)
        if self.ledger.facts.modules_at("modular", phase) != set(modules):
            return False
        if phase and self.ledger.facts.trained("modular", phase - 1) != set(paths):
            return False
        needed = [self.module_at(module, phase) for module in modules]
        return self.there >= set().union(*needed, *(self.snapshot_before(p, phase) for p in paths))

    def teardown(self):
        """Whatever happened, the run can be brought to its end."""
        self.ledger.queue.give_back_all()
        while not self.ledger.queue.is_finished():
            self.work(1)
        self.ledger.close()


def receipts_in(fact):
    return [value for value in vars(fact).values() if isinstance(value, Receipt)]


Keeping.TestCase.settings = settings(max_examples=25, stateful_step_count=50)
TestKeeping = Keeping.TestCase
