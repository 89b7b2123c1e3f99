"""The members of a group, as its leader knows them, and the rows of the step that each has.

Rows are leased in blocks. When a member leaves or is removed, its blocks are free again and others
compute them. A member that leaves in order gives its sum to the leader: the *departed sum*.
"""

import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NoReturn

from dipaco.control.members.swarms import is_locking
from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.leading.leasing import MIN_WAIT_SECONDS, lease_rows
from dipaco.swarm.leading.members import (
    SECONDS_AT_STAKE,
    GroupMember,
    kind_of,
    locked_sentence,
    status_of,
)
from dipaco.swarm.leading.step_rows import StepRows
from dipaco.swarm.network.credentials import Certificate
from dipaco.swarm.network.messages import UNKNOWN_PEER, BlockResult, JoinRequest, WorkReply
from dipaco.swarm.network.streams import Signal
from dipaco.swarm.planning.checks import Evidence
from dipaco.swarm.planning.leases import BlockLedger
from dipaco.swarm.planning.track_records import Suspensions
from dipaco.swarm.training.compute import GroupSettings

CHECK_SECONDS = 0.1  # between two looks at the members
ADOPTION_SECONDS = 1.5  # Longest wait after a change of leader, for peers to bring their sums.
# Shortest limit from the answer of a poll to the next poll. A connection takes three round trips,
# in each of which a router at home may keep a packet for a second while a gradient goes through it.
# If the poll was cut off, the peer's process has mostly ended: `MIN_WAIT_SECONDS`.
QUIET_SECONDS = 5.0
DEPARTED_SHOWN = 20

OnBanned = Callable[[Certificate, str, str, Evidence | None], tuple[str, ...]]


