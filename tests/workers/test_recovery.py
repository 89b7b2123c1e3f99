"""Damaged, lost and wrong objects are made again, and the run ends with the bits of an undisturbed
one.
"""

import dataclasses
import functools
import shutil
from pathlib import Path

import numpy as np
import pytest

from dipaco import trees
from dipaco.config import MODULAR
from dipaco.control.errors import RecoveryFailed
from dipaco.control.facts.recording import record
from dipaco.runs.opening import create_or_open
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.tensors import load_tree, save_tree
from dipaco.workers.callbacks import NullCallbacks
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.loop import Worker
from tests.workers.conftest import CONFIG, work_until, worker_of


class RecordingCallbacks(NullCallbacks):
    """Records postponed tasks, released snapshots and lost claims."""

    def __init__(self):
        self.redos, self.released, self.losses = [], [], []

    def task_postponed(self, claim, error):
        self.redos.append((claim.task, type(error).__name__))

    def task_released(self, claim, step):
        self.released.append((claim.task, step))

    def claim_lost(self, claim):
        self.losses.append(claim.task)


BY_HOLDERS = dataclasses.replace(
    CONFIG, outer=dataclasses.replace(CONFIG.outer, vocabulary_rows="holders")
)


@pytest.fixture(scope="module")
def undisturbed_of(programs, corpus, tmp_path_factory):
    """config -> digests of every module at every phase, where nothing happened."""

    @functools.cache
    def undisturbed_of(config):
        folder = tmp_path_factory.mktemp("undisturbed")
        shutil.copytree(corpus, folder / "corpus")
        run, _ = create_or_open(folder, config)
        run.programs = programs
        work_until(run, config.phases)
        digests = digests_of(run)
        run.ledger.close()
        return digests

    return undisturbed_of


@pytest.fixture
def undisturbed(undisturbed_of):
    return undisturbed_of(CONFIG)


def digests_of(run):
    return [
        {
            module: receipt.digest
            for module, receipt in run.ledger.facts.receipts_at(MODULAR, p).items()
        }
        for p in range(CONFIG.phases + 1)
    ]


def work_until_claimed(run, kind, phase):
    """Works until a task of this kind and phase is the next; leaves it ready."""
    worker = worker_of(run)
    while True:
        claim = run.ledger.queue.claim("peek")
        run.ledger.queue.give_back(claim)
        if (claim.task.kind, claim.task.phase) == (kind, phase):
            return claim.task
        assert worker.run_once()


def finish(run):
    callbacks = RecordingCallbacks()
    worker = Worker(run, "recoverer", callbacks, LeaseRenewer(run.open_ledger, "recoverer", 60.0))
    while worker.run_once():
        pass
    assert not run.ledger.queue.unfinished()
    return callbacks


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def messages(run, phase):
    return sorted((run.layout.root / "objects/messages").glob(f"modular/*/*/{phase:06d}/*"))


def test_damaged_truncated_and_lost_contributions_are_made_again(begin, undisturbed):
    run = begin(CONFIG)
    work_until_claimed(run, "outer", 1)
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
    assert (
        len(run.ledger.redos.refusals()) >= 2
    )  # two may be of one path, which is trained again once
    assert {refusal.worker for refusal in run.ledger.redos.refusals()} == {"recoverer"}


def test_a_phase_is_done_again_after_its_newest_snapshot_is_lost(begin, undisturbed):
    run = begin(CONFIG)
    task = work_until_claimed(run, "train", 2)
    snapshot = run.ledger.facts.snapshot(MODULAR, task.path, 1)
    shutil.rmtree(run.layout.root / snapshot.receipt.name)
    callbacks = finish(run)
    assert callbacks.redos == [(task, "ObjectMissing")]
    assert digests_of(run) == undisturbed
    again = run.ledger.facts.snapshot(MODULAR, task.path, 1)
    assert again.receipt.digest == snapshot.receipt.digest


