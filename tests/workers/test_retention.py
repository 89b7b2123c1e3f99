"""Retention: which modules, contributions and snapshots a run keeps on its disk."""

import dataclasses

from dipaco.config import MODULAR, EvaluationSettings
from dipaco.store.retention import RetentionSettings
from tests.workers.conftest import CONFIG, finish


def test_modules_that_no_release_needs_are_deleted_within_retention(begin):
    config = dataclasses.replace(
        CONFIG,
        phases=4,
        evaluation=EvaluationSettings(every_phases=2),
        retention=RetentionSettings(modules=2, snapshots=1, contributions=1),
    )
    run = begin(config)
    finish(run)
    there = {
        phase
        for phase in range(5)
        for module in run.config.topology.modules
        if (
            run.layout.root / run.ledger.facts.module(MODULAR, module, phase).parameters.name
        ).exists()
    }
    # Modules begin as copies of one another: what another fact has as well stays.
    assert there == {0, 2, 3, 4}  # releases of 2 and 4
    assert len(list((run.layout.root / "snapshots/modular").glob("*/*"))) == 4
    assert not list((run.layout.root / "objects/messages").rglob("*.safetensors"))
    for phase in (2, 4):
        run.path_of(run.ledger.facts.release(MODULAR, phase), 0)  # whole


def phases_there(run, module):
    """The phases of which the parameters of a module are on the disk."""
    stored = {at: run.ledger.facts.module(MODULAR, module, at).parameters for at in range(7)}
    return {at for at, of in stored.items() if (run.layout.root / of.name).exists()}


def test_by_default_a_run_keeps_three_phases_of_modules_and_snapshots(begin):
    never = EvaluationSettings(every_phases=6)
    config = dataclasses.replace(CONFIG, phases=6, evaluation=never, retention=RetentionSettings())
    run = begin(config)
    finish(run)
    for module in run.config.topology.modules:
        assert phases_there(run, module) == {0, 4, 5, 6}  # 0: the base model has the same
    assert len(list((run.layout.root / "snapshots/modular").glob("*/*"))) == 2 * 4


def test_early_stopping_keeps_each_path_at_its_best_and_deletes_the_rest(begin):
    config = dataclasses.replace(
        CONFIG,
        phases=6,
        inner=dataclasses.replace(CONFIG.inner, hold_out=0.1, learning_rate=0.3),
        evaluation=EvaluationSettings(every_phases=3),
        retention=RetentionSettings(modules=2),
    )
    run = begin(config)
    finish(run)
    best = {at: run.ledger.facts.checks(MODULAR, at) for at in (3, 6)}
    found = set()
    for module in run.config.topology.modules:
        through = run.config.topology.paths_through(module)
        released = {best[at][path].best_phase for at in (3, 6) for path in through}
        assert phases_there(run, module) == {0, 3, 5, 6} | released
        found |= released
    assert found - {0, 3, 5, 6}, "or this shows nothing of a best phase"
    assert run.ledger.redos.refusals() == [], "what is needed is not made again, as what is lost is"
    for phase in (3, 6):
        release = run.ledger.facts.release(MODULAR, phase)
        assert all(run.path_of(release, path) for path in range(4))
