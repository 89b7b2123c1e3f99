"""Computing time of volunteers, with and without delayed updates, on a virtual clock.

    python tools/bench_overlap.py                          the volunteers of the swarm's storm
    python tools/bench_overlap.py --megabits 10 --megavalues 1 --blocks 96

The leases are the swarm's own (`leading.leasing`): guided shares, backups, parking. A round takes
two halves (a slice is given out when it is whole) over links that carry `--megabits` in each
direction, with the shares that a swarm takes. One backbone has `--backbone-megabits`. Each request
to the leader takes `--request-seconds`, and so does every change until peers know of it. Nothing
dies. Printed: of each way of running, the share of time in which volunteers computed blocks that
counted, and seconds for a step. The last line is one JSON object.
"""

import argparse
import heapq
import itertools
import json
from collections.abc import Sequence
from typing import Any

from support.command_line import parser_of

from dipaco.swarm.leading import leasing
from dipaco.swarm.leading.leasing import WorkLease, lease_rows
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.leading.step_rows import StepRows
from dipaco.swarm.network.messages import JoinRequest
from dipaco.swarm.planning.shares import Link, shares_of_links

MEGABIT_BYTES = 125_000.0
WARM_STEPS = 3  # The first steps, which only time the peers.


class VirtualClock:
    """Takes the place of `time` in the leases."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Pipeline:
    """Peers that ask, compute and report, and rounds that average, step after step.

    Args:
      block_seconds: of each peer.
      num_blocks: of a step.
      round_seconds: of an averaging.
      request_seconds: of a request, and until a peer knows what has changed.
      is_late: whether updates are delayed.
      clock: of the leases.
    """

    def __init__(
        self,
        block_seconds: Sequence[float],
        num_blocks: int,
        round_seconds: float,
        request_seconds: float,
        clock: VirtualClock,
        *,
        is_late: bool,
    ):
        self._seconds = {f"peer{i}": each for i, each in enumerate(block_seconds)}
        self._num_blocks, self._is_late, self._clock = num_blocks, is_late, clock
        self._round_seconds, self._request_seconds = round_seconds, request_seconds
        request = JoinRequest(version="", address=None, computes=True, holds_state=True)
        certificate: Any = None
        self._members = {name: GroupMember(name, certificate, request) for name in self._seconds}
        self._events: list[tuple[float, int, str, str, Any]] = []
        self._ties = itertools.count()
        self._asked_at: dict[str, int] = dict.fromkeys(self._seconds, 0)  # the newest request
        self._open(0)
        self.closed_at: list[float] = []
        self.counted: dict[str, list[float]] = {name: [] for name in self._seconds}

    def run(self, num_steps: int) -> None:
        """Takes so many steps."""
        for name in self._seconds:
            self._ask(name, 0.0)
        while len(self.closed_at) < num_steps:
            self._clock.now, _, kind, name, what = heapq.heappop(self._events)
            if kind == "close":
                self._close()
            elif kind == "ask" and what == self._asked_at[name]:
                self._lease(name)
            elif kind == "done":
                self._report(name, *what)

    def share_computing(self) -> float:
        """The share of time in blocks that counted, each at its peer's speed, after the first
        steps.
        """
        since, until = self.closed_at[WARM_STEPS - 1], self.closed_at[-1]
        busy = sum(
            self._seconds[name] * sum(since < at <= until for at in of)
            for name, of in self.counted.items()
        )
        return busy / (len(self._seconds) * (until - since))

    def step_seconds(self) -> float:
        first, last = self.closed_at[WARM_STEPS - 1], self.closed_at[-1]
        return (last - first) / (len(self.closed_at) - WARM_STEPS)

    def _open(self, step: int) -> None:
        self._step, self._is_averaging = step, False
        has_next = getattr(self, "_rows", [])[1:]
        before = has_next or [self._rows_of(step)]
        self._rows = [*before, self._rows_of(step + 1)] if self._is_late else before
        for member in self._members.values():
            member.bases = tuple(rows.lineage for rows in self._rows)

    def _rows_of(self, step: int) -> StepRows:
        return StepRows(step, [1.0] * self._num_blocks, lineage=str(step))

    def _at(self, seconds: float, kind: str, name: str = "", what: Any = None) -> None:
        heapq.heappush(
            self._events, (self._clock.now + seconds, next(self._ties), kind, name, what)
        )

    def _ask(self, name: str, seconds: float) -> None:
        self._asked_at[name] += 1
        self._at(seconds, "ask", name, self._asked_at[name])

    def _lease(self, name: str) -> None:
        among = self._rows[1:] if self._is_averaging else self._rows
        lease = WorkLease(ask_again_seconds=1.0)
        if among:
            lease = lease_rows(among, self._members, self._members[name], lambda sentence: None)
        if not lease.blocks:
            self._ask(name, lease.ask_again_seconds)
            return
        self._asked_at[name] += 1  # it is busy
        for number, block in enumerate(lease.blocks, start=1):
            is_last = number == len(lease.blocks)
            seconds = self._request_seconds + number * self._seconds[name]
            self._at(seconds, "done", name, (lease.step, block, is_last))

    def _report(self, name: str, step: int, block: int, is_last: bool) -> None:
        self._members[name].time_block(self._seconds[name])
        for rows in self._rows:
            if rows.step == step and block not in rows.ledger.done_by(name):
                counts = rows.ledger.finish(name, block)
                self.counted[name] += [self._clock.now] * counts
        if self._rows[0].ledger.is_complete and not self._is_averaging:
            self._begin_round()
        if is_last:
            self._ask(name, 0.0)

    def _begin_round(self) -> None:
        self._is_averaging = True
        self._at(self._round_seconds + self._request_seconds, "close")

    def _close(self) -> None:
        self.closed_at.append(self._clock.now)
        self._open(self._step + 1)
        busy = {event[3] for event in self._events if event[2] == "done"}
        for name in self._seconds.keys() - busy:
            self._ask(name, self._request_seconds)
        if self._rows[0].ledger.is_complete:
            self._begin_round()


def round_seconds(links: Sequence[Link], num_bytes: float) -> float:
    """Duration of an averaging of so many bytes. Parts go to the reducers, then the means come
    back.
    """
    share = shares_of_links(links)
    senders, receivers = (
        sum(getattr(one, name) for one in links) for name in ("sends", "receives")
    )
    halves = [0.0, 0.0]
    for one, own in zip(links, share, strict=True):
        out, back = one.sends * (1 - own), (senders - one.sends) * own
        halves[0] = max(halves[0], out / one.up, back / one.down)
        out, back = (receivers - one.receives) * own, one.receives * (1 - own)
        halves[1] = max(halves[1], out / one.up, back / one.down)
    return num_bytes * sum(halves)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--block-seconds", type=float, nargs="+", default=[0.8, 1.2, 0.4, 0.8, 1.2], metavar="S"
    )
    parser.add_argument("--blocks", type=int, default=32, help="of a step")
    parser.add_argument("--megabits", type=float, default=100.0, help="of each volunteer")
    parser.add_argument("--backbone-megabits", type=float, default=100.0)
    parser.add_argument("--megavalues", type=float, default=0.03, help="of the path, float32")
    parser.add_argument("--request-seconds", type=float, default=0.05)
    parser.add_argument("--steps", type=int, default=40)
    print(json.dumps(compared(parser.parse_args())))


def compared(options: argparse.Namespace) -> dict[str, Any]:
    """Prints a table of both ways of running."""
    own, back = (MEGABIT_BYTES * each for each in (options.megabits, options.backbone_megabits))
    links = [Link(up=own, down=own) for _ in options.block_seconds]
    links.append(Link(up=back, down=back, sends=False))
    seconds = round_seconds(links, 4e6 * options.megavalues)
    answer: dict[str, Any] = {"round_seconds": round(seconds, 3)}
    print("| updates | computing | seconds a step |\n| :-- | --: | --: |")
    clock = VirtualClock()
    real, leasing.time = leasing.time, clock  # ty: ignore[invalid-assignment]
    try:
        for name, is_late in (("plain", False), ("delayed", True)):
            clock.now = 0.0
            pipeline = Pipeline(
                options.block_seconds,
                options.blocks,
                seconds,
                options.request_seconds,
                clock,
                is_late=is_late,
            )
            pipeline.run(options.steps)
            share, of_step = pipeline.share_computing(), pipeline.step_seconds()
            print(f"| {name} | {share:.1%} | {of_step:.2f} |")
            answer[name] = {
                "computing": round(float(share), 4),
                "step_seconds": round(float(of_step), 4),
            }
    finally:
        leasing.time = real
    return answer


if __name__ == "__main__":
    main()
