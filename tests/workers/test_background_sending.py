"""Snapshots that are sent while training goes on: when they are in the bucket, what a kill, a lost
disk, a slow link and a bucket that refuses cost, and that nothing is left over.
"""

import dataclasses
import threading

import pytest
import replay
from support.memory_bucket import Machines, MemoryBucket

from dipaco.config import MODULAR
from dipaco.control.queue import LATE_FACTOR
from dipaco.errors import BadSetting
from dipaco.outer.config import OuterSettings
from dipaco.runs.status import status_of
from dipaco.store.errors import StoreRefuses
from dipaco.store.layout import SNAPSHOTS, object_of
from dipaco.store.retention import RetentionSettings
from dipaco.store.verification import DIGESTS
from dipaco.topology import Topology
from dipaco.workers import background_sending, snapshot_sending
from dipaco.workers.background_sending import SnapshotSender
from tests.workers.conftest import CONFIG, SHARINGS, worker_of

PHASES, PATHS = 4, 3
LONG_SECONDS = 60.0  # for what happens at once, on a busy machine


class HeldBucket(MemoryBucket):
    """What the sender writes passes a gate that the test opens."""

    def __init__(self, content):
        super().__init__(content)
        self.gate, self.at_gate = threading.Event(), threading.Event()
        self.refusals, self.written = 0, []

    def write(self, name, content):
        if threading.current_thread().name == "sender":
            self.at_gate.set()
            assert self.gate.wait(LONG_SECONDS)
            if self.refusals:
                self.refusals -= 1
                raise StoreRefuses(url=self.url, problem="403")
            self.written.append(name)
        super().write(name, content)

    def sent(self, path=0):
        """The phases of a path whose whole snapshots the sender has written, in order."""
        whole = [name for name in self.written if name.endswith(f"/{DIGESTS}")]
        return [phase_of(name) for name in whole if f"/{path:04d}/" in name]


def phase_of(name):
    return int(name.split("/")[3].split("-")[0])


class Laptop:
    """A machine that does all tasks, with its sender."""

    def __init__(self, on, name):
        self.run, self.on, self.name = on.new(name).run, on, name
        self.bucket = self.run.objects.remote = HeldBucket(on.content)
        self.run.objects.publish = lambda file, content: (
            None
        )  # the report is in the folder of the run

    def __enter__(self):
        self.sender = SnapshotSender(self.run).__enter__()
        self.worker = worker_of(self.run, self.name, sender=self.sender)
        return self

    def __exit__(self, *_):
        self.sender.__exit__(None, None, None)
        self.bucket.gate.set()
        self.sender._thread.join(LONG_SECONDS)
        assert not self.sender._thread.is_alive()

    def work_until(self, phase):
        while self.run.ledger.facts.modules_at(MODULAR, phase) != set(
            self.run.config.topology.modules
        ):
            assert self.worker.run_once()

    def work(self):
        while self.worker.run_once():
            pass

    def send_all(self):
        self.bucket.gate.set()
        self.sender.finish(LONG_SECONDS)
        assert not self.sender._all()

    def unsent(self):
        return status_of(self.run, with_sizes=False)["unsent_snapshots"]


def begun(begin, tmp_path, outer=CONFIG.outer, **retention):
    keep = RetentionSettings(**{"send_snapshots": "while_training", **retention})
    evaluation = dataclasses.replace(CONFIG.evaluation, every_phases=PHASES)
    config = dataclasses.replace(
        CONFIG,
        # All paths go through one module: each is after the same phase when that has stepped.
        topology=Topology(levels=SHARINGS["diloco"]),
        routing=dataclasses.replace(CONFIG.routing, kind="kmeans"),
        phases=PHASES,
        retention=keep,
        evaluation=evaluation,
        outer=outer,
    )
    return Machines(begin(config), tmp_path / "machines")


@pytest.fixture
def laptop(begin, tmp_path):
    with Laptop(begun(begin, tmp_path), "laptop") as one:
        yield one


def there(on, path=0):
    """The phases of a path whose snapshots are whole in the bucket."""
    start = f"{SNAPSHOTS}/{MODULAR}/{path:04d}/"
    whole = [name for name in on.content if name.startswith(start) and name.endswith(DIGESTS)]
    return sorted(map(phase_of, whole))


def redone(run):
    return [refusal.task for refusal in run.ledger.redos.refusals()]


def assert_nothing_is_left_over(on, run):
    """Of a finished run the bucket has the snapshots that it needs, and no file of others."""
    names = {object_of(name) for name in on.content if name.startswith(f"{SNAPSHOTS}/")}
    live = run.ledger.retention.live_names(snapshots=1, contributions=0, but="base")
    assert names == {name for name in live if name.startswith(SNAPSHOTS)}


