"""Damaged, lost and wrong objects are made again, and the run ends with the bits of an undisturbed
one.
"""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.control.errors import RecoveryFailed
from dipaco.control.facts.recording import record
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.execution import execute
from tests.workers.conftest import (
    CONFIG,
    RecordingCallbacks,
    changed,
    digests_of,
    file_of,
    finish,
    never,
    work_until_claimed,
    worker_of,
)

BY_HOLDERS = changed(CONFIG, outer={"vocabulary_rows": "holders"})
STOPPED = changed(CONFIG, outer={"codec": "int8"}, inner={"steps": 6}, phases=2)


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def messages(run, phase):
    return sorted((run.layout.root / "objects/messages").glob(f"modular/*/*/{phase:06d}/*"))


def test_damaged_truncated_and_lost_contributions_are_made_again(begin, undisturbed):
    run = begin(CONFIG, until=("outer", 1))
    damaged, cut, gone = messages(run, 1)[:3]
    flip(damaged)
    cut.write_bytes(cut.read_bytes()[:-10])
    gone.unlink()
    receipts = {
        contribution.message.name: contribution.message
        for module in run.config.topology.modules
        for contribution in run.ledger.facts.contributions(MODULAR, module, 1)
    }
    for file, error in ((damaged, ObjectDamaged), (cut, ObjectDamaged), (gone, ObjectMissing)):
        with pytest.raises(error):
            run.objects.file(receipts[str(file.relative_to(run.layout.root))])
    callbacks = finish(run)
    assert {error for _, error in callbacks.redos} == {"ObjectDamaged", "ObjectMissing"}
    assert digests_of(run) == undisturbed
    refusals = run.ledger.redos.refusals()
    assert len(refusals) >= 2  # two may be of one path, which is trained again once
    assert {refusal.worker for refusal in refusals} == {"recoverer"}


def test_a_phase_is_done_again_after_its_newest_snapshot_is_lost(begin, undisturbed):
    run = begin(CONFIG, until=("train", 2))
    task = work_until_claimed(run, "train", 2)
    snapshot = run.ledger.facts.snapshot(MODULAR, task.path, 1)
    shutil.rmtree(run.layout.root / snapshot.receipt.name)
    callbacks = finish(run)
    assert callbacks.redos == [(task, "ObjectMissing")]
    assert digests_of(run) == undisturbed
    again = run.ledger.facts.snapshot(MODULAR, task.path, 1)
    assert again.receipt.digest == snapshot.receipt.digest


def test_everything_is_done_again_after_all_snapshots_and_two_modules_are_lost(begin, undisturbed):
    run = begin(CONFIG, until=("train", 2))
    (module, *_) = run.config.topology.modules
    shutil.rmtree(run.layout.root / "snapshots/modular")
    for phase in (0, 2):  # the first is read only by a rollback to the beginning
        file_of(run, module, phase).unlink()
    assert finish(run).redos
    assert digests_of(run) == undisturbed
    assert file_of(run, module, phase).exists()


def spoil(run, change, path=0):
    """Puts a contribution in place of the one of a path to its first module at phase 1."""
    module = run.config.topology.modules_of(path)[0]
    (contribution,) = (
        each for each in run.ledger.facts.contributions(MODULAR, module, 1) if each.path == path
    )
    tree = change(load_tree(run.objects, contribution.message))
    receipt = save_tree(run.objects, f"messages/modular/{module}/000001", tree)
    with run.ledger._database.transaction():
        run.ledger._database.change(
            "drop_contribution", arm=MODULAR, module=str(module), phase=1, path=path
        )
        record(run.ledger._database, dataclasses.replace(contribution, message=receipt))


def with_leaf(change):
    def changed(tree):
        (part, *_) = tree
        (name, *_) = tree[part]
        leaf = tree[part][name]
        new = change(np.array(leaf)) if not isinstance(leaf, dict) else leaf
        return {**tree, part: {**tree[part], name: new}}

    return changed


def put(value):
    def changed(leaf):
        leaf.reshape(-1)[0] = value
        return leaf

    return changed


@pytest.mark.parametrize(
    "changes",
    [
        {put(np.nan): "NaN or an infinity", put(3e38): "norm is infinite"},
        {
            put(np.inf): "NaN or an infinity",
            lambda leaf: leaf[:-1]: "expected float32",
            lambda leaf: leaf.astype(np.float64): "float64",
        },
    ],
    ids=["nan, huge", "infinity, shape, type"],
)
def test_a_contribution_that_is_wrong_is_refused_and_made_again(begin, undisturbed, changes):
    run = begin(CONFIG, until=("outer", 1))
    while (claim := run.ledger.queue.claim("trains", ["train"])) is not None:
        worker_of(run)._finish(claim, execute(run, claim, Callbacks(), never))
    for path, change in enumerate(changes):
        spoil(run, with_leaf(change), path)
    callbacks = finish(run)
    assert "ContributionRefused" in {error for _, error in callbacks.redos}
    refusals = run.ledger.redos.refusals()
    for path, reason in enumerate(changes.values()):
        task = f"train modular path {path} phase 1"
        assert any(reason in each.reason for each in refusals if each.task == task), reason
    assert digests_of(run) == undisturbed


