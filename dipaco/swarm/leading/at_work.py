"""Which members may have rows: those that rest get none, as long as others compute.

A member computes as long as its blocks come. One that hangs goes on polling, and keeps its speed:
from when no block of it has come for longer than it needs for one, it does not count, until one
comes. Else a step would wait for it until the others have rested.
"""

import time
from collections.abc import Mapping

from dipaco.swarm.leading.leasing import SECONDS_AT_STAKE
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.planning.hands import Idle
from dipaco.swarm.planning.leases import BlockLedger
from dipaco.swarm.planning.rests import Rests

LOOK_SECONDS = 1.0  # between two looks, at least
MAX_GAP_SECONDS = 5.0  # between two looks; in longer ones there were no rows, or no leader


class AtWork:
    """What a leader has seen of its members' work."""

    def __init__(self) -> None:
        self._rests = Rests()
        self._hanging = Idle()
        self._looked_at = 0.0
        self._step_seconds = 0.0  # of the last step that was closed

    def look(self, members: Mapping[str, GroupMember], ledger: BlockLedger) -> None:
        """Looks once more at who computes, while there are rows of the step to compute."""
        now, since = time.monotonic(), self._looked_at
        if now - since < LOOK_SECONDS:
            return
        self._looked_at = now
        has_rows = now - since < MAX_GAP_SECONDS and not ledger.is_complete
        timed = {name: one for name, one in members.items() if one.seconds_per_block}
        useful = {name: one.useful_at for name, one in timed.items()}
        # What is leased at once, and the mean of the last step, may keep a block from coming.
        limits = {
            name: one.block_deadline_seconds + SECONDS_AT_STAKE + self._step_seconds
            for name, one in timed.items()
        }
        self._hanging.look(useful, has_rows, now, limits)

    def among(self, members: Mapping[str, GroupMember]) -> Mapping[str, GroupMember]:
        """The members that may have rows."""
        computing = {name for name, one in members.items() if one.seconds_per_block}
        return self._rests.at_work(members, computing - self._hanging.sessions, time.monotonic())

    def note_joined(self, session: str, members: Mapping[str, GroupMember]) -> None:
        """A session joins, beside these."""
        self._rests.note_joined(session, members.keys(), time.monotonic())

    def note_failed(self, session: str, step_seconds: float) -> float:
        """A round is held again without it. Returns for how many seconds it rests; 0 = it does not.

        `step_seconds`: that the step has taken so far.
        """
        return self._rests.note_failed(session, time.monotonic(), step_seconds)

    def note_closed(self, senders: Mapping[str, object], step_seconds: float) -> None:
        """A step was closed with the rows of these, after so many seconds."""
        self._step_seconds = step_seconds
        for session in senders:
            self._rests.note_good(session, time.monotonic())