def test_a_snapshot_is_sent_while_later_phases_train_and_its_row_is_there_before(laptop):
    laptop.work_until(1)
    assert laptop.bucket.at_gate.wait(LONG_SECONDS)
    laptop.work_until(2)
    assert there(laptop.on) == []
    assert laptop.unsent() == {str(path): 2 for path in range(PATHS)}
    laptop.send_all()
    assert laptop.unsent() == {}
    assert [there(laptop.on, path)[-1] for path in range(PATHS)] == [1] * PATHS
    laptop.work()
    assert laptop.unsent() == {}
    laptop.send_all()
    assert redone(laptop.run) == []
    assert replay.differences(laptop.run) == []
    assert_nothing_is_left_over(laptop.on, laptop.run)


def test_a_slow_link_carries_only_the_newest_snapshot_that_waits(laptop):
    """The one on its way is not given up: otherwise none would ever arrive."""
    laptop.work_until(1)
    assert laptop.bucket.at_gate.wait(LONG_SECONDS)
    first = laptop.sender._current
    laptop.work_until(3)
    assert laptop.sender.is_needed_here(first.name)
    assert laptop.run.objects.place_of(first.name).is_dir(), "two phases later it is still needed"
    laptop.send_all()
    whole = [name for name in laptop.bucket.written if name.endswith(DIGESTS)]
    assert [int(name.split("/")[2]) for name in whole] == [0, 1, 2, 0], "each has its turn"
    assert laptop.bucket.sent(first.path) == [0, 2]
    others = [path for path in range(PATHS) if path != first.path]
    assert [laptop.bucket.sent(path) for path in others] == [[2]] * (PATHS - 1)
    assert not laptop.run.objects.place_of(first.name).is_dir()


def test_the_last_snapshot_of_a_path_is_sent_before_and_what_is_on_its_way_is_left(laptop):
    laptop.work_until(PHASES - 1)
    assert laptop.bucket.at_gate.wait(LONG_SECONDS)
    older = laptop.sender._current
    assert all(there(laptop.on, path) == [] for path in range(PATHS))
    laptop.work_until(PHASES)
    assert all(there(laptop.on, path) == [PHASES - 1] for path in range(PATHS))
    laptop.send_all()
    assert not [name for name in laptop.on.content if name.startswith(older.name)]
    laptop.work()
    assert_nothing_is_left_over(laptop.on, laptop.run)


def test_what_a_killed_worker_left_on_its_disk_is_sent_by_the_next_one_there(begin, tmp_path):
    on = begun(begin, tmp_path)
    with Laptop(on, "laptop") as killed:
        killed.work_until(2)
        killed.bucket.at_gate.wait(LONG_SECONDS)
    assert all(1 not in there(on, path) for path in range(PATHS))
    with Laptop(on, "laptop") as again:
        assert {each.phase for each in again.sender._all()} == {1}
        again.send_all()
        assert all(1 in there(on, path) for path in range(PATHS))
        again.work()
        again.send_all()
        assert redone(again.run) == []
        assert replay.differences(again.run) == []
        assert_nothing_is_left_over(on, again.run)


@pytest.mark.parametrize(
    "outer",
    [
        CONFIG.outer,
        OuterSettings(codec="sparse2", learning_rate=1.0, momentum=0.0),  # what it did not send yet
        OuterSettings(delay=1),  # its own parameters
        OuterSettings(codec="int8", delay=1),  # both
    ],
    ids=["plain", "sparse2", "delay", "int8 delay"],
)
def test_a_lost_disk_costs_the_phases_that_the_bucket_does_not_have(begin, tmp_path, outer):
    """One path had sent its first snapshot; a second was being sent. A snapshot also has what a
    path keeps to itself, which no module could bring back.
    """
    on = begun(begin, tmp_path, outer)
    with Laptop(on, "lost") as lost:
        lost.work_until(1)
        lost.send_all()
        lost.bucket.gate.clear()
        lost.work_until(2)
        lost.bucket.at_gate.wait(LONG_SECONDS)
        assert lost.unsent() == {str(path): 1 for path in range(PATHS)}
    with Laptop(on, "other") as other:
        other.work()
        other.send_all()
        again = {f"train modular path {path} phase 1" for path in range(PATHS)}
        assert set(redone(other.run)) == again
        assert replay.differences(other.run) == []
        assert_nothing_is_left_over(on, other.run)


def test_a_worker_that_ends_sends_for_a_while_and_says_what_it_leaves(laptop, caplog):
    laptop.work_until(1)
    said = []
    laptop.sender.finish(0.01, said.append)
    assert said == [f"Sending {PATHS} snapshots before this worker ends, for 0 s at most"]
    laptop.sender.__exit__(None, None, None)
    assert caplog.text.count("It is on this machine's disk alone") == PATHS
    laptop.bucket.gate.set()
    laptop.sender._thread.join(LONG_SECONDS)
    assert all(there(laptop.on, path) == [] for path in range(PATHS))


