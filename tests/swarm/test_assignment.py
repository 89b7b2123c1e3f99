"""Which blocks a peer gets, on a virtual clock: no step waits for a slow peer."""

import heapq
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dipaco.swarm.planning.assignment import assign
from dipaco.swarm.planning.leases import BlockLedger

ASK_AGAIN_SECONDS = 0.02


class Simulation:
    """Peers that ask, compute and report, step after step.

    Args:
      seconds: peer -> what a block takes it.
      num_blocks: of a step.
    """

    def __init__(self, seconds, num_blocks):
        self.seconds, self.num_blocks = seconds, num_blocks
        self.known = dict.fromkeys(seconds, 0.0)  # as the leader knows them
        self.busy_until = dict.fromkeys(seconds, 0.0)
        self.now = 0.0
        self.counted = dict.fromkeys(seconds, 0)
        self.was_parked = set()
        self.in_vain = set()  # in a block whose step is over

    def step(self):
        """Seconds that it takes."""
        began, ledger = self.now, BlockLedger(0, self.num_blocks)
        ties = itertools.count()
        events = [
            (max(self.now, busy), next(ties), name, None) for name, busy in self.busy_until.items()
        ]
        heapq.heapify(events)
        while not ledger.is_complete:
            self.now, _, name, block = heapq.heappop(events)
            if name in self.in_vain:
                self.in_vain.discard(name)
                self.known[name] = self.seconds[name]
            if block is not None:
                self.known[name] = self.seconds[name]
                self.counted[name] += ledger.finish(name, block)
                if any(event[2] == name for event in events):
                    continue  # more blocks of its lease
            for at, what in self._work(ledger, name):
                heapq.heappush(events, (at, next(ties), name, what))
        for name in self.busy_until:  # a block that is begun is finished, though in vain
            after = sorted(e[0] for e in events if e[2] == name and e[3] is not None)
            if after:
                self.busy_until[name] = after[0]
                self.in_vain.add(name)
        return self.now - began

    def _work(self, ledger, name):
        own, took = self.known[name], self.seconds[name]
        found = assign(ledger, name, self.known, self.now, max_seconds=20.0)
        timing = {"now_seconds": self.now, "seconds_per_block": own or float("inf")}
        if found.needed_seconds:
            self.was_parked.add(name)
        blocks = ()
        if found.count:
            blocks = ledger.lease(name, found.count, 1e9, **timing)
        elif found.backup is not None:
            assert ledger.lease_backup(name, found.backup, 1e9, **timing)
            blocks = (found.backup,)
        if not blocks:
            return [(self.now + ASK_AGAIN_SECONDS, None)]
        return [(self.now + i * took, block) for i, block in enumerate(blocks, start=1)]


def durations(simulation, count):
    return [simulation.step() for _ in range(count)]


@pytest.mark.parametrize("num_blocks", [8, 96])
@pytest.mark.parametrize("times", [5, 500])
@pytest.mark.parametrize("fast", [1, 5])
def test_a_slow_peer_costs_a_tenth_at_most_and_counts_or_is_parked(num_blocks, times, fast):
    quick = {f"fast{i}": 0.05 for i in range(fast)}
    alone = durations(Simulation(quick, num_blocks), 12)
    group = Simulation({**quick, "slow": 0.05 * times}, num_blocks)
    took = []
    while group.now < 2.5 * 0.05 * times or len(took) < 12:
        took.append(group.step())
    block = 0.05  # steps are as long as whole blocks
    usual = sum(alone[2:]) / len(alone[2:])
    assert sum(took[2:]) / len(took[2:]) <= 1.1 * usual + block / 10
    assert max(took[1:]) <= 1.1 * max(alone) + 2 * block
    assert took[0] <= 2 * max(alone)  # while all are timed
    assert group.counted["slow"] > 0 or "slow" in group.was_parked


def test_a_peer_fifty_times_slower_counts_at_least_one_block_in_five_steps():
    """96 blocks by two peers: a step has the time that one of its blocks takes."""
    group = Simulation({"ana": 0.05, "bo": 0.05, "slow": 42 * 0.05}, 96)
    durations(group, 7)
    assert group.counted["slow"] >= 1


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from("abcdefg"), st.floats(0.01, 50.0), min_size=1),
    st.integers(1, 20),
)
def test_every_step_ends_whatever_the_speeds_and_no_later_than_the_fastest_alone(seconds, blocks):
    group = Simulation(seconds, blocks)
    fastest = min(seconds.values())
    group.known = dict(seconds)  # all are timed
    for took in durations(group, 2):
        # It may be in the middle of a block when the step begins, and asks now and then.
        assert took <= 1.1 * (blocks + 1) * fastest + ASK_AGAIN_SECONDS + fastest


def test_peers_of_one_speed_all_get_the_last_block():
    ledger = BlockLedger(0, 1)
    speeds = {f"peer{i}": 1.0 for i in range(100)}
    assert assign(ledger, "peer7", speeds, 0.0, 20.0).count == 1
    assert assign(ledger, "peer7", speeds | {"peer8": 0.0}, 0.0, 20.0).count == 1
    assert assign(ledger, "peer8", speeds | {"peer8": 0.0}, 0.0, 20.0).count == 1


def test_an_idle_peer_computes_what_it_would_finish_first():
    ledger = BlockLedger(0, 2)
    ledger.lease("slow", 1, 99.0, now_seconds=0.0, seconds_per_block=10.0)
    ledger.lease("new", 1, 99.0, now_seconds=0.0)
    speeds = {"slow": 10.0, "new": 0.0, "ana": 1.0}
    assert assign(ledger, "ana", speeds, 0.5, 20.0).backup == 1  # nothing is known of that
    assert ledger.lease_backup("ana", 1, 99.0, now_seconds=0.5, seconds_per_block=1.0)
    assert assign(ledger, "ana", speeds, 0.5, 20.0).backup == 0
    assert assign(ledger, "ana", speeds, 9.5, 20.0).backup is None  # due at 10
    assert assign(ledger, "ana", speeds, 10.5, 20.0).backup == 0  # overdue
    assert assign(ledger, "new", speeds, 10.5, 20.0).backup == 0  # it is timed by that
    assert ledger.lease_backup("ana", 0, 99.0, seconds_per_block=1.0)
    assert assign(ledger, "bo", speeds | {"bo": 0.1}, 10.5, 20.0).backup is None


def test_a_newcomer_is_no_backup_of_another_and_keeps_no_timed_peer_from_a_block():
    ledger = BlockLedger(0, 2)
    ledger.lease("new", 1, 99.0, now_seconds=0.0)
    speeds = {"new": 0.0, "newer": 0.0, "newest": 0.0, "slow": 10.0, "ana": 1.0}
    ledger.lease("slow", 1, 99.0, now_seconds=0.0, seconds_per_block=10.0)
    assert assign(ledger, "newer", speeds, 0.5, 20.0).backup == 1
    assert ledger.lease_backup("newer", 1, 99.0, now_seconds=0.5)
    assert assign(ledger, "newest", speeds, 0.5, 20.0).backup is None
    assert not ledger.lease_backup("newest", 1, 99.0, now_seconds=0.5)
    for block in (0, 1):  # first that of which nothing is known
        assert assign(ledger, "ana", speeds, 0.5, 20.0).backup == block
        assert ledger.lease_backup("ana", block, 99.0, now_seconds=0.5, seconds_per_block=1.0)
    assert not ledger.open_blocks()
    assert not ledger.finish("newer", 1), "another is its backup now"
    assert ledger.finish("ana", 1)
    assert ledger.finish("new", 0)
