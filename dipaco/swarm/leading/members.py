"""The members of a group, as its leader knows them: their speeds, links and status."""

import dataclasses
import math
import time
from typing import Any

from dipaco.control.members.swarms import PROVED
from dipaco.swarm.leading.step_rows import StepRows
from dipaco.swarm.network.credentials import Certificate
from dipaco.swarm.network.messages import JoinRequest, PollRequest, StatePosition
from dipaco.swarm.planning.shares import Link
from dipaco.swarm.planning.timing import Durations, Rate

SECONDS_AT_STAKE = 20.0  # limit of a peer's work that is leased at once
ASSUMED_BLOCK_SECONDS = 60.0  # for a member that was not timed yet
ASSUMED_BYTES_PER_SECOND = 12.5e6  # 100 Mbit/s, before anything was declared or measured
MIN_BYTES_PER_SECOND, MAX_BYTES_PER_SECOND = 1e4, 1e11  # range in which a peer's word is believed


@dataclasses.dataclass
class GroupMember:
    """One peer, from when it joins until it leaves."""

    name: str
    certificate: Certificate
    join_request: JoinRequest
    joined_at: float = dataclasses.field(default_factory=lambda: time.monotonic())
    open_polls: int = 0  # its requests that wait for the group's state to change
    has_hung_up: bool = False  # its last poll was cut off, not answered
    silent_since: float = dataclasses.field(default_factory=lambda: time.monotonic())
    silences: Durations = dataclasses.field(default_factory=Durations)
    block_seconds: Durations = dataclasses.field(default_factory=Durations)
    blocks_per_second: Rate = dataclasses.field(default_factory=Rate)
    block_began_at: float | None = None  # when its last lease or report came, by this clock
    leased_step: int = -1  # the step of its last lease
    untimed: frozenset[int] = frozenset()  # blocks of it that have not come
    last_poll: PollRequest | None = None
    # When its last block arrived, or when it last asked for rows of the step that it could compute,
    # and there were none for it.
    useful_at: float = -math.inf
    works_at: str = ""  # lineage of the state that it computes from, by its last request
    counted: int = 0  # blocks that went into a step
    # (step, time) since when it is too slow for the rest of the step; None = it is not.
    parked_since: tuple[int, float] | None = None

    @property
    def address(self) -> str | None:
        return self.join_request.address

    @property
    def seconds_per_block(self) -> float:
        """Seconds per block; zero before a block was timed."""
        rate = self.blocks_per_second.per_second
        return 1.0 / rate if rate else 0.0

    @property
    def block_deadline_seconds(self) -> float:
        """Deadline for one block, from the timed blocks."""
        return self.block_seconds.deadline_seconds(ASSUMED_BLOCK_SECONDS)

    def time_next_block(self, block: int) -> None:
        """Notes that a leased block has come. It is timed once, by the leader's clock alone."""
        if block in self.untimed and (began_at := self.block_began_at) is not None:
            self.untimed -= {block}
            self.block_began_at = time.monotonic()
            self.time_block(self.block_began_at - began_at)

    def time_late_block(self, step: int) -> None:
        """Notes that a block of its last lease came after its step, since this one has begun."""
        if self.untimed and self.leased_step < step:
            self.time_next_block(min(self.untimed))
            self.untimed = frozenset()

    def note_unfinished(self, step: int) -> None:
        """A step closes without some of its blocks. It takes as long for one, or longer."""
        if self.untimed and self.leased_step == step and self.block_began_at is not None:
            seconds = time.monotonic() - self.block_began_at
            if seconds > self.seconds_per_block:
                self.blocks_per_second = self.blocks_per_second.after(1, seconds)

    def time_block(self, seconds: float) -> None:
        """Notes one more computed block."""
        self.block_seconds.add(seconds)
        self.useful_at = time.monotonic()
        self.blocks_per_second = self.blocks_per_second.after(1, max(seconds, 1e-6))

    def poll_begins(self, poll: PollRequest) -> None:
        if self.open_polls == 0:
            self.silences.add(time.monotonic() - self.silent_since)
        self.open_polls += 1
        self.has_hung_up = False
        self.last_poll = poll

    def poll_ends(self) -> None:
        self.open_polls -= 1
        self.silent_since = time.monotonic()

    def silent_seconds(self) -> float:
        return 0.0 if self.open_polls > 0 else time.monotonic() - self.silent_since

    def is_at(self, position: StatePosition) -> bool:
        return self.last_poll is not None and self.last_poll.position == position

    def has_come_to(self, position: StatePosition) -> bool:
        """True if it has that state, or a later one of the same phase."""
        poll = self.last_poll
        return poll is not None and poll.origin == position.origin and poll.step >= position.step

    def holds(self, lineage: str) -> bool:
        """True if it has that state."""
        poll = self.last_poll
        return lineage == self.works_at or (poll is not None and lineage == poll.lineage)

    def can_donate(self, position: StatePosition) -> bool:
        """True if others can fetch that state from it. A peer that took no step with the group may
        hold a state that it was given, not one that it computed.
        """
        poll = self.last_poll
        return (
            self.address is not None
            and poll is not None
            and self.is_at(position)
            and poll.steps_taken > 0
        )

    def link(self, *, sends: bool, can_reduce: bool, slowdown: float = 1.0) -> Link:
        """Its measured link, or else the declared one, which is believed up to a common one."""
        declared = _possible(self.join_request.bytes_per_second) or ASSUMED_BYTES_PER_SECOND
        declared = min(declared, ASSUMED_BYTES_PER_SECOND)
        up = down = 0.0
        if self.last_poll is not None:
            up = _possible(self.last_poll.up_bytes_per_second)
            down = _possible(self.last_poll.down_bytes_per_second)
        return Link(
            up=max((up or declared) / slowdown, MIN_BYTES_PER_SECOND),
            down=max((down or declared) / slowdown, MIN_BYTES_PER_SECOND),
            can_reduce=can_reduce and self.address is not None,
            sends=sends,
        )