class SwarmGroup:
    """The members, and the ledger of the current step. `on_banned`: called with (certificate,
    session, reason, evidence of a lie) when a session is refused for good. Returns the reasons of
    all refused sessions of that certificate, or nothing if they are not known.
    """

    def __init__(
        self,
        name: str,
        settings: GroupSettings,
        say: Callable[[str], None],
        on_refused: Callable[[str, str], None],
        on_banned: OnBanned = lambda certificate, session, reason, evidence: (),
    ):
        self._name, self._settings = name, settings
        self._say, self._on_refused, self._on_banned = say, on_refused, on_banned
        self.members: dict[str, GroupMember] = {}
        self.departed: dict[str, str] = {}  # member -> why it is gone
        self.banned: dict[str, str] = {}  # session -> reason
        # serial of a credential -> reasons of its sessions
        self.refusals: dict[str, tuple[str, ...]] = {}
        self._certificates: dict[str, Certificate] = {}  # includes members that left the step
        self.rows = StepRows(-1, ())  # rows of the present step
        self._suspensions = Suspensions()
        self._step_seconds = 0.0  # duration of the last closed step
        self._resumed_at = time.monotonic()  # when the step began, or its last round failed
        self.changed = Signal()  # set by the ledger or the members
        self._has_woken, self._adoption_ends = False, 0.0
        self._to_bring: set[str] = set()  # known peers that may still bring sums
        self._checked_at = time.monotonic()  # when silent members were last looked for

    def begin_step(
        self,
        step: int,
        targets: Sequence[float],
        *,
        last_senders: Set[str] | None = None,
        **at: Any,
    ) -> None:
        """Begins a step. Each block has so many targets. `last_senders`: who sent in the last round
        of another backbone that has led this step until now, and may bring sums; empty if they are
        not known. None: this leader goes on. `at`: the arguments of `StepRows`.
        """
        self.rows, self._has_woken = StepRows(step, targets, **at), False
        self._resumed_at = time.monotonic()
        self._certificates = {name: one.certificate for name, one in self.members.items()}
        self._adoption_ends, self._to_bring = 0.0, set()
        if last_senders is not None:
            self._adoption_ends = time.monotonic() + ADOPTION_SECONDS
            # A name that nobody has stands for unknown senders.
            self._to_bring = set(last_senders) or {""}

    @property
    def ledger(self) -> BlockLedger:
        return self.rows.ledger

    # --- members -------------------------------------------------------------------------------

    def add_member(self, name: str, certificate: Certificate, join_request: JoinRequest) -> None:
        """A peer joins. Blocks that it had before under this name are free again."""
        self.rows.drop(name)
        self._suspensions.note_joined(name, self.members.keys(), time.monotonic())
        self.members[name] = GroupMember(name, certificate, join_request)
        self._certificates[name] = certificate
        self.departed.pop(name, None)
        self._say(f"{name} has joined{kind_of(join_request)}")

    def member(self, name: str) -> GroupMember:
        """Raises `SwarmRefuses` if it is banned or not known."""
        self.check_not_banned(name)
        if name not in self.members:
            raise SwarmRefuses(reason=UNKNOWN_PEER)
        return self.members[name]

    def check_not_banned(self, name: str) -> None:
        """Raises `SwarmRefuses`."""
        if name in self.banned:
            raise SwarmRefuses(reason=self.banned[name])

    def check_not_locked(self, certificate: Certificate) -> None:
        """Raises `SwarmRefuses`."""
        reasons = self.refusals.get(certificate.serial, ())
        if is_locking(reasons):
            raise SwarmRefuses(reason=locked_sentence(certificate.name, reasons))

    def remove(self, name: str, reason: str) -> None:
        """Removes a member. Its blocks are free again."""
        member = self.members.pop(name, None)
        freed, self._has_woken = self.rows.drop(name), False
        if member is not None:
            self.departed[name] = reason
            self._say(f"{name} is gone: {reason}" + (f"; {len(freed)} blocks" if freed else ""))
        self.changed.set()

    def remove_failed(self, name: str, reason: str, *, counts: bool = True) -> None:
        """Removes a member that kept a round from ending. Its sum is not adopted in this step.
        `counts`: true if repeated failures suspend it.
        """
        self.rows.failed.add(name)
        self._resumed_at = now = time.monotonic()
        if counts and (rest := self._suspensions.note_failed(name, now, self.rows.seconds)):
            self._say(f"{name} held up rounds: no rows for {rest:.0f} s where others compute")
        self.remove(name, reason)

    def ban(self, name: str, reason: str, evidence: Evidence | None = None) -> None:
        """Refuses a session for good, even if it has left in this step. A credential is locked by
        its third banned session, or by the first that the leader has found to lie.
        """
        is_first = name not in self.banned
        self.banned[name] = reason
        if is_first and (certificate := self._certificates.get(name)) is not None:
            serial = certificate.serial
            reasons = self._on_banned(certificate, name, reason, evidence)
            before = self.refusals.get(serial, ())
            self.refusals[serial] = reasons or (*before, reason)
            if is_locking(self.refusals[serial]) and not is_locking(before):
                self._say(f"the credential of {certificate.name} is locked")
                for one in list(self.members.values()):
                    if one.certificate.serial == serial:
                        self.remove(one.name, f"refused: {reason}")
        self._on_refused(name, reason)
        self.remove(name, f"refused: {reason}")

    def check_members(self) -> None:
        """Removes members that are silent for too long, and frees blocks whose leases ran out."""
        for name in self.silent_members():
            self.remove(name, "it fell silent")
        for name, blocks in self.ledger.expire(time.monotonic()).items():
            self._say(f"{name} is late with {len(blocks)} blocks; others get them")

    def silent_members(self) -> list[str]:
        """Members that have not polled for longer than usual, allowing for a busy link. Time in
        which this process itself did not run does not count.
        """
        now = time.monotonic()
        away_seconds = now - self._checked_at - 2 * CHECK_SECONDS
        self._checked_at, found = now, []
        if away_seconds > 0:
            for member in self.members.values():
                member.silent_since = min(now, member.silent_since + away_seconds)
        for name, member in self.members.items():
            least_seconds = MIN_WAIT_SECONDS if member.has_hung_up else QUIET_SECONDS
            limit_seconds = max(least_seconds, member.silences.deadline_seconds(0.3))
            if member.silent_seconds() > limit_seconds:
                found.append(name)
        return found

    def should_wake(self) -> bool:
        """True if idle members should ask for work: once when the adoption ends, and once when
        blocks are free again.
        """
        if self._is_adopting:
            return False
        if self._adoption_ends:
            self._adoption_ends = 0.0
            return True
        if self._has_woken or not (self.ledger.num_free and self.ledger.num_done):
            return False
        self._has_woken = any(
            member.join_request.computes and not self.ledger.held_by(name)
            for name, member in self.members.items()
        )
        return self._has_woken

    def active_members(self) -> Mapping[str, GroupMember]:
        """The members that may have rows: those that are not suspended, or all of them if none of
        those computes. A member computes as long as its blocks arrive. One that hangs goes on
        polling, and keeps its speed, and a step would wait for it.
        """
        now, members = time.monotonic(), self.members
        is_suspended = self._suspensions.is_suspended
        active = {name: one for name, one in members.items() if not is_suspended(name, now)}

        def computes(one: GroupMember) -> bool:
            # A block may be delayed by others of the same lease, and by the last step's mean.
            limit = one.block_deadline_seconds + SECONDS_AT_STAKE + self._step_seconds
            hangs = now - max(one.useful_at, self._resumed_at) > limit
            return bool(one.seconds_per_block) and not hangs

        return active if any(map(computes, active.values())) else members

    # --- rows ----------------------------------------------------------------------------------

    def lease(self, member: GroupMember) -> WorkReply:
        """Leases blocks to a member; none while peers still bring their sums."""
        self._to_bring.discard(member.name)  # it would have brought its sum first
        if self._is_adopting:
            return WorkReply()
        lease = lease_rows(self.rows, self.active_members(), member, self._say)
        self.rows.leased |= {(member.name, block) for block in lease.blocks}
        if lease.blocks:
            member.leased_step, member.untimed = lease.step, frozenset(lease.blocks)
            member.block_began_at = time.monotonic()
        elif not self.ledger.held_by(member.name):
            member.useful_at = time.monotonic()
        return lease

    def accept(self, member: GroupMember, done: BlockResult) -> bool:
        """True if a block that a member has computed counts. Raises `SwarmRefuses`, and bans the
        member: the block was never leased to it, or the result is impossible.
        """
        rows = self.rows
        self._check(member, done)
        if (member.name, done.block) not in rows.leased:
            self._ban(member, f"it claims rows of block {done.block}, which it never had")
        counts = rows.ledger.finish(member.name, done.block)
        member.time_next_block(done.block)  # it may be too slow for its blocks to count
        if counts:
            rows.losses[done.block] = done.loss
        return counts

    def adopt(self, member: GroupMember, done: Sequence[BlockResult]) -> bool:
        """True if a sum that a peer brings counts: it was computed for the last leader of this very
        step, or for this one before the peer was removed. The peer only gets blocks that are free.
        Raises `SwarmRefuses`, and bans the member: a result is impossible.
        """
        rows = self.rows
        for one in done:
            self._check(member, one)
        blocks = {one.block for one in done}
        leased = {(member.name, block) for block in blocks}
        did_before = blocks <= set(rows.ledger.done_by(member.name))
        is_own = leased <= rows.leased and member.name not in rows.failed
        if not (self._is_adopting or is_own):
            return False
        if not rows.ledger.adopt(member.name, blocks):
            return False
        rows.losses |= {one.block: one.loss for one in done}
        rows.leased |= leased
        if not did_before:
            self._say(f"{member.name} comes with {len(blocks)} blocks of this step")
        self.changed.set()
        return True

    @property
    def _is_adopting(self) -> bool:
        return bool(self._to_bring) and time.monotonic() < self._adoption_ends

    def _check(self, member: GroupMember, done: BlockResult) -> None:
        """Raises `SwarmRefuses` if that block cannot have this result. The member is banned."""
        if problem := self.rows.problem_with(done):
            self._ban(member, problem)

    def _ban(self, member: GroupMember, reason: str) -> NoReturn:
        self.ban(member.name, reason)
        raise SwarmRefuses(reason=reason)

    def drop_sum(self, name: str) -> None:
        """A member has lost its sum, so the blocks in it are free again."""
        self.rows.drop(name)
        self.changed.set()

    def count(self, blocks_by_peer: Mapping[str, Sequence[int]]) -> None:
        """A step is closed with these blocks of each peer."""
        self._step_seconds = self.rows.seconds
        for member in self.members.values():
            member.note_unfinished(self.rows.step)
        for name, blocks in blocks_by_peer.items():
            self._suspensions.note_good(name, time.monotonic())
            if name in self.members:
                self.members[name].counted += len(blocks)

    # --- status --------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The JSON values that `dipaco status` shows."""
        rows, active = self._settings.samples_in_block, self.active_members()
        return {
            "samples": self.ledger.num_done * rows,
            "target": self._settings.inner.batch_size * self._settings.local_steps,
            "samples_per_second": rows
            * sum(
                one.blocks_per_second.per_second
                for one in self.members.values()
                if one.join_request.computes
            ),
            "peers": {
                name: status_of(member, rows, self.rows, is_suspended=name not in active)
                for name, member in sorted(self.members.items())
            },
            "gone": dict(list(self.departed.items())[-DEPARTED_SHOWN:]),
        }
