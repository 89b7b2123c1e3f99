"""Chooses the members that may have rows: suspended ones get none while others compute.

A member computes as long as its blocks arrive. A stalled member goes on polling, and keeps its
speed. If no block of it has arrived for longer than it needs for one, it does not count until one
arrives. Otherwise a step would wait for it while the others are suspended.
"""

import time
from collections.abc import Mapping

from dipaco.swarm.leading.leasing import SECONDS_AT_STAKE
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.planning.leases import BlockLedger
from dipaco.swarm.planning.suspensions import Suspensions
from dipaco.swarm.planning.volunteers_seen import IdleVolunteers

LOOK_SECONDS = 1.0  # shortest time between two looks
# Longest time between two looks. In longer gaps there were no rows, or no leader.
MAX_GAP_SECONDS = 5.0


class ActiveMembers:
    """A leader's record of its members' work."""

    def __init__(self) -> None:
        self._suspensions = Suspensions()
        self._stalled = IdleVolunteers()
        self._looked_at = 0.0
        self._step_seconds = 0.0  # duration of the last closed step

    def look(self, members: Mapping[str, GroupMember], ledger: BlockLedger) -> None:
        """Looks once more which members compute, while the step has rows to compute."""
        now, since = time.monotonic(), self._looked_at
        if now - since < LOOK_SECONDS:
            return
        self._looked_at = now
        has_rows = now - since < MAX_GAP_SECONDS and not ledger.is_complete
        timed = {name: one for name, one in members.items() if one.seconds_per_block}
        useful = {name: one.useful_at for name, one in timed.items()}
        # A block may be delayed by others of the same lease, and by the mean of the last step.
        limits = {
            name: one.block_deadline_seconds + SECONDS_AT_STAKE + self._step_seconds
            for name, one in timed.items()
        }
        self._stalled.look(useful, has_rows, now, limits)

    def among(self, members: Mapping[str, GroupMember]) -> Mapping[str, GroupMember]:
        """The members that may have rows."""
        computing = {name for name, one in members.items() if one.seconds_per_block}
        return self._suspensions.active(
            members, computing - self._stalled.sessions, time.monotonic()
        )

    def note_joined(self, session: str, members: Mapping[str, GroupMember]) -> None:
        """A session joins beside these members."""
        self._suspensions.note_joined(session, members.keys(), time.monotonic())

    def note_failed(self, session: str, step_seconds: float) -> float:
        """A round is held again without this session. Returns seconds of suspension; 0 = none.

        `step_seconds` is the time that the step has taken so far.
        """
        return self._suspensions.note_failed(session, time.monotonic(), step_seconds)

    def note_closed(self, senders: Mapping[str, object], step_seconds: float) -> None:
        """A step was closed after so many seconds, with rows from these senders."""
        self._step_seconds = step_seconds
        for session in senders:
            self._suspensions.note_good(session, time.monotonic())