def test_a_loss_that_no_task_can_repair_is_counted_against_the_task(begin, monkeypatch):
    run = begin(CONFIG, until=("train", 0))
    monkeypatch.setattr(run.ledger.redos, "maker_of", lambda plan, name: None)
    module = run.config.topology.modules_of(0)[0]
    file_of(run, module, 0).unlink()
    assert worker_of(run).run_once()
    (failure,) = run.ledger.failures.list()
    assert (failure.errors, failure.reason.partition(":")[0]) == (1, "ObjectMissing")
    assert run.ledger.queue.task_counts()["train", MODULAR] == {"ready": 3, "delayed": 1}


def test_an_object_that_was_made_again_under_another_name_meanwhile_is_no_failure(
    begin, monkeypatch
):
    """Another worker has trained the phase before again since this one read where its snapshot
    is.
    """
    run = begin(CONFIG, until=("train", 1))

    def moved(*_):
        monkeypatch.undo()
        raise ObjectMissing(file="moved", name="snapshots/modular/0000/000000-99")

    monkeypatch.setattr("dipaco.workers.phase_start.load_snapshot", moved)
    assert worker_of(run).run_once()
    assert run.ledger.failures.list() == []
    assert run.ledger.queue.task_counts()["train", MODULAR]["ready"] == 4


def test_an_object_that_is_damaged_again_and_again_is_left_to_a_person(begin, monkeypatch):
    run = begin(CONFIG, until=1)
    task = work_until_claimed(run, "train", 1)

    def spoilt(*_):
        name = run.ledger.facts.snapshot(MODULAR, task.path, 0).receipt.name
        raise ObjectMissing(file=run.layout.root / name)

    monkeypatch.setattr("dipaco.workers.phase_start.load_snapshot", spoilt)
    with pytest.raises(RecoveryFailed, match="done again 3 times"):
        worker_of(run).run_until_finished()


def test_a_stopped_phase_goes_on_from_its_partial_snapshot(begin, undisturbed_of):
    """Each worker stops after the first step that it reports; the next goes on there. The residual
    of the codec stays with the path, on whichever worker and however often it is stopped; a bad
    scale changes nothing.
    """
    run, released = begin(STOPPED), []
    for phase in range(2):
        work_until_claimed(run, "train", phase)
        is_left = True
        while is_left:
            callbacks = RecordingCallbacks()
            worker = worker_of(run, "stopped", callbacks, kinds=["train"])
            callbacks.step_taken = lambda claim, loss, tokens, worker=worker: worker.stop()
            is_left = worker.run_once()
            released += [step for _, step in callbacks.released]
    assert released == [2, 4] * 4 + [8, 10] * 4
    left = list((run.layout.root / "snapshots/modular").glob("*/*"))
    assert len(left) == 8, "what was saved part-way must be gone"

    def without_scale(message):
        scales = [leaf for name, leaf in trees.flatten(message) if name.endswith("scales")]
        scales[0][0] = np.nan
        return message

    spoil(run, without_scale)
    callbacks = finish(run)
    assert "ContributionRefused" in {error for _, error in callbacks.redos}
    reasons = [refusal.reason for refusal in run.ledger.redos.refusals()]
    assert any("is negative, infinite or not a number" in reason for reason in reasons)
    losses = run.ledger.progress.losses(MODULAR)
    assert len(losses[0]) == 2 * 6
    assert (digests_of(run), losses) == undisturbed_of(STOPPED)


def counts_of_another_tokenizer(run):
    size = CONFIG.model.vocab_size - 1
    other = save_tree(run.objects, "shards", {"token_counts": np.ones((4, size), np.int64)})
    return lambda file: file.write_bytes(Path(run.objects.file(other)).read_bytes())


def test_counts_of_tokens_are_made_again(begin, undisturbed_of):
    run = begin(BY_HOLDERS, until=("outer", 1))
    counts = run.stage("route").artifacts["token_counts"]
    for spoil_counts in (flip, counts_of_another_tokenizer(run), Path.unlink):
        spoil_counts(run.layout.root / counts.name)
        run._token_counts.clear()  # as another process finds them
        callbacks = RecordingCallbacks()
        assert worker_of(run, callbacks=callbacks).run_once()
        assert [error for _, error in callbacks.redos if "Object" in error]
        assert run.stage("route").artifacts["token_counts"].digest == counts.digest
        work_until_claimed(run, "outer", 1)
    finish(run)
    assert digests_of(run) == undisturbed_of(BY_HOLDERS).digests
