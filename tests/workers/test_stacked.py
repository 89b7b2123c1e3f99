"""Several paths trained in one program give what they give one by one, bit for bit."""

import dataclasses
import itertools
import shutil

import pytest

from dipaco.control.tasks import PathTrained
from dipaco.runs.opening import create_or_open
from dipaco.workers.callbacks import NullCallbacks
from dipaco.workers.execution import execute
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.loop import Worker
from dipaco.workers.preemption import Preempted
from dipaco.workers.stacks import stacks_of
from dipaco.workers.tasks.train import train, train_stacked
from tests.workers.conftest import CONFIG, never, work_until


def without_clock(facts):
    return [
        dataclasses.replace(fact, seconds=0, snapshot=fact.snapshot._replace(name=""))
        if isinstance(fact, PathTrained)
        else fact
        for fact in facts
    ]


def claims_of_phase(run, phase):
    """Claims on every path of a phase, to be trained together; what comes before is done."""
    work_until(run, phase)
    claims = []
    while len(claims) < 4:
        claims += run.ledger.queue.claim_stack("test", limit=4)
        if claims[-1].task.kind != "train":
            claim = claims.pop()
            run.ledger.commit.finish(run.plan, claim, execute(run, claim, NullCallbacks(), never))
    assert {claim.task.phase for claim in claims} == {phase}
    return claims


def test_stacked_paths_give_the_facts_of_training_one_by_one(begin):
    run = begin(CONFIG)
    claims = claims_of_phase(run, 1)
    told = []
    (stack,) = stacks_of(run, claims)
    together = train_stacked(run, stack, lambda *step: told.append(step))
    one_by_one = [train(run, claim, lambda loss, tokens: None) for claim in stack]
    assert [without_clock(facts) for facts in together] == [
        without_clock(facts) for facts in one_by_one
    ]
    # Told: of each step, each claim, its loss, its tokens.
    losses = {claim: facts[0].losses for claim, facts in zip(stack, together, strict=True)}
    tokens = CONFIG.inner.batch_size * CONFIG.data.length
    assert told == [
        (claim, losses[claim][step], tokens)
        for step in range(CONFIG.inner.steps)
        for claim in stack
    ]
    for claim, facts in zip(stack, together, strict=True):
        run.ledger.commit.finish(run.plan, claim, facts)
    work_until(run, 2)


def test_stopped_stacked_paths_go_on_one_by_one_to_the_same_bits(begin):
    run = begin(CONFIG)
    claims = claims_of_phase(run, 1)
    undisturbed = train_stacked(run, claims, lambda *step: None)
    asked = itertools.count()
    with pytest.raises(Preempted) as stopped:
        train_stacked(run, claims, lambda *step: None, lambda: next(asked) == 1)
    for claim, partial_snapshot in zip(claims, stopped.value.partial_snapshots, strict=True):
        run.ledger.commit.release_with_snapshot(claim, partial_snapshot)
    again = claims_of_phase(run, 1)
    assert stacks_of(run, again) == [[claim] for claim in again]
    facts = {c.task: train_stacked(run, [c], lambda *step: None)[0] for c in again}
    assert [without_clock(facts[claim.task]) for claim in claims] == [
        without_clock(of_claim) for of_claim in undisturbed
    ]


@pytest.mark.slow
def test_a_worker_claims_as_many_paths_as_the_config_says_and_the_run_is_the_same(
    begin, programs, corpus, tmp_path
):
    """Through the loop: equal modules at every phase, whether paths are stacked or not."""
    together = begin(CONFIG)
    stacked = dataclasses.replace(CONFIG.inner, stacked_paths=3)
    together.config = dataclasses.replace(together.config, inner=stacked)
    sizes = []

    class Counting(NullCallbacks):
        def task_started(self, claim):
            sizes.append(sum(held.worker == "many" for held in together.ledger.queue.held()))

    worker = Worker(together, "many", Counting(), LeaseRenewer(together.open_ledger, "many", 60.0))
    while worker.run_once():
        pass
    assert set(sizes) == {1, 3}

    shutil.copytree(corpus, tmp_path / "alone" / "corpus")
    alone, _ = create_or_open(tmp_path / "alone", CONFIG)
    alone.programs = programs
    work_until(alone, CONFIG.phases)
    for phase in range(CONFIG.phases + 1):
        assert together.ledger.facts.receipts_at(
            "modular", phase
        ) == alone.ledger.facts.receipts_at("modular", phase)
    alone.ledger.close()
