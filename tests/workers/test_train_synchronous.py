"""A synchronous run through tasks, ledger and store: Algorithm 1's counterpart in memory, bit for
bit, also after it was stopped; with one path, plain AdamW.
"""

import dataclasses

import jax
import numpy as np
import pytest
from support.smallest_run import EVERYTHING, SHARINGS

from dipaco import trees
from dipaco.algorithm import synchronous
from dipaco.config import MODULAR
from dipaco.data.pipeline import Batches
from dipaco.inner.optimizer import learning_rates
from dipaco.outer.config import OuterSettings
from dipaco.runs.forecast.forecast import forecast
from dipaco.runs.reading.report import make_report
from dipaco.store.errors import ObjectDamaged
from dipaco.topology import Level, Topology
from dipaco.workers import replay
from dipaco.workers.errors import Preempted, SnapshotOfOtherData
from dipaco.workers.row_plans import batches_for
from dipaco.workers.tasks.train_synchronous import train_synchronous
from tests.workers.conftest import CONFIG, changed, claim_of, do, finish, work_until

TOGETHER = dataclasses.replace(CONFIG, outer=OuterSettings(synchronous=True))
STEPS = CONFIG.phases * CONFIG.inner.steps


def digests(run, phase=CONFIG.phases):
    topology = run.config.topology
    return {m: trees.digest(run.parameters(MODULAR, m, phase)) for m in topology.modules}


def claim_train(run, phase):
    """The claim of the one training task of a phase; what comes before it is done."""
    while (claim := claim_of(run, "train")).task.phase != phase:
        do(run, claim)
    assert claim.task.subject == "0"
    return claim


def quiet(loss, tokens): ...


def test_every_module_at_every_phase_is_that_of_the_algorithm(begin):
    run = begin(TOGETHER)
    work_until(run, CONFIG.phases)
    assert replay.differences(run) == []
    seen = {
        digest for phase in range(1, 1 + CONFIG.phases) for digest in digests(run, phase).values()
    }
    assert len(seen) == CONFIG.phases * len(run.config.topology.modules)

    # Facts of every path, one task a phase, and a gradient up and down at every step.
    assert run.ledger.queue.task_counts()["train", MODULAR] == {"done": CONFIG.phases}
    assert ("outer", MODULAR) not in run.ledger.queue.task_counts()
    totals = run.ledger.progress.training_totals(MODULAR)
    assert totals.tokens == 4 * STEPS * CONFIG.inner.batch_size * CONFIG.data.length
    assert {
        path: len(losses) for path, losses in run.ledger.progress.losses(MODULAR).items()
    } == dict.fromkeys(range(4), STEPS)


def test_with_one_path_it_is_plain_adamw(begin):
    topology = Topology(levels=(Level(name="all", parts=EVERYTHING),))
    run = begin(dataclasses.replace(TOGETHER, topology=topology))
    work_until(run, CONFIG.phases)
    arm = run.plan.arm(MODULAR)
    batches = batches_for(run, arm, 0, 0)
    state = run.programs.place(run.base_parts(), None, 0)
    for step, rate in enumerate(learning_rates(CONFIG.inner, STEPS, 0, STEPS)):
        batch = run.programs.place_batch(batches.at(step))
        state, _ = run.programs.step(state, batch, rate)
    (module,) = topology.modules
    got = run.parameters(MODULAR, module, CONFIG.phases)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6), state.parts, got
    )
    moved = run.base_parts()["head"]["kernel"] - got["head"]["kernel"]
    assert np.abs(moved).max() > 1e-3


def test_in_lock_step_on_shards_dealt_out_all_paths_are_one_model(begin):
    diloco = Topology(levels=SHARINGS["diloco"])
    run = begin(changed(TOGETHER, routing={"kind": "random"}, topology=diloco))
    finish(run)
    documents = run.stage("route").summary["documents"]
    assert sum(documents) == len(run.corpus.documents("train"))
    assert max(documents) - min(documents) <= 1
    (last,) = [fact for fact in run.ledger.facts.evaluations() if fact.arm == MODULAR]
    assert last.best_path_perplexity == last.perplexity


