"""A process that joins a run: it puts the folder in order only if no other is at work in it."""

import dataclasses
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from dipaco import stopping
from dipaco.control.claims.queue import ALL_KINDS
from dipaco.control.database import retry
from dipaco.control.errors import DatabaseUnreachable
from dipaco.control.planning.tasks import FIRST_KINDS
from dipaco.errors import DiskFull
from dipaco.model.config import MeshConfig
from dipaco.model.errors import BadMesh, DevicesUnfit
from dipaco.runs.folder_lock import folder_lock
from dipaco.runs.opening import create_or_open, has_begun
from dipaco.stopping import end_before_machine, on_sigterm
from dipaco.store.address import Address
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.errors import CannotTrainHere
from dipaco.workers.loop import Worker
from dipaco.workers.process import begun_run, joined_run, work
from dipaco.workers.runners import runner_of
from tests.workers.conftest import CONFIG


@pytest.fixture(autouse=True)
def _no_other_test_is_told_to_end():
    yield
    stopping.wait_again()


def begun(folder):
    """A new run with a claim, and with a file that is half written."""
    run, _ = create_or_open(folder, CONFIG)
    assert run.ledger.queue.claim("first") is not None
    run.ledger.close()
    half = folder / "partial" / "half"
    half.parent.mkdir()
    half.write_bytes(b"half")
    return half


def test_beside_a_worker_claims_and_files_are_left_alone(tmp_path):
    half = begun(tmp_path)
    with folder_lock(tmp_path) as of_first:
        of_first.share()
        with joined_run(Address(tmp_path)) as run:
            assert [held.worker for held in run.ledger.queue.held()] == ["first"]
            assert half.exists()


def test_what_dead_workers_left_is_put_in_order_by_the_first_that_joins(tmp_path):
    half = begun(tmp_path)
    with joined_run(Address(tmp_path)) as run:
        assert run.ledger.queue.held() == []
        assert not half.exists()


@pytest.mark.parametrize(
    ("mesh", "error"),
    [(MeshConfig(tensor=16), BadMesh), (MeshConfig(data=-1), DevicesUnfit)],  # 4 rows, 8 devices
)
@pytest.mark.parametrize("kinds", [ALL_KINDS, FIRST_KINDS])
def test_a_machine_without_the_devices_prepares_the_text_and_ends(
    mesh, error, kinds, begin, capsys
):
    """One that has the text may have no GPU; those that have one then go on."""
    run = begin(dataclasses.replace(CONFIG, mesh=mesh))
    with pytest.raises(error):
        work(run, "w", Callbacks(), kinds=kinds)
    assert run.stage("prepare")
    assert run.ledger.queue.unfinished_kinds() == {"pretrain"}
    assert capsys.readouterr().out.count("This machine takes no training steps") == 1
    (member,) = run.ledger.members.list()
    assert (member.state, member.last_words.partition(":")[0]) == ("left", error.__name__)
    assert set(kinds) - set(member.kinds) == {"pretrain", "train"} & set(kinds)


def on_two_hosts(run):
    return runner_of(run, SimpleNamespace(count=2, broadcast=lambda what: None))


def test_several_hosts_without_the_devices_are_refused_before_they_join(begin, monkeypatch, capsys):
    """The devices of a smaller mesh are those of the first host: they cannot score either."""
    run = begin(dataclasses.replace(CONFIG, mesh=MeshConfig(tensor=16)))
    monkeypatch.setattr(Worker, "run_until_finished", lambda worker: True)
    with pytest.raises(BadMesh):
        work(run, "w", Callbacks(), runner=on_two_hosts(run))
    assert run.ledger.members.list() == []
    assert "training steps" not in capsys.readouterr().out


def test_what_only_reads_a_run_needs_no_devices(begin, monkeypatch, capsys):
    run = begin(dataclasses.replace(CONFIG, mesh=MeshConfig(tensor=16)))
    monkeypatch.setattr(Worker, "run_until_finished", lambda _: False)
    assert not work(run, "evaluator", Callbacks(), kinds=("score", "evaluate"))
    assert "training steps" not in capsys.readouterr().out


def test_a_run_of_other_machines_may_begin_on_one_that_cannot_train_it(tmp_path, postgresql_server):
    def no_devices(config):
        raise BadMesh(asked="data=2", num_devices=1, remedy="Use others.")

    with (
        pytest.raises(CannotTrainHere, match=r"data=2 does not fit 1 devices.* `--database`"),
        begun_run(Address(tmp_path / "alone"), CONFIG, check_machine=no_devices),
    ):
        pass
    assert not has_begun(tmp_path / "alone", CONFIG)
    with begun_run(
        Address(tmp_path / "shared"), CONFIG, postgresql_server.url, check_machine=no_devices
    ) as (_, is_new):
        assert is_new


