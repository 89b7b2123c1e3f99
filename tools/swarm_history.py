"""A community of volunteers on a virtual clock, through the real logic of a swarm: 40 people with
91 devices join for about 600 sessions over 8 days (DeDLOC, arXiv 2106.10207, the sahajBERT run).

    python tools/swarm_history.py
    python tools/swarm_history.py --days 2 --sessions 150

What is real: the ledger of leased blocks, lease sizes, deadlines, estimates of progress, refresh
times, shares and the length of a round on the peers' links. What is drawn at random, from a seed:
when each session begins and ends, its speed and link, and whether it leaves in order or dies.
Events come from a heap; nothing sleeps. Printed: group steps per hour, rows computed in vain, the
longest wait for a peer that was gone, and the error of the estimates. The last line is one JSON
object.
"""

import argparse
import dataclasses
import heapq
import itertools
import json
import random
import statistics

from dipaco.swarm.planning.deadlines import Durations
from dipaco.swarm.planning.leases import BlockLedger, blocks_to_lease
from dipaco.swarm.planning.progress import (
    ProgressReport,
    Rate,
    RefreshSettings,
    estimate,
    refresh_seconds,
    should_match,
)
from dipaco.swarm.planning.shares import Link, shares_of_links

HOUR = 3600.0
SECONDS_AT_STAKE = 20.0
VECTOR_BYTES = 72e6  # 18 million float32 parameters, as ALBERT-large has


@dataclasses.dataclass
class Session:
    """A device, from when it joins until it goes."""

    name: str
    person: int
    begins: float
    ends: float
    rows_per_second: float
    bytes_per_second: float
    is_client: bool
    dies: bool  # goes without leaving in order
    rate: Rate = dataclasses.field(default_factory=Rate)
    seconds: Durations = dataclasses.field(default_factory=Durations)
    works_on: tuple[int, ...] = ()


