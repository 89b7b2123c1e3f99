"""The contract of `Objects` in a folder and in buckets: written once, whole or not at all, verified
on every read, also on another machine that shares only the folder or bucket.
"""

import hashlib
import json

import numpy as np
import pytest

from dipaco import trees
from dipaco.receipt import Receipt
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.layout import CONTRIBUTIONS, SNAPSHOTS, remote_name
from dipaco.store.snapshots import load_snapshot, save_snapshot
from dipaco.store.verification import DIGESTS

CONTENT = bytes(range(256)) * 40
SNAPSHOT = "snapshots/modular/0003/000002-1"


@pytest.mark.parametrize("content", [b"", b"1", CONTENT])
def test_an_object_written_here_is_read_on_another_machine(store, content):
    receipt = store.here.write_bytes("k", "bin", content)
    assert receipt.num_bytes == len(content)
    assert store.other.read_bytes(receipt) == content == store.content(receipt)


def test_equal_bytes_are_one_object_from_any_writer(store):
    receipts = {each.write_bytes("k", "bin", CONTENT) for each in (store.here, store.other)}
    assert len(receipts) == 1
    assert store.content(receipts.pop()) == CONTENT


def test_a_snapshot_is_the_same_on_another_machine(store):
    state = {"mu": np.arange(1000, dtype=np.float32), "count": np.int32(3)}
    receipt = save_snapshot(store.here, SNAPSHOT, state)
    assert trees.difference(load_snapshot(store.other, receipt, state), state) is None


def test_an_object_is_not_there_before_all_of_it_is(store):
    receipt = Receipt(f"objects/k/{xxh(CONTENT)}.bin", xxh(CONTENT), len(CONTENT))

    def write(file):
        file.write_bytes(CONTENT[:100])
        with pytest.raises(ObjectMissing):
            store.other.file(receipt)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.here.write("k", "bin", write)
    assert store.content(receipt) is None
    assert not [*(store.here.root / "partial").iterdir()], "nothing is left of it"


def test_a_missing_object_is_named(store):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    store.spoil(receipt, None)
    with pytest.raises(ObjectMissing, match=rf"/{receipt.digest}\.bin is missing") as raised:
        store.other.file(receipt)
    assert raised.value.values["name"] == receipt.name


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda whole: bytes([whole[0] ^ 1]) + whole[1:], "digest"),
        (lambda whole: whole[:-1] + bytes([whole[-1] ^ 1]), "digest"),
        (lambda whole: whole[:-1], "bytes"),
        (lambda whole: b"", "bytes"),
    ],
    ids=["first byte", "last byte", "cut short", "empty"],
)
def test_damage_is_found_before_a_byte_is_used_and_named(store, damage, problem):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    store.spoil(receipt, damage(CONTENT))
    with pytest.raises(ObjectDamaged, match=rf"{receipt.digest}\.bin .*{problem}") as raised:
        store.other.file(receipt)
    assert raised.value.values["name"] == receipt.name


def test_writing_an_object_again_repairs_a_damaged_one(store):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    store.spoil(receipt, b"damaged")
    assert store.here.write_bytes("k", "bin", CONTENT) == receipt
    assert store.content(receipt) == CONTENT == store.other.read_bytes(receipt)


def test_a_deleted_object_is_missing_on_another_machine_and_deleting_it_again_is_fine(store):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    save_folder(store.here)
    for _ in range(2):
        store.here.delete(receipt.name)
        store.here.delete(SNAPSHOT)
    with pytest.raises(ObjectMissing):
        store.other.file(receipt)
    with pytest.raises(ObjectMissing):
        store.other.folder(SNAPSHOT)


def test_only_live_contributions_and_snapshots_are_kept(store):
    """Also those that a machine wrote which is gone."""
    module = store.here.write_bytes("modules", "bin", CONTENT)
    messages = [
        store.here.write_bytes(f"messages/modular/early/0000/{phase:06d}", "safetensors", CONTENT)
        for phase in range(2)
    ]
    snapshots = [f"snapshots/modular/0003/000002-{attempt}" for attempt in (1, 2)]
    for name in snapshots:
        save_folder(store.here, name)
    live = {messages[1].name, snapshots[1]}
    for name in store.other.names(CONTRIBUTIONS, SNAPSHOTS) - live:
        store.other.delete(name)
    assert store.content(module) == store.content(messages[1]) == CONTENT
    assert store.content(messages[0]) is None
    assert contents(store.other.folder(snapshots[1])) == FILES
    with pytest.raises(ObjectMissing):
        store.other.folder(snapshots[0])


FILES = {"a": b"1", "deep/b": CONTENT, "deep/empty": b""}


def save_folder(objects, name=SNAPSHOT, files=FILES):
    def write(folder):
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)

    objects.write_folder(name, write)


