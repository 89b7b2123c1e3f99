"""A run rolled back to an earlier phase trains to the same bits; retention limits how far back."""

import pytest

from dipaco.config import MODULAR
from dipaco.control.process_id import ProcessId
from dipaco.errors import WorkersActive
from dipaco.workers import keeping
from dipaco.workers.errors import CannotRollBack
from dipaco.workers.rollback import roll_back
from tests.support.members import join
from tests.workers.conftest import (
    CONFIG,
    changed,
    digests_of,
    file_of,
    finish,
    work_while,
    worker_of,
)
from tests.workers.test_recovery import flip


@pytest.fixture
def finished(begin):
    """A run of three phases that keeps every snapshot."""
    return begin(changed(CONFIG, retention={"snapshots": None}), until="the end")


def test_a_run_that_was_rolled_back_ends_with_the_same_digests(finished):
    before, losses = digests_of(finished), finished.ledger.progress.losses(MODULAR)
    assert len(list(finished.layout.root.glob("snapshots/*/*/*"))) == 4 * CONFIG.phases + 2
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
    flip(file_of(finished, module, 1))
    with pytest.raises(CannotRollBack, match=f"module {module} at phase 1 is damaged"):
        roll_back(finished, 1)
    assert digests_of(finished) == before


def test_deleted_phases_and_active_workers_prevent_a_rollback(begin):
    run = begin(changed(CONFIG, retention={"snapshots": 3}))
    work_while(lambda: run.ledger.progress.phases_reached(MODULAR, 4) < 2, worker_of(run))
    claim = run.ledger.queue.claim("busy")
    with pytest.raises(WorkersActive, match=r"busy holds 1 task\."):
        roll_back(run, 1)
    run.ledger.queue.give_back(claim)
    finish(run)
    before = digests_of(run)
    said = (
        r"snapshot of path 0 after phase 0 was deleted \(`retention.snapshots` is 3, and one fewer"
    )
    with pytest.raises(CannotRollBack, match=said):
        roll_back(run, 1)
    roll_back(run, 2)
    finish(run)
    assert digests_of(run) == before
    module = run.config.topology.modules[0]
    file_of(run, module, 2).unlink()
    said = f"module {module} at phase 2 was deleted .* lost. Nothing"
    with pytest.raises(CannotRollBack, match=said):
        roll_back(run, 2)


def test_modules_that_no_release_needs_are_deleted_within_retention(begin):
    config = changed(
        CONFIG,
        phases=4,
        evaluation={"every_phases": 2},
        retention={"modules": 2, "snapshots": 1, "contributions": 1},
    )
    run = begin(config)
    finish(run)
    there = set.union(*(phases_there(run, module) for module in run.config.topology.modules))
    # Modules begin as copies of one another: what another fact has as well stays.
    assert there == {0, 2, 3, 4}  # releases of 2 and 4
    assert len(list((run.layout.root / "snapshots/modular").glob("*/*"))) == 4
    assert not list((run.layout.root / "objects/messages").rglob("*.safetensors"))
    for phase in (2, 4):
        run.path_of(run.ledger.facts.release(MODULAR, phase), 0)  # whole


def phases_there(run, module):
    """The phases of which the parameters of a module are on the disk."""
    return {at for at in range(run.config.phases + 1) if file_of(run, module, at).exists()}


def test_by_default_a_run_keeps_what_takes_back_its_two_newest_phases_and_no_more(begin):
    run = begin(changed(CONFIG, phases=6, evaluation={"every_phases": 6}))
    worker = worker_of(run)
    work_while(lambda: run.ledger.progress.phases_reached(MODULAR, 4) < 5, worker)
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
    config = changed(
        CONFIG,
        phases=6,
        inner={"hold_out": 0.1, "learning_rate": 0.3},
        evaluation={"every_phases": 3},
        retention={"modules": 2},
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
    retention = {"modules": 2, "snapshots": None, "contributions": None}
    run = begin(changed(CONFIG, retention=retention), until=("outer", 2))
    join(run.ledger, "test", process_id=str(ProcessId.here()))
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