def _possible(per_second: float) -> float:
    """A peer's declared speed if it is possible, or else 0."""
    if not math.isfinite(per_second) or per_second < 0:
        return 0.0
    return min(per_second, MAX_BYTES_PER_SECOND)


WHY = {  # a machine has no rows, by what it does
    "is parked": "parked: too slow for these steps",
    "is suspended": "suspended: two averagings in a row did not end with it",
}


def status_of(
    member: GroupMember, block_rows: int, rows: StepRows, *, is_suspended: bool
) -> dict[str, Any]:
    """The member's status as JSON values."""
    kind = kind_of(member.join_request).strip(" ()") or "computes"
    does = _what_it_does(member, rows, is_suspended=is_suspended)
    return {
        "kind": f"{kind}, {WHY[does]}" if does in WHY else kind,
        "computes": member.join_request.computes,
        "does": does,
        "samples_per_second": member.blocks_per_second.per_second * block_rows,
        "samples": member.counted * block_rows,
        "bytes_up": member.last_poll.bytes_up if member.last_poll else 0,
        "bytes_down": member.last_poll.bytes_down if member.last_poll else 0,
        "seconds": time.monotonic() - member.joined_at,
        "address": member.address,
    }


def _what_it_does(member: GroupMember, rows: StepRows, *, is_suspended: bool) -> str:
    if not member.join_request.computes:
        return "adds up"
    if rows.ledger.held_by(member.name):
        return "computes"
    if is_suspended:
        return "is suspended"
    if member.parked_since is not None:
        return "is parked"
    is_in_round = rows.ledger.is_complete and member.name in rows.ledger.blocks_by_peer
    return "averages" if is_in_round else "waits"


def locked_sentence(name: str, reasons: tuple[str, ...]) -> str:
    """The reason why a credential is not let in, for its holder and for `dipaco status`."""
    for reason in reasons:
        if reason.startswith(PROVED):
            return f"the credential of {name} is locked: {reason}"
    return (
        f"the credential of {name} is locked: {len(reasons)} of its sessions were refused, the "
        f"last since {reasons[-1]}. Ask for a new one"
    )


def kind_of(request: JoinRequest) -> str:
    """ " (a client)", or nothing."""
    if not request.computes:
        return " (a backbone)"
    return "" if request.address else " (a client)"