def test_everything_is_done_again_after_all_snapshots_are_lost(begin, undisturbed):
    run = begin(CONFIG)
    work_until_claimed(run, "train", 2)
    shutil.rmtree(run.layout.root / "snapshots/modular")
    finish(run)
    assert digests_of(run) == undisturbed


@pytest.mark.parametrize("phase", [0, 2])
def test_a_lost_module_is_made_again(begin, undisturbed, phase):
    run = begin(CONFIG)
    work_until_claimed(run, "train", 2)
    (module, *_) = run.config.topology.modules
    (run.layout.root / run.ledger.facts.module(MODULAR, module, phase).parameters.name).unlink()
    if phase == 0:  # read only by a rollback to the beginning
        shutil.rmtree(run.layout.root / "snapshots/modular")
    callbacks = finish(run)
    assert callbacks.redos
    assert digests_of(run) == undisturbed


def spoil(run, change):
    """Puts a contribution in place of the one of path 0 to its first module at phase 1."""
    module = run.config.topology.modules_of(0)[0]
    (contribution, *_) = run.ledger.facts.contributions(MODULAR, module, 1)
    tree = change(load_tree(run.objects, contribution.message))
    receipt = save_tree(run.objects, f"messages/modular/{module}/000001", tree)
    with run.ledger._database.transaction():
        run.ledger._database.change(
            "drop_contribution", arm=MODULAR, module=str(module), phase=1, path=contribution.path
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
    ("change", "reason"),
    [
        (put(np.nan), "NaN or an infinity"),
        (put(np.inf), "NaN or an infinity"),
        (put(3e38), "norm is infinite"),
        (lambda leaf: leaf[:-1], "expected float32"),
        (lambda leaf: leaf.astype(np.float64), "expected float32"),
    ],
    ids=["nan", "infinity", "huge", "shape", "type"],
)
def test_a_contribution_that_is_wrong_is_refused_and_made_again(begin, undisturbed, change, reason):
    run = begin(CONFIG)
    work_until_claimed(run, "outer", 1)
    spoil(run, with_leaf(change))
    callbacks = finish(run)
    assert "ContributionRefused" in {error for _, error in callbacks.redos}
    assert any(reason in refusal.reason for refusal in run.ledger.redos.refusals())
    assert digests_of(run) == undisturbed


def test_a_loss_that_no_task_can_repair_is_counted_against_the_task(begin, monkeypatch):
    run = begin(CONFIG)
    work_until_claimed(run, "train", 0)
    monkeypatch.setattr(run.ledger.redos, "maker_of", lambda plan, name: None)
    module = run.config.topology.modules_of(0)[0]
    (run.layout.root / run.ledger.facts.module(MODULAR, module, 0).parameters.name).unlink()
    assert worker_of(run).run_once()
    (failure,) = run.ledger.failures.list()
    assert (failure.errors, failure.reason.partition(":")[0]) == (1, "ObjectMissing")
    assert run.ledger.queue.task_counts()["train", MODULAR] == {"ready": 3, "delayed": 1}


def test_an_object_that_is_damaged_again_and_again_is_left_to_a_person(begin, monkeypatch):
    run = begin(CONFIG)
    task = work_until_claimed(run, "train", 1)
    worker = worker_of(run)

    def spoilt(*_):
        raise ObjectMissing(
            file=run.layout.root / run.ledger.facts.snapshot(MODULAR, task.path, 0).receipt.name
        )

    monkeypatch.setattr("dipaco.workers.phase_start.load_snapshot", spoilt)
    with pytest.raises(RecoveryFailed, match="done again 3 times"):
        worker.run_until_finished()


