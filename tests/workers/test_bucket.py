"""A run in a bucket, on a machine without any of it: it downloads only its shard, and objects that
were lost are made again.
"""

import json
import shutil
from collections import Counter

import numpy as np
import pytest

from dipaco.config import MODULAR
from dipaco.control.errors import CannotClean
from dipaco.data.corpus import ALWAYS_READ, Corpus
from dipaco.data.shard_tokens import ShardTokens, shard_tokens_digest
from dipaco.data.splits import HELD
from dipaco.receipt import Receipt
from dipaco.runs.opening import create_or_open, open_run, reading
from dipaco.runs.reading.report import make_report
from dipaco.runs.reading.sizes import sizes_of
from dipaco.store import objects
from dipaco.store.address import Address
from dipaco.store.layout import MODULES as FOLDER
from dipaco.store.layout import remote_name, shard_tokens_folder
from dipaco.store.remote import Remote
from dipaco.workers.cleaning import clean
from dipaco.workers.row_plans import batches_for
from tests.workers.conftest import (
    CONFIG,
    RecordingCallbacks,
    digests_of,
    finish,
    work_until,
    work_until_claimed,
    worker_of,
)


@pytest.fixture(scope="module")
def routed(s3_server, postgresql_server, programs, tmp_path_factory):
    """The URL of a run whose shards are built."""
    url = f"s3://{s3_server.new_bucket()}/run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", s3_server.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("DIPACO_CACHE", str(tmp_path_factory.mktemp("cache")))
        run, _ = create_or_open(Address.parse(url), CONFIG, database=postgresql_server.url)
        run.programs = programs
        work_until(run, 0)
        run.ledger.close()
        yield url


@pytest.fixture
def other_machine(routed, programs, monkeypatch, tmp_path):
    """The run as a machine finds it that has nothing of it."""
    monkeypatch.setenv("DIPACO_CACHE", str(tmp_path))
    run = open_run(Address.parse(routed))
    run.programs = programs
    yield run
    run.ledger.close()


def token_files(run):
    """(of the corpus, of shards) that are on this machine."""
    root = run.layout.root
    return sorted(root.glob("corpus/tokens*")), sorted(root.glob("tokens/*/tokens*"))


def test_a_path_reads_its_shard_from_its_own_files(other_machine):
    run = other_machine
    arm = run.plan.arm(MODULAR)
    batches = batches_for(run, arm, 1, 0)
    one = batches.at(0)
    of_corpus, of_shards = token_files(run)
    assert not of_corpus
    assert len(of_shards) == 1
    (shard,) = run._shard_tokens.values()
    assert isinstance(shard, ShardTokens)

    # Spoiled, they are no loss: the corpus has the same tokens, and gives the same batch.
    run._shard_tokens.clear()
    name = of_shards[0].relative_to(run.layout.root).as_posix()
    whole = run.objects.remote.read(name)
    run.objects.remote.write(name, b"spoiled")
    of_shards[0].unlink()
    again = batches_for(run, arm, 1, 0)
    assert again.fingerprint == batches.fingerprint
    for field, values in again.at(0).items():
        np.testing.assert_array_equal(values, one[field])
    assert token_files(run)[0], "now the corpus was fetched"
    run.objects.remote.write(name, whole)


def test_held_documents_have_shard_tokens_too(other_machine):
    run = other_machine
    held = np.sort(np.concatenate([run.corpus.documents(split) for split in HELD]))
    found = run.tokens_of(held)
    assert isinstance(found, ShardTokens)
    assert not token_files(run)[0]
    for one, other in zip(found.tokens(held), run.corpus.tokens(held), strict=True):
        np.testing.assert_array_equal(one, other)


def test_documents_without_shard_tokens_are_read_from_the_corpus(other_machine):
    run = other_machine
    documents = np.arange(3)
    name = shard_tokens_folder(shard_tokens_digest(run.corpus.digest, documents))
    assert not run.objects.remote.names(name)
    assert isinstance(run.tokens_of(documents), Corpus)
    assert len(run.tokens_of(documents).tokens(documents)) == 3