def test_a_bucket_that_refuses_stops_no_training_and_is_tried_again(laptop, monkeypatch, caplog):
    monkeypatch.setattr(background_sending, "AGAIN_SECONDS", 0.0)
    laptop.bucket.refusals = 3
    laptop.bucket.gate.set()
    laptop.work_until(2)
    laptop.send_all()
    assert caplog.text.count("is tried again") == 1, "an error that goes on is said once"
    assert laptop.bucket.refusals == 0
    assert laptop.unsent() == {}


def test_a_snapshot_that_is_damaged_here_is_not_sent(laptop, caplog):
    laptop.work_until(1)
    assert laptop.bucket.at_gate.wait(LONG_SECONDS)
    waiting = laptop.sender._all()[-1]
    of_it = laptop.run.objects.place_of(waiting.name)
    largest = max((each for each in of_it.rglob("*")), key=lambda each: each.stat().st_size)
    largest.write_bytes(b"x" * largest.stat().st_size)
    laptop.send_all()
    assert "is not as it was written" in caplog.text
    assert there(laptop.on, waiting.path) == []
    assert laptop.unsent() == {str(waiting.path): 1}


def test_a_snapshot_whose_phase_was_trained_again_elsewhere_is_not_left_in_the_bucket(laptop):
    laptop.work_until(1)
    assert laptop.bucket.at_gate.wait(LONG_SECONDS)
    under_way, waiting, _ = laptop.sender._all()
    database = laptop.run.ledger._database
    with database.transaction():
        for each in (under_way, waiting):
            of, other = {"arm": MODULAR, "path": each.path, "phase": 0}, f"{each.name}9"
            database.change("move_snapshot", **of, name=other)  # of another attempt
    laptop.send_all()
    assert under_way.name not in {object_of(name) for name in laptop.on.content}
    assert waiting.name not in {object_of(name) for name in laptop.bucket.written}
    assert laptop.unsent() == {str(under_way.path): 1, str(waiting.path): 1}


def test_only_every_nth_snapshot_is_sent_and_only_its_loss_costs_more(begin, tmp_path):
    on = begun(begin, tmp_path, send_snapshots_every=2, snapshots=1)
    with Laptop(on, "laptop") as one:
        one.bucket.gate.set()
        one.work_until(1)
        assert one.sender._all() == []
        assert one.unsent() == {str(path): 1 for path in range(PATHS)}
        one.work_until(2)
        one.send_all()
        assert one.unsent() == {}
        one.work_until(3)
        assert [there(on, path) for path in range(PATHS)] == [[1]] * PATHS
        assert one.unsent() == {str(path): 1 for path in range(PATHS)}
        one.work()
        one.send_all()
        assert_nothing_is_left_over(on, one.run)


def test_several_hosts_and_phases_done_again_send_before_the_row(laptop, monkeypatch):
    run, arm = laptop.run, laptop.run.plan.arm(MODULAR)
    sends = snapshot_sending.sends_snapshot
    assert not sends(run, arm, 0, 0)
    assert sends(run, arm, 0, PHASES - 1)
    assert sends(run, run.plan.base, 0, 0)
    laptop.work_until(1)
    assert sends(run, arm, 0, 0), "it was asked for again"
    assert not sends(run, arm, 0, 1)
    monkeypatch.setattr(snapshot_sending.jax, "process_count", lambda: 2)
    assert sends(run, arm, 0, 1)


def test_modules_must_be_kept_and_the_setting_is_one_of_two():
    with pytest.raises(BadSetting, match=r"None .all. with retention.send_snapshots"):
        RetentionSettings(send_snapshots="while_training", modules=9)
    with pytest.raises(BadSetting, match="before_recording, while_training"):
        RetentionSettings(send_snapshots="later")


def test_a_path_is_left_to_the_disk_that_has_its_snapshot_even_while_that_trains_another(laptop):
    """As with snapshots that are sent seldom; and a backup has a phase more to train."""
    for name in ("laptop", "other"):
        laptop.run.ledger.members.join(
            name, host="here", pid=1, machine="cpu", version="0", life=name
        )
    laptop.work_until(1)
    assert laptop.run.ledger.homes.home_of(MODULAR, 1) == "laptop"
    claim = laptop.run.ledger.queue.claim("laptop", ["train"])
    other = worker_of(laptop.on.new("other").run, "other")
    assert not other.run_once()
    assert other._claimer._late_factor(1) == LATE_FACTOR + 1
    laptop.run.ledger.queue.give_back(claim)