def test_a_stopped_phase_goes_on_from_its_partial_snapshot(programs, corpus, tmp_path_factory):
    """Each worker stops after the first step that it reports; the next goes on there."""
    config = dataclasses.replace(CONFIG, inner=dataclasses.replace(CONFIG.inner, steps=6), phases=1)
    digests, steps = [], []
    for is_stopped in (False, True):
        folder = tmp_path_factory.mktemp("run")
        shutil.copytree(corpus, folder / "corpus")
        run, _ = create_or_open(folder, config)
        run.programs = programs
        work_until_claimed(run, "train", 0)
        while is_stopped and any(
            each.task.kind == "train" for each in run.ledger.queue.unfinished()
        ):
            callbacks = RecordingCallbacks()
            worker = Worker(
                run, "stopped", callbacks, LeaseRenewer(run.open_ledger, "stopped", 60.0)
            )
            callbacks.step_taken = lambda claim, loss, tokens, worker=worker: worker.stop()
            worker.run_until_finished()
            steps += [step for _, step in callbacks.released]
        finish(run)
        digests.append(run.ledger.facts.receipts_at(MODULAR, 1))
        assert run.ledger.progress.losses(MODULAR)[0]
        assert len(run.ledger.progress.losses(MODULAR)[0]) == 6
        left = list((folder / "snapshots/modular").glob("*/*"))
        assert len(left) == 4, "what was saved part-way must be gone"
        run.ledger.close()
    assert digests[0] == digests[1]
    assert steps == [2, 4] * 4


def test_with_a_codec_stopped_phases_and_a_bad_scale_change_nothing(
    programs, corpus, tmp_path_factory
):
    """The residual stays with the path, on whichever worker and however often it is stopped."""
    outer = dataclasses.replace(CONFIG.outer, codec="int8")
    inner = dataclasses.replace(CONFIG.inner, steps=6)
    config = dataclasses.replace(CONFIG, outer=outer, inner=inner, phases=2)
    ends = []
    for is_disturbed in (False, True):
        folder = tmp_path_factory.mktemp("run")
        shutil.copytree(corpus, folder / "corpus")
        run, _ = create_or_open(folder, config)
        run.programs = programs
        if is_disturbed:
            work_until_claimed(run, "train", 1)
            callbacks = RecordingCallbacks()
            worker = Worker(
                run, "stopped", callbacks, LeaseRenewer(run.open_ledger, "stopped", 60.0)
            )
            callbacks.step_taken = lambda claim, loss, tokens, worker=worker: worker.stop()
            worker.run_until_finished()
            assert callbacks.released
            work_until_claimed(run, "outer", 1)

            def without_scale(message):
                scales = [leaf for name, leaf in trees.flatten(message) if name.endswith("scales")]
                scales[0][0] = np.nan
                return message

            spoil(run, without_scale)
        callbacks = finish(run)
        ends.append([run.ledger.facts.receipts_at(MODULAR, phase) for phase in (1, 2)])
        if is_disturbed:
            assert "ContributionRefused" in {error for _, error in callbacks.redos}
            reasons = [refusal.reason for refusal in run.ledger.redos.refusals()]
            assert any("is negative, infinite or not a number" in reason for reason in reasons)
        run.ledger.close()
    assert ends[0] == ends[1]


def counts_of_another_tokenizer(run, file):
    size = CONFIG.model.vocab_size - 1
    other = save_tree(run.objects, "shards", {"token_counts": np.ones((4, size), np.int64)})
    file.write_bytes(Path(run.objects.file(other)).read_bytes())


@pytest.mark.parametrize(
    "spoil",
    [lambda run, file: flip(file), lambda run, file: file.unlink(), counts_of_another_tokenizer],
    ids=["damaged", "lost", "of another tokenizer"],
)
def test_counts_of_tokens_are_made_again(begin, undisturbed_of, spoil):
    run = begin(BY_HOLDERS)
    work_until_claimed(run, "outer", 1)
    counts = run.stage("route").artifacts["token_counts"]
    spoil(run, run.layout.root / counts.name)
    run._token_counts.clear()  # as another process finds them
    callbacks = finish(run)
    assert [error for _, error in callbacks.redos if "Object" in error]
    assert digests_of(run) == undisturbed_of(BY_HOLDERS)
    assert run.stage("route").artifacts["token_counts"].digest == counts.digest