def test_every_file_of_the_corpus_is_in_the_bucket_under_its_digest(other_machine):
    run = other_machine
    listed = json.loads(run.objects.read_bytes(run.stage("prepare").artifacts["corpus_files"]))
    there = set(run.objects.remote.names("corpus"))
    assert {remote_name(Receipt(*file)) for file in listed} == there
    assert len(there) == len(run.corpus.manifest.files) + len(ALWAYS_READ)


def test_a_contribution_that_the_bucket_does_not_show_yet_costs_no_phase(
    other_machine, monkeypatch
):
    run = other_machine
    task = work_until_claimed(run, "outer", 1)
    late = [name for name in run.objects.remote.names("objects/messages") if "/000001/" in name]
    shutil.rmtree(run.layout.root / "objects/messages", ignore_errors=True)
    shown, blocks = Counter(), Remote.blocks

    def late_at_first(remote, name, num_bytes):
        shown[name] += 1
        return iter([None]) if name in late and shown[name] < 3 else blocks(remote, name, num_bytes)

    monkeypatch.setattr(Remote, "blocks", late_at_first)
    worker = worker_of(run, callbacks=(said := RecordingCallbacks()))
    for _ in range(3):  # it misses one contribution, then the other
        assert worker.run_once()
    assert said.redos == [(task, "ObjectMissing")] * 2
    assert run.ledger.facts.module(MODULAR, task.module, 2)
    assert run.ledger.redos.refusals() == []


def test_objects_lost_from_the_bucket_are_made_again_and_the_finished_run_is_cleaned_there(
    other_machine, undisturbed, monkeypatch
):
    monkeypatch.setattr(objects, "MISSED_SECONDS", 0.3)
    run = other_machine
    with pytest.raises(CannotClean):
        clean(run.address)
    task = work_until_claimed(run, "outer", 1)
    remote = run.objects.remote
    messages = [name for name in remote.names("objects/messages") if "/000001/" in name]
    damaged, cut, gone = messages[:3]
    content = remote.read(damaged)
    remote.write(damaged, content[:-1] + bytes([content[-1] ^ 1]))
    remote.write(cut, remote.read(cut)[:-10])
    remote.delete(gone)
    remote.delete_folder(run.ledger.facts.snapshot(MODULAR, 0, 1).receipt.name)
    module = run.ledger.facts.module(MODULAR, task.module, 1).parameters
    remote.write(module.name, b"torn")
    for name in ("objects/messages", "objects/modules", "snapshots"):  # what this machine has
        shutil.rmtree(run.layout.root / name, ignore_errors=True)

    callbacks = finish(run)
    assert {error for _, error in callbacks.redos} == {"ObjectDamaged", "ObjectMissing"}
    assert digests_of(run) == undisturbed
    assert remote.read(module.name) != b"torn"

    kept = {folder: len(remote.names(folder)) for folder in ("snapshots", "tokens", FOLDER)}
    assert all(kept.values())
    sizes, modules = sizes_of(run), CONFIG.topology.modules
    receipts = {
        phase: [run.ledger.facts.module(MODULAR, module, phase).parameters for module in modules]
        for phase in range(4)
    }
    there_of = {phase: {receipt.name for receipt in of} for phase, of in receipts.items()}
    assert set(remote.names(FOLDER)).issuperset(set.union(*there_of.values()))
    before = make_report(run).to_json()

    cleaning = clean(run.address)
    assert not remote.names("snapshots")
    assert not remote.names("tokens")
    assert not remote.names("objects/messages")
    assert not there_of[1] & set(remote.names(FOLDER))
    assert there_of[3] <= set(remote.names(FOLDER))
    assert sizes_of(run) == cleaning.left
    assert sizes["modules"] == cleaning.left["modules"] + cleaning.removed["modules"]
    shutil.rmtree(run.layout.root)  # another machine
    with reading(run.address) as elsewhere:
        release = elsewhere.ledger.facts.release(MODULAR)
        assert all(elsewhere.path_of(release, path) for path in range(4))
        assert make_report(elsewhere).to_json() == before