class History:
    """The simulation.

    Args:
      options: of the command line.
    """

    def __init__(self, options: argparse.Namespace):
        self.options, self.rng = options, random.Random(options.seed)
        self.now = 0.0
        self.here: dict[str, Session] = {}
        self.gone: dict[str, float] = {}  # those that died, and when; unknown to the group
        self._heap: list[tuple[float, int, str, str]] = []
        self._counter = itertools.count()
        self.steps: list[tuple[float, float]] = []  # (when it was closed, seconds)
        self.rows_wasted = 0
        self.waited_for_gone: list[float] = []
        self.early: list[float] = []  # error of the estimate when matchmaking began, seconds
        self.rounds_again = 0
        self.refreshes: list[float] = []
        self.sessions = {session.name: session for session in self._draw()}
        for session in self.sessions.values():
            self._at(session.begins, "comes", session.name)
            self._at(session.ends, "goes", session.name)
        self._begin_step()

    def _draw(self) -> list[Session]:
        """Devices of people: evenings are busier, machines and links differ by a lot."""
        options, rng = self.options, self.rng
        devices = [
            (
                rng.randrange(options.people),
                rng.choice([2.0, 4.0, 4.0, 8.0, 16.0]) * rng.lognormvariate(0, 0.3),
                rng.choice([10, 20, 50, 100, 100, 200]) * 125_000.0,
                rng.random() < 0.5,
            )
            for _ in range(options.devices)
        ]
        sessions = []
        for number in range(options.sessions):
            person, speed, link, is_client = rng.choice(devices)
            day, hour = rng.randrange(options.days), min(23.9, max(0.0, rng.gauss(19, 4)))
            begins = (24 * day + hour) * HOUR
            lasts = rng.lognormvariate(1.1, 0.8) * HOUR
            ends = min(begins + lasts, options.days * 24 * HOUR)
            dies = rng.random() < options.deaths
            name = f"{person:02}/{number:04}"
            sessions.append(Session(name, person, begins, ends, speed, link, is_client, dies))
        return sessions

    def _at(self, when: float, what: str, whom: str) -> None:
        heapq.heappush(self._heap, (when, next(self._counter), what, whom))

    # --- the group ----------------------------------------------------------------------------

    def _begin_step(self) -> None:
        num_blocks = self.options.batch // self.options.block_rows
        self.ledger = BlockLedger(len(self.steps), num_blocks)
        self.began, self._matched = self.now, False
        self._expected_at: float | None = None
        for name in list(self.here):
            self._give_work(name)

    def _report(self) -> list[ProgressReport]:
        rows = self.options.block_rows
        return [
            ProgressReport(
                samples=len(self.ledger.done_by(name)) * rows,
                samples_per_second=session.rate.per_second,
                at_seconds=self.now,
            )
            for name, session in self.here.items()
        ]

    def _give_work(self, name: str) -> None:
        session = self.here[name]
        if name in self.gone or session.works_on:
            return
        rows, rate = self.options.block_rows, session.rate.per_second
        count = blocks_to_lease(
            self.ledger.num_free,
            rate / rows,
            [other.rate.per_second / rows for other in self.here.values()],
            rows / rate if rate else 0.0,
            SECONDS_AT_STAKE,
        )
        guess = rows / session.rows_per_second  # every peer times a block before it begins
        within = count * session.seconds.deadline_seconds(guess)
        lease = self.ledger.lease(name, count, self.now + within)
        if lease is None:
            return
        session.works_on = lease.blocks
        took = rows / session.rows_per_second * self.rng.lognormvariate(0, 0.1)
        self._at(self.now + took, "computed", name)
        self._at(self.now + within + 1e-6, "expires", name)

    def _computed(self, name: str) -> None:
        if name not in self.here or name in self.gone:
            return
        session = self.here[name]
        block, *rest = session.works_on or (None,)
        session.works_on = tuple(rest)
        if block is None:
            return
        rows = self.options.block_rows
        took = rows / session.rows_per_second * self.rng.lognormvariate(0, 0.1)
        session.seconds.add(took)
        session.rate = session.rate.after(rows, took)
        if not self.ledger.finish(name, block):
            self.rows_wasted += rows
        if session.works_on:
            self._at(self.now + took, "computed", name)
        else:
            self._give_work(name)
        self._look()

    def _look(self) -> None:
        """What the leader does after each report: estimates, and closes a step that is complete."""
        progress = estimate(self._report(), self.options.batch, self.now)
        refreshing = RefreshSettings()
        self.refreshes.append(refresh_seconds(progress, refreshing))
        if not self._matched and should_match(progress, refreshing):
            self._matched, self._expected_at = True, self.now + progress.seconds_left
        if self.ledger.is_complete:
            self._average()

    def _average(self) -> None:
        """A round: as long as the slowest link needs; a sender that is gone is noticed."""
        blocks_by_peer = self.ledger.blocks_by_peer
        dead = [name for name in blocks_by_peer if name in self.gone]
        links = [Link(up=125e6, down=125e6, sends=False)]  # the backbone
        for name, session in self.here.items():
            link, can = session.bytes_per_second, not session.is_client
            links.append(Link(up=link, down=link, can_reduce=can, sends=name in blocks_by_peer))
        share = shares_of_links(links)
        seconds = VECTOR_BYTES * max(
            (link.sends * (1 - s) + (len(links) - 1) * s) / link.up
            for link, s in zip(links, share, strict=True)
        )
        if self._expected_at is not None:
            self.early.append(self.now - self._expected_at)
            self._expected_at = None
        if dead:  # the connection is seen to break; the round is held again without it
            self.rounds_again += 1
            for name in dead:
                self._forget(name)
            self._spread()
            return
        self.now += seconds
        self.steps.append((self.now, self.now - self.began))
        self._begin_step()

    def _forget(self, name: str) -> None:
        blocks = self.ledger.drop(name)
        self.rows_wasted += len(blocks) * self.options.block_rows
        self.waited_for_gone.append(self.now - self.gone.pop(name))
        del self.here[name]

    def _spread(self) -> None:
        for name in list(self.here):
            self._give_work(name)

    # --- the clock ----------------------------------------------------------------------------

    def run(self) -> None:
        while self._heap:
            when, _, what, name = heapq.heappop(self._heap)
            self.now = max(self.now, when)
            if what == "comes":
                self.here[name] = self.sessions[name]
                self._give_work(name)
            elif what == "goes" and name in self.here:
                self._go(name)
            elif what == "computed":
                self._computed(name)
            elif what == "expires":
                self._expire()
            elif what == "missed" and name in self.gone:
                self._forget(name)
                self._spread()

    def _go(self, name: str) -> None:
        session = self.here[name]
        if session.dies:
            self.gone[name] = self.now
            self._at(self.now + 1.0, "missed", name)  # its connection breaks, as the leader sees it
            return
        blocks = self.ledger.done_by(name)
        if blocks:  # its sum is handed to the backbone
            self.ledger.transfer(name, blocks, "backbone")
        else:
            self.ledger.drop(name)
        del self.here[name]
        self._spread()

    def _expire(self) -> None:
        if late := self.ledger.expire(self.now):
            for name in late:
                if name in self.here:
                    self.here[name].works_on = ()
            self._spread()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=8)
    parser.add_argument("--people", type=int, default=40)
    parser.add_argument("--devices", type=int, default=91)
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument(
        "--deaths",
        type=float,
        default=0.3,
        help="share of sessions that go without leaving in order",
    )
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--block-rows", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    history = History(options)
    history.run()
    print(report(history))


def report(history: History) -> str:
    """The text to print; the last line is JSON."""
    batch = history.options.batch
    durations = sorted(seconds for _, seconds in history.steps)
    rows = len(history.steps) * batch
    answer = {
        "steps": len(history.steps),
        "steps_per_hour": round(len(history.steps) / (history.now / HOUR), 1),
        "median_step_seconds": round(statistics.median(durations), 1),
        "rows": rows,
        "rows_wasted_share": round(history.rows_wasted / max(rows, 1), 5),
        "rounds_held_again": history.rounds_again,
        "deaths": len(history.waited_for_gone),
        "longest_wait_for_a_peer_that_was_gone_seconds": round(
            max(history.waited_for_gone, default=0.0), 2
        ),
        "estimate_error_seconds_median": round(
            statistics.median(map(abs, history.early)) if history.early else 0.0, 2
        ),
        "refresh_seconds_median": round(statistics.median(history.refreshes), 2),
    }
    lines = [f"{name:48} {value}" for name, value in answer.items()]
    return "\n".join([*lines, json.dumps(answer)])


if __name__ == "__main__":
    main()
