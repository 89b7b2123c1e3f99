"""A base model that several workers train equals Algorithm 1 on as many paths, bit for bit."""

import dataclasses
import json

import jax
import pytest

from dipaco import trees
from dipaco.algorithm import algorithm1, variants
from dipaco.config import MODULAR, BaseSettings
from dipaco.control.tasks import FIRST_KINDS
from dipaco.inner.optimizer import learning_rates
from dipaco.outer.compress import codec_of
from dipaco.workers.row_plans import batches_for
from tests.workers.conftest import CONFIG, worker_of

PATHS, PHASES = 3, 2
SHARED = dataclasses.replace(CONFIG, base=BaseSettings(steps=11, steps_per_phase=2, paths=PATHS))


def train_base(run, *names):
    """By these workers in turn."""
    workers = [worker_of(run, name, kinds=FIRST_KINDS) for name in names]
    while all(worker.run_once() for worker in workers):
        pass


# The base model has the codec and the outer step of the run; all else is of the modular model.
OF_ALL_KINDS = {
    "codec": "int8",
    "isotropic": True,
    "vocabulary_rows": "holders",
    "delay": 1,
    "quorum": 0.5,
    "path_share": 0.5,
    "grace_seconds": 0.0,
}


BESIDE_SYNCHRONOUS = {"synchronous": True}  # which has no outer step: that is of modules alone


@pytest.mark.parametrize(
    "outer", [{}, OF_ALL_KINDS, BESIDE_SYNCHRONOUS], ids=["plain", "all", "synchronous"]
)
def test_the_base_model_is_that_of_algorithm_1(begin, outer):
    outer = dataclasses.replace(SHARED.outer, **outer)
    run = begin(dataclasses.replace(SHARED, outer=outer))
    arm, inner = run.plan.base, run.config.inner
    assert (arm.topology.num_paths, arm.total_steps, arm.phases) == (PATHS, 4, PHASES)
    train_base(run, "ana", "bo")
    assert run.ledger.queue.unfinished_kinds() == {"route"}
    counts = run.ledger.queue.task_counts()
    assert counts["pretrain", "base"] == {"done": PATHS * PHASES}
    assert counts["outer", "base"] == {"done": PHASES}

    def train_path(path, phase, parts, optimizer_state):
        start, end = phase * 2, (phase + 1) * 2
        batches = batches_for(run, arm, path, phase)
        state = run.programs.place(parts, optimizer_state, start)
        rates = learning_rates(inner, arm.total_steps, start, 2)
        for step, rate in zip(range(start, end), rates, strict=True):
            state, _ = run.programs.step(state, run.programs.place_batch(batches.at(step)), rate)
        return jax.device_get((state.parts, state.optimizer))

    (module,) = arm.topology.modules
    everything = (arm.topology, {module: run.programs.initial_parts()}, train_path, [1] * PATHS)
    if outer == SHARED.outer:
        phases = algorithm1.train(*everything, phases=PHASES, outer=outer)
    else:
        phases = variants.train(*everything, phases=PHASES, outer=outer, codec=codec_of(outer))
    for phase, modules in enumerate(phases, start=1):
        made = run.parameters(arm.name, module, phase)
        assert trees.digest(made) == trees.digest(modules[module]), phase


def test_paths_of_the_base_model_read_all_of_the_text_between_them(begin):
    run = begin(SHARED)
    worker_of(run).run_once()
    fingerprints = {batches_for(run, run.plan.base, path, 0).fingerprint for path in range(PATHS)}
    assert len(fingerprints) == PATHS


def test_a_worker_of_the_base_model_alone_leaves_when_it_is_trained(begin):
    run = begin(SHARED)
    assert worker_of(run, kinds=FIRST_KINDS).run_until_finished()
    assert run.base_parts()


def test_the_run_goes_on_to_its_report(begin):
    run = begin(dataclasses.replace(SHARED, phases=1))
    assert worker_of(run).run_until_finished()
    (base,) = [each for each in run.ledger.facts.evaluations() if each.arm == "base"]
    assert base.phase == PHASES
    assert base.documents == len(run.corpus.documents("valid"))
    totals = run.ledger.progress.training_totals
    of_base, of_modules = totals("base"), totals(MODULAR)
    (row, *_) = json.loads(run.layout.report("json").read_text())["rows"]
    assert of_base.bytes_sent > 0
    assert row["bytes_sent"] == of_base.bytes_sent + of_modules.bytes_sent
    shared = of_base.bytes_sent / PATHS + of_modules.bytes_sent / run.config.num_paths
    assert row["bytes_per_machine"] == round(shared)


@pytest.mark.parametrize("lost", ["message", "module"])
def test_what_is_lost_of_it_is_made_again(begin, lost):
    run = begin(SHARED)
    arm = run.plan.base
    (module,) = arm.topology.modules
    worker = worker_of(run, kinds=FIRST_KINDS)
    while len(run.ledger.facts.contributions(arm.name, module, 0)) < PATHS:
        assert worker.run_once()
    if lost == "message":
        name = run.ledger.facts.contributions(arm.name, module, 0)[1].message.name
    else:
        name = run.ledger.facts.module(arm.name, module, 0).parameters.name
    run.objects.delete(name)
    while worker.run_once():
        pass
    assert run.ledger.redos.newest_refusal() == 1
    assert run.base_parts()
