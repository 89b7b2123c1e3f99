"""One contract for all engines: workers start, end, restart and stop."""

import os
import signal
import sys
from typing import NamedTuple

import pytest

from dipaco.launch.engine import EndedWorker
from dipaco.launch.local import LocalEngine
from tests.launch.conftest import is_alive
from tests.support.waiting import until

# Writes its process number, prints a line, and waits; SIGTERM ends it in order, or not at all.
PROGRAM = """
import os, pathlib, signal, sys, time
folder, name, host, hosts, coordinator, how = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.SIG_IGN if how == "deaf" else lambda *_: sys.exit(0))
print("a first line"); print(f"{name} {host} of {hosts} at {coordinator}", flush=True)
file = pathlib.Path(folder, f"{name}-{host}.pid")
file.with_suffix(".new").write_text(f"{os.getpid()} {os.environ.get('SECRET')}")
file.with_suffix(".new").rename(file)
if how.isdigit(): sys.exit(int(how))
time.sleep(120)
"""


class Dummy(NamedTuple):
    """A command that only waits."""

    folder: str
    hosts: int = 1
    how: str = "waits"
    takes_devices: bool = False

    def command(self, name, host=0, coordinator=None):
        words = [self.folder, name, str(host), str(self.hosts), str(coordinator), self.how]
        return [sys.executable, "-c", PROGRAM, *words]

    @property
    def environment(self):
        return {"SECRET": "of the run"}


@pytest.fixture(params=["local", "ray"])
def engine(request, tmp_path):
    if request.param == "local":
        engine = LocalEngine(lambda name: tmp_path / "logs" / f"{name}.log")
    else:
        cluster = request.getfixturevalue("cluster")
        from dipaco.launch.ray import RayEngine, WorkerResources

        engine = RayEngine(cluster.address, WorkerResources(), str(tmp_path), str(tmp_path))
    yield engine
    engine.stop(grace_seconds=10)


def pid_of(folder, name, host=0, *, other_than=None):
    """Waits until such a process has started."""
    file = folder / f"{name}-{host}.pid"
    other = str(other_than)
    until(lambda: file.exists() and file.read_text().split()[0] != other, 240, f"{name} starts")
    pid, secret = file.read_text().split(maxsplit=1)
    assert secret == "of the run"
    return int(pid)


def next_end(engine):
    ended = []
    until(lambda: bool(ended.extend(engine.poll()) or ended), 240, "one ends")
    return ended


def test_an_ended_worker_is_reported_once_with_its_code_and_last_line(engine, tmp_path):
    engine.start(Dummy(str(tmp_path), how="3"), "one")
    assert next_end(engine) == [EndedWorker("one", 3, "one 0 of 1 at None")]
    assert engine.poll() == []
    engine.start(Dummy(str(tmp_path), how="0"), "two")
    assert next_end(engine) == [EndedWorker("two", 0)]


def test_a_killed_worker_is_reported_and_can_be_started_again_under_its_name(engine, tmp_path):
    engine.start(Dummy(str(tmp_path)), "one")
    engine.start(Dummy(str(tmp_path)), "other")
    first, other = pid_of(tmp_path, "one"), pid_of(tmp_path, "other")
    assert engine.poll() == []
    os.kill(first, signal.SIGKILL)
    (ended,) = next_end(engine)
    assert (ended.name, ended.how) == ("one", "signal 9")
    engine.start(Dummy(str(tmp_path)), "one")
    second = pid_of(tmp_path, "one", other_than=first)
    assert is_alive(second)
    assert is_alive(other)


def test_one_worker_is_ended_in_order_and_the_others_stay(engine, tmp_path):
    for name in ("one", "other"):
        engine.start(Dummy(str(tmp_path)), name)
    pid_of(tmp_path, "one")
    other = pid_of(tmp_path, "other")
    engine.end("one")
    assert next_end(engine) == [EndedWorker("one", 0)]
    assert is_alive(other)


def test_one_worker_that_does_not_end_is_killed_and_the_others_stay(engine, tmp_path):
    engine.start(Dummy(str(tmp_path), how="deaf"), "one")
    engine.start(Dummy(str(tmp_path)), "other")
    one, other = pid_of(tmp_path, "one"), pid_of(tmp_path, "other")
    engine.end("one")
    engine.kill("one")
    assert [ended.name for ended in next_end(engine)] == ["one"]
    until(lambda: not is_alive(one), 10, "it is gone")
    assert is_alive(other)
    assert engine.poll() == []


def test_stop_asks_workers_to_end_and_then_kills_the_remaining_ones(engine, tmp_path):
    engine.start(Dummy(str(tmp_path)), "polite")
    engine.start(Dummy(str(tmp_path), how="deaf"), "deaf")
    polite, deaf = pid_of(tmp_path, "polite"), pid_of(tmp_path, "deaf")
    grace_seconds = 0.5 if isinstance(engine, LocalEngine) else 3
    ended = {end.name: end.code for end in engine.stop(grace_seconds)}
    assert ended == {"polite": 0, "deaf": -9}
    until(lambda: not is_alive(polite) and not is_alive(deaf), 10, "both are gone")


def test_the_hosts_of_a_worker_connect_at_one_address_and_end_together(engine, tmp_path):
    engine.start(Dummy(str(tmp_path), hosts=2), "pair")
    first, second = (pid_of(tmp_path, "pair", host) for host in (0, 1))
    meeting = set()
    for host, log in enumerate(("pair", "pair-host1")):
        words, _, address = (tmp_path / "logs" / f"{log}.log").read_text().strip().rpartition(" ")
        assert words.endswith(f"pair {host} of 2 at")
        meeting.add(address)
    (address,) = meeting
    assert address.rpartition(":")[2].isdigit()
    os.kill(second, signal.SIGKILL)
    (ended,) = next_end(engine)
    assert (ended.name, ended.how) == ("pair", "signal 9")
    until(lambda: not is_alive(first), 10, "the first host is gone")
