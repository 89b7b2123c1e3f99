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
    with pytest.raises(CannotRollBack, match=f"module {module} at phase 2 is lost. Nothing"):
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
