"""Who takes part, as the leader knows it."""

import dataclasses
import time

from dipaco.swarm.network.credentials import Certificate
from dipaco.swarm.network.messages import JoinRequest, PollRequest
from dipaco.swarm.planning.deadlines import Durations
from dipaco.swarm.planning.progress import ProgressReport, Rate
from dipaco.swarm.planning.shares import Link

ASSUMED_BYTES_PER_SECOND = 12.5e6  # 100 Mbit/s, before anything was said or seen
MIN_BYTES_PER_SECOND = 1e4


@dataclasses.dataclass
class GroupMember:
    """One peer, from its hello to its goodbye."""

    name: str
    certificate: Certificate
    join_request: JoinRequest
    joined_at: float = dataclasses.field(default_factory=time.monotonic)
    open_polls: int = 0  # questions of it that wait for the board to change
    silent_since: float = dataclasses.field(default_factory=time.monotonic)
    silences: Durations = dataclasses.field(default_factory=Durations)
    block_seconds: Durations = dataclasses.field(default_factory=Durations)
    blocks_per_second: Rate = dataclasses.field(default_factory=Rate)
    last_poll: PollRequest | None = None
    blocks_done: int = 0
    counted: int = 0  # blocks that went into a step
    reduced: int = 0  # slices that it added up

    @property
    def address(self) -> str | None:
        return self.join_request.address

    def listens(self, last_poll: PollRequest) -> None:
        if self.open_polls == 0:
            self.silences.add(time.monotonic() - self.silent_since)
        self.open_polls += 1
        self.last_poll = last_poll

    def falls_silent(self) -> None:
        self.open_polls -= 1
        self.silent_since = time.monotonic()

    def silent_seconds(self) -> float:
        return 0.0 if self.open_polls > 0 else time.monotonic() - self.silent_since

    def is_at(self, position: tuple[str, int, str]) -> bool:
        last_poll = self.last_poll
        return (
            last_poll is not None
            and (last_poll.origin, last_poll.step, last_poll.lineage) == position
        )

    def link(self, *, sends: bool, can_reduce: bool, slowed: float = 1.0) -> Link:
        """What was measured; before that, what it says; before that, what is common. `slowed`: it
        was late, and is believed to be that much slower.
        """
        declared = self.join_request.bytes_per_second or ASSUMED_BYTES_PER_SECOND
        up = down = 0.0
        if self.last_poll is not None:
            up, down = self.last_poll.up_bytes_per_second, self.last_poll.down_bytes_per_second
        return Link(
            up=max((up or declared) / slowed, MIN_BYTES_PER_SECOND),
            down=max((down or declared) / slowed, MIN_BYTES_PER_SECOND),
            can_reduce=can_reduce and self.address is not None,
            sends=sends,
            receives=self.join_request.holds_state,
        )

    def report(
        self, samples: int, block_rows: int, now: float, *, is_current: bool
    ) -> ProgressReport:
        return ProgressReport(
            samples=samples,
            samples_per_second=self.blocks_per_second.per_second * block_rows,
            at_seconds=now,
            is_current=is_current,
        )