def test_the_baseline_in_lock_step_is_one_model_under_batches_of_all_machines(begin):
    """It is trained beside paths that step by themselves, and takes everything in turn."""
    run = begin(dataclasses.replace(CONFIG, baselines=("data_parallel",)))
    finish(run)
    arm, programs, size = run.plan.arm("data_parallel"), run.programs, CONFIG.inner.batch_size
    one = batches_for(run, arm, 0, 0)
    together = Batches(
        run.corpus, one.rows.plan, 4 * size, run.seed_for("batches", "data_parallel", 0)
    )

    def gradient_of(path, step, parts):
        batch = together.at(step)
        rows = {name: values[path * size :][:size] for name, values in batch.items()}
        return programs.gradient(parts, programs.place_batch(rows))[0]

    rates = learning_rates(CONFIG.inner, STEPS, 0, STEPS)
    (module,) = arm.topology.modules
    parts, state = programs.place_module(run.base_parts(), None)
    *_, last = synchronous.train(
        arm.topology,
        {module: parts},
        {module: state},
        gradient_of,
        lambda step, *arguments: programs.update(*arguments, rates[step]),
        [1] * 4,
        steps=range(STEPS),
        clip_norm=CONFIG.inner.clip_norm,
    )
    got = run.parameters("data_parallel", module, CONFIG.phases)
    assert trees.digest(got) == trees.digest(jax.device_get(last[module]))

    report = make_report(run)
    row, modular, *_ = report.rows
    assert (row.name, row.tokens, row.steps) == ("data_parallel", modular.tokens, modular.steps)
    assert row.parameters_total == row.parameters_per_path == modular.parameters_per_path
    assert row.bytes_per_machine == forecast(run.config).lock_step_run_bytes
    assert row.bytes_per_machine > 2 * STEPS * trees.num_bytes(run.base_parts())
    (note,) = [note for note in report.notes if note.startswith("data_parallel is what 4 machines")]
    times = row.bytes_per_machine / modular.bytes_per_machine
    assert f" for {times:.3g} times these bytes. modular is " in note
    (evaluated,) = [fact for fact in run.ledger.facts.evaluations() if fact.arm == arm.name]
    assert evaluated.documents == len(run.corpus.documents("test"))
    assert evaluated.best_path_perplexity is None  # it is one model


def test_a_stopped_phase_goes_on_to_the_same_bits(begin):
    run = begin(TOGETHER, until=1)
    claim = claim_train(run, 1)
    asked = iter([False, True])
    with pytest.raises(Preempted) as stopped:
        train_synchronous(run, claim, quiet, lambda: next(asked))
    partial_snapshot = stopped.value.partial_snapshot
    assert (partial_snapshot.step, len(partial_snapshot.losses)) == (CONFIG.inner.steps + 1, 4)
    undisturbed = train_synchronous(run, claim._replace(attempt=99), quiet)
    whole = {fact.module: fact for fact in undisturbed if is_module(fact)}
    norms = {fact.path: fact.norms for fact in undisturbed if not is_module(fact)}
    run.ledger.commit.release_with_snapshot(claim, partial_snapshot)
    again = claim_train(run, 1)
    told = []
    facts = train_synchronous(run, again, lambda loss, tokens: told.append(loss))
    assert len(told) == 4 * (CONFIG.inner.steps - 1)
    for fact in facts:
        if is_module(fact):
            assert fact.parameters == whole[fact.module].parameters
        else:
            assert len(fact.losses) == CONFIG.inner.steps
            assert fact.norms == norms[fact.path] is not None
    run.ledger.commit.finish(run.plan, again, facts)
    work_until(run, CONFIG.phases)


def is_module(fact):
    return hasattr(fact, "module")


def test_a_damaged_snapshot_is_made_again_by_the_task_that_made_it(begin):
    run = begin(TOGETHER, until=2)
    claim = claim_train(run, 2)
    name = run.ledger.facts.snapshot(MODULAR, 3, 1).receipt.name
    for file in (run.layout.root / name).rglob("*"):
        if file.is_file() and file.stat().st_size > 64:
            file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(ObjectDamaged):
        train_synchronous(run, claim, quiet)
    run.ledger.queue.give_back(claim)
    finish(run)
    assert [refusal.task for refusal in run.ledger.redos.refusals()] == [
        "train modular path 0 phase 1"
    ]


def test_a_snapshot_of_other_data_is_refused(begin, monkeypatch):
    run = begin(TOGETHER, until=1)
    claim = claim_train(run, 1)
    monkeypatch.setattr(run, "seed_for", lambda *names: 1)
    with pytest.raises(SnapshotOfOtherData):
        train_synchronous(run, claim, quiet)


def test_a_flat_mixture_is_routed_and_evaluated_like_any_other(begin):
    run = begin(dataclasses.replace(TOGETHER, topology=Topology(levels=SHARINGS["flat_moe"])))
    finish(run)
    (last,) = [fact for fact in run.ledger.facts.evaluations() if fact.arm == MODULAR]
    assert last.best_path_perplexity is not None
    assert last.best_path_perplexity < last.perplexity
