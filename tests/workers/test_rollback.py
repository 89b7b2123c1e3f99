"""A run rolled back to an earlier phase trains to the same bits; retention limits how far back."""

import dataclasses

import pytest

from dipaco.config import MODULAR, EvaluationSettings
from dipaco.control.process_id import ProcessId
from dipaco.errors import WorkersActive
from dipaco.store.retention import RetentionSettings
from dipaco.workers import keeping
from dipaco.workers.errors import CannotRollBack
from dipaco.workers.rollback import roll_back
from tests.workers.conftest import CONFIG, digests_of, finish, worker_of
from tests.workers.test_recovery import flip


@pytest.fixture
def finished(begin):
    """A run of three phases that keeps every snapshot."""
    retention = RetentionSettings(snapshots=None)
    return begin(dataclasses.replace(CONFIG, retention=retention), until="the end")


def test_a_run_that_was_rolled_back_ends_with_the_same_digests(finished):
    before, losses = digests_of(finished), finished.ledger.progress.losses(MODULAR)
    for phase in (2, 0):
        counts = roll_back(finished, phase)
        assert counts["modules"] == 4 * (CONFIG.phases - phase)
        after = digests_of(finished)
        assert after[: phase + 1] == before[: phase + 1], "phase N is as it was recorded"
        assert not any(after[phase + 1 :])
        finish(finished)
        assert digests_of(finished) == before
        assert finished.ledger.progress.losses(MODULAR) == losses
    assert [rollback.phase for rollback in finished.ledger.rollbacks.list()] == [2, 0]


def test_a_rollback_that_is_impossible_changes_nothing(finished):
    before = digests_of(finished)
    for phase, problem in (
        (3, "it is there, and has recorded nothing since"),
        (4, "it is at phase 3"),
        (-1, "it is at phase 3"),
    ):
        with pytest.raises(CannotRollBack, match=f"phase {phase}: {problem}.*Nothing was changed"):
            roll_back(finished, phase)
    module = finished.config.topology.modules[0]
    flip(finished.layout.root / finished.ledger.facts.module(MODULAR, module, 1).parameters.name)
    with pytest.raises(CannotRollBack, match=f"module {module} at phase 1 is damaged"):
        roll_back(finished, 1)
    assert digests_of(finished) == before


def test_deleted_phases_and_active_workers_prevent_a_rollback(begin):
    run = begin(dataclasses.replace(CONFIG, retention=RetentionSettings(snapshots=3)))
    worker = worker_of(run)
    while run.ledger.progress.phases_reached(MODULAR, 4) < 2:
        assert worker.run_once()
    claim = run.ledger.queue.claim("busy")
    with pytest.raises(WorkersActive, match=r"busy holds 1 task\."):
        roll_back(run, 1)
    run.ledger.queue.give_back(claim)
    finish(run)
    before = digests_of(run)
    with pytest.raises(
        CannotRollBack,
        match=r"snapshot of path 0 after phase 0 was deleted "
        r"\(`retention.snapshots`",
    ):
        roll_back(run, 1)
    roll_back(run, 2)
    finish(run)
    assert digests_of(run) == before
    module = run.config.topology.modules[0]
    (run.layout.root / run.ledger.facts.module(MODULAR, module, 2).parameters.name).unlink()
    with pytest.raises(
        CannotRollBack, match=f"module {module} at phase 2 was deleted .* lost. Nothing"
    ):
        roll_back(run, 2)


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


def test_by_default_a_run_keeps_what_takes_back_its_two_newest_phases_and_no_more(begin):
    never = EvaluationSettings(every_phases=6)
    config = dataclasses.replace(CONFIG, phases=6, evaluation=never, retention=RetentionSettings())
    run = begin(config)
    worker = worker_of(run)
    while run.ledger.progress.phases_reached(MODULAR, 4) < 5:
        assert worker.run_once()
    assert worker.run_once(), "a path begins another phase"
    before = digests_of(run)
    roll_back(run, 4)
    finish(run)
    assert digests_of(run)[:6] == before[:6]
    assert run.ledger.redos.refusals() == []
    for module in run.config.topology.modules:
        assert phases_there(run, module) <= {0, 4, 5, 6}  # 0: the base model has the same
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


def test_a_run_does_not_go_back_while_what_it_would_begin_from_is_deleted(begin, monkeypatch):
    """What is deleted was decided before. It is deleted by a worker that holds no task any more."""
    retention = RetentionSettings(modules=2, snapshots=None, contributions=None)
    run = begin(dataclasses.replace(CONFIG, retention=retention), until=("outer", 2))
    at = {"host": "here", "pid": 1, "machine": "cpu", "version": "0"}
    run.ledger.members.join("test", process_id=str(ProcessId.here()), **at)
    deleted, said = [], []

    def go_back_first(run, name):
        with pytest.raises(WorkersActive, match="test is deleting") as refusal:
            roll_back(run, 1)
        said.append(str(refusal.value))
        deleted.append(name)
        remove(run, name)

    remove = keeping._remove
    monkeypatch.setattr(keeping, "_remove", go_back_first)
    assert worker_of(run).run_once()
    assert len(deleted) == len(said) == 2, "a module and its outer state"
    with pytest.raises(CannotRollBack, match="was deleted"):
        roll_back(run, 1)


def test_a_worker_that_was_silent_deletes_nothing_after_the_run_went_back(begin, monkeypatch):
    """As one whose machine was suspended in the middle of a batch."""
    retention = RetentionSettings(modules=2, snapshots=None, contributions=None)
    run = begin(dataclasses.replace(CONFIG, retention=retention), until=("outer", 2))
    deleted = []

    def go_back_after(run, name):
        deleted.append(name)
        if len(deleted) == 1:
            roll_back(run, 1)

    monkeypatch.setattr(keeping, "_remove", go_back_after)
    assert worker_of(run).run_once()
    assert len(deleted) == 1, "the other is needed again"
