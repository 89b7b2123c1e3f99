"""A bucket that answers wrongly, late, in part or not at all: no object is lost, no wrong answer is
taken for right, and every wait ends.
"""

import logging
import os
import threading
import time
from pathlib import Path

import pytest
import xxhash

from dipaco import stopping
from dipaco.receipt import Receipt
from dipaco.store import remote as remote_file
from dipaco.store.errors import (
    BucketMissing,
    ObjectDamaged,
    StoreRefuses,
    StoreUnreachable,
)
from dipaco.store.remote import Remote
from tests.store.conftest import in_bucket

CONTENT = bytes(range(256)) * 40
FAULTS = ("500", "503", "reset", "garbage", "slow", "cut", "after")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(remote_file, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(remote_file, "LONGEST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(
        remote_file, "RETRIES", {"max_retries": 1, "initial_delay": "1ms", "max_delay": "1ms"}
    )


@pytest.fixture
def store(bucket, tmp_path):
    bucket.proxy.slow_seconds = 0.05
    return in_bucket(bucket.url, tmp_path)


def receipt_of(content=CONTENT):
    digest = xxhash.xxh3_128_hexdigest(content)
    return Receipt(f"objects/k/{digest}.bin", digest, len(content))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_write_survives_every_fault(store, bucket, fault):
    bucket.proxy.plan(fault, fault, method="PUT")
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    assert store.content(receipt) == CONTENT
    assert bucket.proxy.injected[fault] == (1 if fault == "slow" else 2)


@pytest.mark.parametrize("fault", [*FAULTS, "damage"])
def test_a_read_survives_every_fault(store, bucket, fault):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    bucket.proxy.plan(fault, method="GET")
    assert store.other.read_bytes(receipt) == CONTENT
    assert bucket.proxy.injected == {fault: 1}


def test_an_object_that_arrives_damaged_every_time_is_damaged(store, bucket):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    bucket.proxy.plan("damage", "damage", method="GET")
    with pytest.raises(ObjectDamaged, match=rf"s3://.*{receipt.digest}\.bin is not what was writ"):
        store.other.file(receipt)
    assert not list(Path(store.other.root).rglob("*.bin"))


def test_an_outage_is_waited_for_and_logged_once(store, bucket, caplog):
    bucket.proxy.plan(*["503"] * 9, method="PUT")
    with caplog.at_level(logging.WARNING, "dipaco"):
        receipt = store.here.write_bytes("k", "bin", CONTENT)
    assert store.content(receipt) == CONTENT
    assert bucket.proxy.injected["503"] == 9
    logged = [record.message for record in caplog.records]
    assert len(logged) == 2
    assert "Waiting for it" in logged[0]
    assert "did not answer for" in logged[1]


def test_several_waiting_threads_log_an_outage_once(store, caplog):
    remote = store.here.remote
    with caplog.at_level(logging.WARNING, "dipaco"), remote._outage("no answer"):
        with remote._outage("no answer"):
            pass
        assert len(caplog.records) == 1
    assert len(caplog.records) == 2


def test_a_store_that_stays_unreachable_is_a_sentence(store, bucket, monkeypatch):
    monkeypatch.setattr(remote_file, "RETRY_FOR_SECONDS", 0.05)
    with bucket.proxy.gone(), pytest.raises(StoreUnreachable, match=r"s3://.*is safe"):
        store.here.write_bytes("k", "bin", CONTENT)
    assert store.content(receipt_of()) is None
    assert store.here.write_bytes("k", "bin", CONTENT) == receipt_of()


def test_a_store_that_never_answered_is_waited_for_a_minute_and_proxies_are_named(
    bucket, monkeypatch, caplog
):
    now = [0.0]
    monkeypatch.setattr(remote_file.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(remote_file.time, "sleep", lambda _: now.__setitem__(0, now[0] + 5.0))
    monkeypatch.setenv("HTTPS_PROXY", "http://ana:secret@proxy:3128")
    remote = Remote(f"{bucket.url}/run")
    problem = r"proxy\? HTTPS_PROXY is set"
    with bucket.proxy.gone(), pytest.raises(StoreUnreachable, match=rf"for [67]\d s.*{problem}"):
        remote.read("name")
    assert "HTTPS_PROXY is set). Waiting for it" in caplog.text
    assert "secret" not in caplog.text
    remote.read("name")
    with bucket.proxy.gone(), pytest.raises(StoreUnreachable, match=r"for 90\d s"):
        remote.read("name")


def test_who_waits_ten_seconds_only_is_told_then_and_that_no_credentials_are_there(
    bucket, monkeypatch
):
    """A name that is looked up in vain, and a host that does not answer at all."""
    now = [0.0]
    monkeypatch.setattr(remote_file.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(remote_file.time, "sleep", lambda _: now.__setitem__(0, now[0] + 5.0))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    remote, limits = Remote(f"{bucket.url}/run"), []
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")

    def silent(_, seconds):
        limits.append(seconds)
        now[0] += seconds
        raise TimeoutError

    said = r"for 1\d s: .*\(without credentials\? AWS_ACCESS_KEY_ID is not set\)"
    with stopping.patience(10.0):
        with bucket.proxy.gone(), pytest.raises(StoreUnreachable, match=said):
            remote.read("name")
        monkeypatch.setattr(remote_file, "_result", silent)
        with pytest.raises(StoreUnreachable, match=r"for 2\d s: no answer within 10 s"):
            remote.read("name")
    assert set(limits) == {10.0}


def test_a_process_that_is_told_to_end_does_not_wait_for_a_store_that_is_away(
    store, bucket, monkeypatch
):
    """It lets a healthy store answer as long as that takes."""
    monkeypatch.setattr(stopping, "STOPPING_SECONDS", 0.2)
    stopping.stop_waiting()
    try:
        time.sleep(0.3)
        receipt = store.here.write_bytes("k", "bin", CONTENT)
        with bucket.proxy.gone(), pytest.raises(StoreUnreachable):
            store.here.write_bytes("k", "bin", b"another")
        assert store.content(receipt) == CONTENT
    finally:
        stopping.wait_again()


def test_a_request_without_an_answer_is_retried(store, bucket, monkeypatch):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    monkeypatch.setattr(remote_file, "REQUEST_SECONDS", 0.1)
    bucket.proxy.slow_seconds = 1.0
    bucket.proxy.plan("slow", method="GET")
    assert store.other.read_bytes(receipt) == CONTENT
    assert bucket.proxy.injected == {"slow": 1}


def test_a_link_that_is_slower_than_expected_gets_more_time_and_is_remembered(
    store, bucket, monkeypatch
):
    remote = store.here.remote
    monkeypatch.setattr(remote_file, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(remote_file, "RETRY_FOR_SECONDS", 0.75)
    monkeypatch.setattr(remote, "_slowest_bytes_per_second", len(CONTENT) / 0.1)
    bucket.proxy.slow_seconds = 1.0
    bucket.proxy.plan(*["slow"] * 9, method="PUT")
    assert store.content(store.here.write_bytes("k", "bin", CONTENT)) == CONTENT
    slow = bucket.proxy.injected["slow"]
    assert slow > 3
    other = store.here.write_bytes("k", "bin", CONTENT[1:])
    assert store.content(other) == CONTENT[1:]
    assert bucket.proxy.injected["slow"] <= slow + 2


def test_a_permanent_error_is_raised_at_once(store, bucket):
    bucket.proxy.plan("403", method="PUT")
    with pytest.raises(StoreRefuses, match="AccessDenied"):
        store.here.write_bytes("k", "bin", CONTENT)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ABORTED: All 4 retry attempts failed: UNAVAILABLE: 503 [http='503']", "UNAVAILABLE: 503"),
        ("UNKNOWN: CURL error SSL connect error [curl_code='35']", "CURL error SSL connect error"),
        ("INVALID_ARGUMENT: RequestTimeout: Your socket was not read [x]", "RequestTimeout: Your"),
        ("PERMISSION_DENIED: RequestTimeTooSkewed: The difference", "RequestTimeTooSkewed"),
    ],
)
def test_a_passing_error_is_waited_for(store, text, problem):
    assert store.here.remote._passing_problem(text).startswith(problem)


@pytest.mark.parametrize(
    "text",
    [
        "PERMISSION_DENIED: InvalidAccessKeyId: The key does not exist [http_response_code='403']",
        "UNAUTHENTICATED: no credentials",
    ],
)
def test_a_permanent_error_is_not_waited_for(store, text):
    with pytest.raises(StoreRefuses, match=text.partition(": ")[2].partition(" [")[0]):
        store.here.remote._passing_problem(text)


@pytest.mark.parametrize("num_bytes", [0, 1999, 2000, 2001, 6500])
def test_a_large_object_is_sent_in_pieces_below_the_limit_of_one_upload(
    store, monkeypatch, num_bytes
):
    """Amazon takes 5 GiB at once, and an upload that was cut off goes on with its next piece."""
    assert remote_file.PIECE_BYTES < 5 << 30
    assert remote_file.PIECE_BYTES % remote_file.BLOCK_BYTES == 0
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(remote_file, "PIECE_BYTES", 2000)
    content, remote = os.urandom(num_bytes), store.here.remote
    receipt = store.here.write_bytes("k", "bin", content)
    names = remote.names("objects")
    assert len(names) == max(1, -(-num_bytes // 2000))
    assert all(len(remote.read(name)) <= 2000 for name in names)
    assert store.other.names("objects") == {receipt.name}
    assert store.other.read_bytes(receipt) == content
    store.here.delete(receipt.name)
    assert remote.names("objects") == []


def test_an_upload_that_was_cut_off_sends_no_piece_again(store, bucket, monkeypatch, tmp_path):
    """The first piece is sent last: an object that has it is whole. A damaged piece is replaced."""
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(remote_file, "PIECE_BYTES", 2000)
    content, remote = os.urandom(6500), store.here.remote
    (tmp_path / "file").write_bytes(content)
    bucket.proxy.plan("slow", "slow", "403", method="PUT")
    with pytest.raises(StoreRefuses):
        remote.put("objects/k/name", tmp_path / "file")
    assert sorted(remote.names("objects")) == [
        "objects/k/name.piece00002",
        "objects/k/name.piece00003",
    ]
    assert next(remote.blocks("objects/k/name", 6500)) is None
    remote.write("objects/k/name.piece00003", b"damaged")
    before = bucket.proxy.asked["PUT"]
    remote.put("objects/k/name", tmp_path / "file")
    assert bucket.proxy.asked["PUT"] - before == 3  # One replaces, two are new.
    assert b"".join(remote.blocks("objects/k/name", 6500)) == content


def test_a_missing_bucket_is_a_sentence(bucket):
    with pytest.raises(BucketMissing, match="s3://nowhere/run"):
        Remote("s3://nowhere/run").write("name", b"1")


@pytest.mark.parametrize("verb", ["status", "worker", "train"])
def test_nobody_is_told_to_begin_a_run_where_no_bucket_is(bucket, here, config_file, verb):
    config = [config_file] if verb == "train" else []
    more = ["--database", "postgresql://nobody/runs"] if verb == "train" else []
    ended = here(verb, *config, "--run", "s3://nowhere/run", *more)
    assert (ended.code, ended.err.partition(":")[0]) == (BucketMissing.exit_code, "BucketMissing")


def test_a_lost_race_is_reported_and_changes_nothing(store):
    one, other = store.here.remote, store.other.remote
    assert one.write_new("database", b"first")
    assert not other.write_new("database", b"second")
    assert other.read("database") == b"first"


def test_a_write_that_fails_because_of_its_own_first_attempt_is_done(store, bucket):
    """The first answer is lost, and the second says that the object is there."""
    bucket.proxy.plan("after", method="PUT")
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    assert bucket.proxy.asked["PUT"] == 2
    assert bucket.proxy.asked["GET"] == 1  # looks who it was
    assert store.content(receipt) == CONTENT


@pytest.mark.parametrize("num_bytes", [999, 1000, 1001, 4500])
def test_a_large_object_is_read_in_blocks(store, bucket, monkeypatch, num_bytes):
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 1000)
    content = os.urandom(num_bytes)
    receipt = store.here.write_bytes("k", "bin", content)
    bucket.proxy.plan("500", method="GET")
    assert store.other.read_bytes(receipt) == content
    assert bucket.proxy.asked["GET"] == -(-num_bytes // 1000) + 1


@pytest.mark.parametrize("num_bytes", [0, 999, 1000, 4000, 4499])
def test_a_large_object_that_was_cut_is_damaged(store, monkeypatch, num_bytes):
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 1000)
    receipt = store.here.write_bytes("k", "bin", os.urandom(4500))
    store.spoil(receipt, store.content(receipt)[:num_bytes])
    with pytest.raises(ObjectDamaged, match="it has fewer than 4500 bytes"):
        store.other.file(receipt)


def test_an_object_in_the_cache_is_not_fetched_again(store, bucket):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    for _ in range(3):
        assert store.other.read_bytes(receipt) == CONTENT == store.here.read_bytes(receipt)
    assert bucket.proxy.asked["GET"] == 1


def test_a_damaged_or_deleted_copy_is_fetched_again(store):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    copy = store.other.file(receipt)
    for content in (b"X" + CONTENT[1:], CONTENT[1:], b"", None):
        copy.unlink() if content is None else copy.write_bytes(content)
        assert store.other.read_bytes(receipt) == CONTENT


def test_of_a_damaged_folder_only_the_damaged_files_are_fetched_again(store, bucket):
    name = "snapshots/modular/0000/000001-1"

    def write(folder):
        folder.mkdir()
        for file in ("a", "b", "c"):
            (folder / file).write_bytes(file.encode() * 100)

    store.here.write_folder(name, write)
    folder = store.other.folder(name)
    (folder / "b").write_bytes(b"damaged")
    before = bucket.proxy.asked["GET"]
    assert (store.other.folder(name) / "b").read_bytes() == b"b" * 100
    assert bucket.proxy.asked["GET"] == before + 2  # the list, and one file


def test_threads_that_want_the_same_object_fetch_it_once(store, bucket):
    receipt = store.here.write_bytes("k", "bin", CONTENT)
    bucket.proxy.plan("slow", method="GET")
    threads = [threading.Thread(target=store.other.file, args=(receipt,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bucket.proxy.asked["GET"] == 1


def test_another_s3_is_named_by_the_environment_only(store, monkeypatch):
    spec = remote_file._spec("s3://bucket/runs/one")
    assert (spec["bucket"], spec["path"]) == ("bucket", "runs/one/")
    assert spec["endpoint"] == os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://other:9000/")
    assert remote_file._spec("s3://b/r")["endpoint"] == "http://other:9000"
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    amazon = remote_file._spec("s3://b/r")
    assert "endpoint" not in amazon
    assert amazon["aws_region"] == "eu-north-1"
    assert not {"test"} & {str(value) for value in amazon.values()}, "no credentials in there"


def test_where_there_are_no_credentials_none_are_looked_for(monkeypatch, tmp_path):
    """Looking writes five lines of C++ before the sentence about credentials."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_CONFIG_FILE", *remote_file.AWS_TOKENS):
        monkeypatch.delenv(name, raising=False)
    machine = tmp_path / "sys_vendor"
    machine.write_text("QEMU\n")
    monkeypatch.setattr(remote_file, "AMAZON_NAMES", [machine, tmp_path / "none"])
    assert remote_file._credentials() == "anonymous"
    machine.write_text("Amazon EC2\n")
    assert remote_file._credentials() == "", "the machine has a role"
    machine.unlink()
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://169.254.170.23/")
    assert remote_file._credentials() == ""
    monkeypatch.delenv("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").touch()
    assert remote_file._credentials() == "", "a profile, or single sign-on"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    assert remote_file._credentials() == "environment"


def test_reading_a_copy_marks_it_as_used(store):
    receipts = [store.here.write_bytes("k", "bin", bytes([number])) for number in range(2)]
    name = "snapshots/modular/0000/000001-1"
    store.here.write_folder(name, lambda folder: folder.mkdir() or (folder / "a").touch())
    copies = [store.here.root / receipt.name for receipt in receipts]
    for file in [*copies, store.here.root / name / "a"]:
        os.utime(file, (1, 1))
    store.here.file(receipts[1])
    store.here.folder(name)
    assert copies[0].stat().st_mtime == 1
    assert copies[1].stat().st_mtime > 1
    assert (store.here.root / name / "a").stat().st_mtime > 1