def contents(folder):
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != DIGESTS)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def test_the_list_of_a_folder_is_sent_when_its_files_are_there(store, monkeypatch):
    """It makes the folder count."""
    if store.here.remote is None:
        return  # a folder is renamed as a whole
    sent, put = [], store.here.remote.put

    def sending(name, file):
        put(name, file)
        sent.append(name)

    monkeypatch.setattr(store.here.remote, "put", sending)
    save_folder(store.here)
    assert {*sent} == {f"{SNAPSHOT}/{name}" for name in (*FILES, DIGESTS)}
    assert sent[-1] == f"{SNAPSHOT}/{DIGESTS}"


def test_a_folder_replaces_files_of_an_interrupted_attempt_of_its_name(store):
    save_folder(store.here, files={"left": b"over"})
    save_folder(store.here)
    assert contents(store.other.folder(SNAPSHOT)) == FILES


def test_a_name_with_the_same_beginning_is_another_folder(store):
    for attempt in ("1", "11"):
        save_folder(store.here, f"snapshots/modular/0003/000002-{attempt}")
    store.here.delete("snapshots/modular/0003/000002-1")
    assert contents(store.other.folder("snapshots/modular/0003/000002-11")) == FILES


@pytest.mark.parametrize("content", [b"X" + CONTENT[1:], CONTENT[:-1], None])
def test_damage_in_a_folder_is_found(store, content):
    save_folder(store.here)
    store.spoil(Receipt(f"{SNAPSHOT}/deep/b", "deep/b", 0), content)
    with pytest.raises((ObjectDamaged, ObjectMissing), match="000002-1") as raised:
        store.other.folder(SNAPSHOT)
    assert raised.value.values["name"] == SNAPSHOT


@pytest.mark.parametrize("listing", [b"", b"{}x", b"[[1]]", None])
def test_a_folder_without_its_list_is_damaged(store, listing):
    """The list is written last, so a folder that was half sent has none."""
    save_folder(store.here)
    store.spoil(Receipt(f"{SNAPSHOT}/{DIGESTS}", DIGESTS, 0), listing)
    with pytest.raises((ObjectDamaged, ObjectMissing), match="000002-1"):
        store.other.folder(SNAPSHOT)


@pytest.mark.parametrize("name", ["../../run.lock", "/etc/passwd", "deep/../../b"])
def test_a_list_cannot_lead_out_of_its_folder(store, name):
    save_folder(store.here)
    listing = json.dumps([[name, xxh(b"1"), 1]]).encode()
    store.spoil(Receipt(f"{SNAPSHOT}/{DIGESTS}", DIGESTS, 0), listing)
    with pytest.raises(ObjectDamaged, match="is not in the folder"):
        store.other.folder(SNAPSHOT)


def test_in_a_bucket_every_name_has_the_digest_in_it():
    digest = hashlib.md5(b"1").hexdigest()
    named = Receipt(f"objects/modules/{digest}.safetensors", digest, 1)
    assert remote_name(named) == named.name
    tokens = Receipt("corpus/tokens_00000.arrayrecord", digest, 1)
    assert remote_name(tokens) == f"corpus/tokens_00000-{digest}.arrayrecord"


def xxh(content):
    import xxhash

    return xxhash.xxh3_128_hexdigest(content)


OUTSIDE = (
    "../victim",
    "objects/k/../../../victim",
    "snapshots/../../victim",
    "snapshots/modular/0003/../../../../victim",
    "objects/k/./../../../victim",
    "/victim",
    "ledger.sqlite",
    "objects",
    "objects/k",
    "snapshots/modular/0003",
    "snapshots//0003/1",
    "objects/k/\0victim",
    "",
)


def test_names_that_lead_out_of_the_objects_touch_nothing(store):
    """Names come from rows of a ledger and lists of files, and a peer may have written those."""
    root = store.here.root
    kept = save_snapshot(store.here, SNAPSHOT, {"w": np.ones(3, np.float32)})
    other = store.here.write_bytes("k", "bin", CONTENT)
    places = [root / "ledger.sqlite", root.parent / "victim", root.parent / "victims" / "file"]
    for place in places:
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(CONTENT)
    folder = "/" + str(root.parent / "victims").lstrip("/")
    for bad in (*OUTSIDE, folder, f"snapshots/../../{root.parent.name}/victims"):
        with pytest.raises(ObjectDamaged, match="not the name of an object"):
            store.here.file(Receipt(bad, xxh(CONTENT), len(CONTENT)))
        with pytest.raises(ObjectDamaged, match="not the name of an object"):
            store.here.folder(bad)
        store.here.delete(bad)
        store.here.delete_folder_if_empty(bad)
        with pytest.raises(ObjectDamaged, match="not the name of an object"):
            store.here.write_folder(bad, lambda folder: folder.mkdir())
    assert all(place.read_bytes() == CONTENT for place in places)
    assert store.other.read_bytes(other) == CONTENT
    assert load_snapshot(store.other, kept, {"w": np.zeros(3, np.float32)}) is not None
