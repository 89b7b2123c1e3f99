"""A run through tasks, ledger and store equals Algorithm 1 in memory, bit for bit: each module, at
each phase. Options: `test_options_together.py`.
"""

import dataclasses

import jax
import pytest
from support.smallest_run import SHARINGS

from dipaco import trees
from dipaco.algorithm import algorithm1
from dipaco.config import MODULAR, BaseSettings
from dipaco.control.planning.tasks import PathTrained
from dipaco.errors import ClaimLost
from dipaco.inner.optimizer import learning_rates
from dipaco.topology import Topology
from dipaco.workers import replay
from dipaco.workers.errors import ContributionRefused, SnapshotOfOtherData
from dipaco.workers.row_plans import batches_for
from dipaco.workers.runners import OneHost
from dipaco.workers.tasks.outer import step_module
from dipaco.workers.tasks.train import train
from tests.workers.conftest import CONFIG, claim_of, work_until


@pytest.mark.parametrize("sharing", ["2x2", "diloco"])
def test_every_module_at_every_phase_is_that_of_algorithm_1(begin, sharing):
    topology = Topology(levels=SHARINGS[sharing])
    run = begin(dataclasses.replace(CONFIG, topology=topology))
    work_until(run, CONFIG.phases)

    arm, inner = run.plan.arm(MODULAR), run.config.inner

    def train_path(path, phase, parts, optimizer_state):
        start, end = phase * inner.steps, (phase + 1) * inner.steps
        batches = batches_for(run, arm, path, phase)
        state = run.programs.place(parts, optimizer_state, start)
        rates = learning_rates(inner, CONFIG.phases * inner.steps, start, inner.steps)
        for step, rate in zip(range(start, end), rates, strict=True):
            state, _ = run.programs.step(state, run.programs.place_batch(batches.at(step)), rate)
        return jax.device_get((state.parts, state.optimizer))

    documents = run.stage("route").summary["documents"]
    phases = algorithm1.train(
        topology, replay.first_modules(run), train_path, documents, arm.phases, CONFIG.outer
    )
    seen = set()
    for phase, modules in enumerate(phases, start=1):
        for module in topology.modules:
            digest = trees.digest(modules[module])
            assert trees.digest(run.parameters(MODULAR, module, phase)) == digest, (module, phase)
            seen.add(digest)
    assert len(seen) == CONFIG.phases * len(topology.modules)  # and they all differ


def test_a_base_model_without_training_is_initialised_from_the_seed_and_routes(begin, programs):
    run = begin(dataclasses.replace(CONFIG, base=BaseSettings(steps=0)))
    work_until(run, 1)
    assert trees.digest(run.base_parts()) == trees.digest(programs.initial_parts())


def without_clock(facts):
    return [
        dataclasses.replace(fact, seconds=0, snapshot=fact.snapshot._replace(name=""))
        if isinstance(fact, PathTrained)
        else fact
        for fact in facts
    ]


def test_a_task_done_twice_gives_the_same_facts_and_counts_once(begin):
    run = begin(CONFIG, until=("train", 0))
    first = claim_of(run, "train")
    facts = train(run, first, OneHost(run), lambda loss, tokens: None)
    run.ledger.queue.give_back(first)
    second = claim_of(run, "train")
    assert (second.task, second.attempt) == (first.task, first.attempt + 1)
    again = train(run, second, OneHost(run), lambda loss, tokens: None)
    assert without_clock(again) == without_clock(facts)
    with pytest.raises(ClaimLost):
        run.ledger.commit.finish(run.plan, first, facts)
    run.ledger.commit.finish(run.plan, second, again)
    with pytest.raises(ClaimLost):
        run.ledger.commit.finish(run.plan, second, again)


def test_a_snapshot_that_counts_in_other_data_is_refused(begin, monkeypatch):
    run = begin(CONFIG, until=1)
    claim = claim_of(run, "train")
    assert claim.task.phase == 1
    monkeypatch.setattr(run, "seed_for", lambda *names: 1)  # the rows come in another order
    with pytest.raises(SnapshotOfOtherData, match=f"path {claim.task.path} of `modular`"):
        train(run, claim, OneHost(run), lambda loss, tokens: None)


def test_a_contribution_that_started_from_other_parameters_is_not_averaged(begin, monkeypatch):
    run = begin(CONFIG, until=("train", 0))
    claim = claim_of(run, "outer")
    contributions = run.ledger.facts.contributions(MODULAR, claim.task.module, 0)
    other = [dataclasses.replace(contributions[0], base_digest="0" * 32), *contributions[1:]]
    monkeypatch.setattr(run.ledger.facts, "contributions", lambda *of: other)
    with pytest.raises(
        ContributionRefused,
        match=f"Path {contributions[0].path} made a contribution.*other parameters",
    ):
        step_module(run, claim)


def test_averaged_contributions_and_older_snapshots_are_deleted(begin):
    run = begin(CONFIG, until=2)
    left = [file for file in (run.layout.root / "objects/messages").rglob("*") if file.is_file()]
    waiting = {
        contribution.message.name
        for module in run.config.topology.modules
        for phase in range(3)
        for contribution in run.ledger.facts.contributions(MODULAR, module, phase)
        if module not in run.ledger.facts.modules_at(MODULAR, phase + 2)
    }
    assert {str(file.relative_to(run.layout.root)) for file in left} == waiting
    for path in range(4):
        assert len(list((run.layout.root / f"snapshots/modular/{path:04d}").iterdir())) == 2