def test_why_a_worker_ended_is_kept(begin, monkeypatch):
    """The last of a fleet may have met a full disk, and nobody reads its log."""
    run = begin(CONFIG)

    def fail(worker):
        raise DiskFull(file="x")

    monkeypatch.setattr(Worker, "run_until_finished", fail)
    with pytest.raises(DiskFull):
        work(run, "w", Callbacks())
    (member,) = run.ledger.members.list()
    assert member.state == "left"
    assert member.last_words.startswith("DiskFull: No space left on the disk of x.")


def test_what_died_in_a_folder_with_a_server_is_removed_by_any_that_joins(
    tmp_path, postgresql_server
):
    run, _ = create_or_open(tmp_path, CONFIG, database=postgresql_server.url)
    run.ledger.close()
    partial = tmp_path / "partial"
    partial.mkdir()
    for name in ("old", "new"):
        (partial / name).write_bytes(b"half")
    os.utime(partial / "old", (1, 1))
    with folder_lock(tmp_path) as of_first:
        of_first.share()
        with joined_run(Address(tmp_path)):
            assert [file.name for file in partial.iterdir()] == ["new"]
    with joined_run(Address(tmp_path)):  # alone on this machine; others may be writing
        assert [file.name for file in partial.iterdir()] == ["new"]


def test_a_process_that_is_told_to_end_does_not_wait_for_a_database_that_is_away(monkeypatch):
    """A machine that is preempted has some seconds; so has `systemctl stop`."""
    now, asked = [0.0], []
    monkeypatch.setattr(retry.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(retry.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def ask():
        if not asked:
            signal.raise_signal(signal.SIGTERM)
        asked.append(now[0])
        raise retry.ConnectionLost(place="postgresql://db/runs", problem="no route")

    told = []
    with on_sigterm(lambda: told.append(True)), pytest.raises(DatabaseUnreachable):
        retry.with_retry(ask, lambda: None)
    assert told == [True]
    assert now[0] < 20.0
    asked.clear()
    with on_sigterm(lambda: None), pytest.raises(DatabaseUnreachable):  # it takes part again
        retry.with_retry(lambda: asked.append(now[0]) or ask(), lambda: None)
    assert now[0] > retry.RETRY_SECONDS


def test_a_worker_of_several_hosts_registers_only_what_it_does(begin, monkeypatch):
    """Else the status would say that it is about to re-route, for ever."""
    run = begin(CONFIG)
    monkeypatch.setattr(Worker, "run_until_finished", lambda worker: True)
    work(run, "w", Callbacks(), runner=on_two_hosts(run))
    (member,) = run.ledger.members.list()
    assert set(ALL_KINDS) - set(member.kinds) == {"reroute"}


@pytest.mark.parametrize("name", list(stopping.NOTICES))
def test_a_notice_of_the_cloud_ends_the_process_as_sigterm_does(monkeypatch, name):
    """The metadata of a machine that is about to be taken away, but for the first question."""
    said, asked = dict.fromkeys(stopping.NOTICES, "FALSE"), []

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Metadata-Flavor"])
            text = said[self.path.removeprefix("/computeMetadata/v1/instance/")]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{text}\n".encode())
            said[name] = stopping.NOTICES[name]

        def log_message(self, *_): ...

    monkeypatch.setattr(stopping, "NOTICE_SECONDS", 0.01)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    told = threading.Event()
    with HTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(stopping.METADATA_VARIABLE, f"127.0.0.1:{server.server_port}")
        with on_sigterm(told.set):
            end_before_machine()
            assert told.wait(30)
        server.shutdown()
    assert set(asked) == {"Google"}
    assert len(asked) > 1


def test_no_cloud_is_asked_on_another_machine(monkeypatch, tmp_path):
    monkeypatch.delenv(stopping.METADATA_VARIABLE, raising=False)
    monkeypatch.setattr(stopping, "_watch_notices", lambda host: pytest.fail(host))
    for product in ("no such file", "KVM"):
        monkeypatch.setattr(stopping, "PRODUCT", tmp_path / product)
        (tmp_path / "KVM").write_text("KVM\n")
        threads = threading.active_count()
        end_before_machine()
        assert threading.active_count() == threads
