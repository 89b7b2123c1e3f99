"""What the past says of members: who is suspended, who adds up nothing for a while, who is idle,
and whether a path has volunteers at all. Time is any clock in seconds.

A failed session is removed, joins again, and would get rows of the same step. After some failed
rounds in a row it is suspended, for a multiple of the time it held up the step, at first ten. It
therefore costs the others at most an eleventh of their time, whatever it does. Time that its own
suspension added is not counted as held up. A new session continues the worst record among its
holder's sessions, and clears the records of those that are gone.
"""

import functools
import math
from collections.abc import Collection, Mapping, Set
from typing import NamedTuple, TypeVar

FAILED_ROUNDS = 2  # failed rounds in a row before a session is suspended
# Length in times of the delay it caused. Each further failed round doubles it.
SUSPENSION_FACTOR = 10.0
# A suspension is longer only if a step was held up for a tenth of it.
MAX_SUSPENSION_SECONDS = 3600.0

_Member = TypeVar("_Member")


class _Failures(NamedTuple):
    """The record of one session."""

    failed_rounds: int = 0  # A good round takes one off.
    # End of its suspension. If it is not suspended, when it was seen last.
    until_seconds: float = 0.0
    suspension_ends_seconds: float = -math.inf  # end of its last suspension, even if it is over


class Suspensions:
    """The leader's record of sessions ("name/number")."""

    def __init__(self) -> None:
        self._seen: dict[str, _Failures] = {}

    def note_joined(self, session: str, members: Set[str], now_seconds: float) -> None:
        """A session joins beside these members. It inherits the records of its holder's sessions
        that are gone. Sessions that did not come back for `MAX_SUSPENSION_SECONDS` are forgotten.
        """
        seen, holder = self._of(session), holder_of(session)
        for one in self._seen.keys() - members - {session}:
            its = self._seen[one]
            if now_seconds > its.until_seconds + MAX_SUSPENSION_SECONDS:
                del self._seen[one]
            elif holder_of(one) == holder:
                seen = _worst(seen, its)
                del self._seen[one]
        self._seen[session] = seen._replace(until_seconds=max(seen.until_seconds, now_seconds))

    def note_failed(self, session: str, now_seconds: float, step_seconds: float) -> float:
        """A round is held again without this session. Returns seconds of suspension; 0 = none.
        `step_seconds`: the time that the step has taken so far.
        """
        before = self._of(session)
        times = before.failed_rounds + 1
        if times < FAILED_ROUNDS:
            self._seen[session] = before._replace(failed_rounds=times, until_seconds=now_seconds)
            return 0.0
        held_up = step_seconds
        if now_seconds >= before.suspension_ends_seconds:  # else it had rows all the same
            held_up = min(held_up, now_seconds - before.suspension_ends_seconds)
        doubled = SUSPENSION_FACTOR * held_up * 2.0 ** min(times - FAILED_ROUNDS, 16)
        seconds = min(doubled, max(MAX_SUSPENSION_SECONDS, SUSPENSION_FACTOR * held_up))
        self._seen[session] = _Failures(times, now_seconds + seconds, now_seconds + seconds)
        return seconds

    def note_good(self, session: str, now_seconds: float) -> None:
        """A step was closed with the session's rows, so its suspension ends."""
        before = self._of(session)
        ends = min(now_seconds, before.suspension_ends_seconds)
        self._seen[session] = _Failures(max(0, before.failed_rounds - 1), now_seconds, ends)

    def is_suspended(self, session: str, now_seconds: float) -> bool:
        """True if the session is to get no rows while others do."""
        return now_seconds < self._of(session).until_seconds

    def active(
        self, sessions: Mapping[str, _Member], computing: Set[str], now_seconds: float
    ) -> Mapping[str, _Member]:
        """The members that are not suspended, or all of them if none of those computes."""
        active = {
            name: one for name, one in sessions.items() if not self.is_suspended(name, now_seconds)
        }
        return active if computing & active.keys() else sessions

    def _of(self, session: str) -> _Failures:
        """The record of a session. A new session has the worst record of its holder's sessions."""
        if session in self._seen:
            return self._seen[session]
        holder = holder_of(session)
        of_holder = (seen for one, seen in self._seen.items() if holder_of(one) == holder)
        return functools.reduce(_worst, of_holder, _Failures())


def _worst(one: _Failures, other: _Failures) -> _Failures:
    return _Failures(
        max(one.failed_rounds, other.failed_rounds),
        max(one.until_seconds, other.until_seconds),
        max(one.suspension_ends_seconds, other.suspension_ends_seconds),
    )


def holder_of(session: str) -> str:
    """The name in the credential of a session."""
    return session.partition("/")[0]


# A reducer gets no slice for so long if senders cannot reach it.
SET_ASIDE_ROUNDS = 20
MAX_DOUBLINGS = 5  # limit of what grows with each repeated fault
MAX_SLOWDOWN = 32.0  # limit of a late member's slowdown


class PastRounds:
    """Rounds of one leader, counted from the beginning of its term."""

    def __init__(self) -> None:
        self.count = 0  # number of the current round
        # reducers, or their holders -> last round without a slice
        self.last_aside: dict[str, int] = {}
        self.unreliable: dict[str, int] = {}  # reducers -> how often they did not give their mean
        self._withheld: dict[str, int] = {}  # holder of a reducer -> how often it hid a part
        self.slowdowns: dict[str, float] = {}  # factors by which late members' speeds are divided

    def begin_term(self) -> None:
        self.count = 0
        self.last_aside.clear()  # its numbers are rounds of the last term

    def may_add_up(self, session: str) -> bool:
        """False if the session or its holder is set aside in the current round."""
        until = max(self.last_aside.get(one, -1) for one in (session, holder_of(session)))
        return until < self.count

    def slowdown(self, session: str) -> float:
        return self.slowdowns.get(session, 1.0)

    def set_aside(self, reducer: str) -> None:
        """It lacks a part that the leader could send, and is not to blame for more."""
        self.last_aside[reducer] = self.count + SET_ASIDE_ROUNDS

    def set_aside_unreached(
        self, forwarded: Collection[tuple[str, str]], senders: Collection[str]
    ) -> None:
        """A reducer that at least half of its senders do not reach is no help to the leader's link,
        since for each of them the leader takes its part and gives it the mean. `forwarded`:
        (sender, reducer) of each part that went through the leader.
        """
        for reducer in {to for _, to in forwarded}:
            unreached = {by for by, to in forwarded if to == reducer and by in senders}
            if 2 * len(unreached) >= len(set(senders) - {reducer}):
                self.set_aside(reducer)

    def note_withheld(self, reducer: str) -> None:
        """A reducer does not show a part, and may hide a friend's lie: so its holder's sessions add
        up nothing for a while, and from the second time on hardly ever.
        """
        holder = holder_of(reducer)
        self._withheld[holder] = times = self._withheld.get(holder, 0) + 1
        self.last_aside[holder] = self.count + SET_ASIDE_ROUNDS**times

    def note_unreliable(self, reducer: str) -> None:
        """A reducer took a slice and did not give its mean, so it adds up nothing for a while."""
        times = self.unreliable.get(reducer, 0)
        self.unreliable[reducer] = times + 1
        self.last_aside[reducer] = self.count + SET_ASIDE_ROUNDS * 2 ** min(times, MAX_DOUBLINGS)

    def note_late(self, sender: str) -> None:
        self.slowdowns[sender] = min(2.0 * self.slowdown(sender), MAX_SLOWDOWN)

    def note_good(self, reducers: Collection[str], senders: Collection[str]) -> None:
        """The parts of all senders arrived, and all slices were added up."""
        for reducer in reducers:
            if (times := self.unreliable.pop(reducer, 0)) > 1:
                self.unreliable[reducer] = times - 1
        for sender in senders:
            if (slowdown := self.slowdowns.pop(sender, 1.0) / 2.0) > 1.0:
                self.slowdowns[sender] = slowdown


DESERTED_SECONDS = 60.0  # A path without volunteers is left to plain workers after so long.
# A volunteer is idle if it has rows for so long and finishes no block. Over any useful link,
# fetching the state and compiling take less.
IDLE_SECONDS = 1800.0
FORGET_SECONDS = 86400.0  # A session that has not come back for so long is forgotten.


class VolunteersSeen:
    """When a backbone last saw volunteers. Time is any clock in seconds."""

    def __init__(self) -> None:
        self._seen_seconds = -math.inf

    def look(self, num_volunteers: int, now_seconds: float) -> bool:
        """True if the path belongs to the swarm now. `num_volunteers`: volunteers that compute or
        wait to.
        """
        if num_volunteers > 0:
            self._seen_seconds = now_seconds
        return now_seconds - self._seen_seconds <= DESERTED_SECONDS

    def forget(self) -> None:
        """Notes that the leading backbone has left the path to plain workers."""
        self._seen_seconds = -math.inf


def idle_limit_seconds(block_deadline_seconds: float) -> float:
    """Seconds with rows and without a block after which a volunteer does not count.
    `block_deadline_seconds`: deadline of a volunteer that was timed, including the time to fetch a
    mean; 0 = it was not timed.
    """
    return max(IDLE_SECONDS, block_deadline_seconds)


class _Seen(NamedTuple):
    """Facts about a session that does nothing."""

    seconds: float = 0.0  # time in which it had rows to compute
    times: int = 0  # times it was found idle since its last block
    until_seconds: float = -math.inf  # It does not count before this time, even while it waits.


class IdleVolunteers:
    """Volunteers that finish no block, by session. Time is any clock in seconds.

    An idle volunteer does not count until it finishes a block. If there are no rows for it, it gets
    another chance after `IDLE_SECONDS`, then after twice as long: the path may be left to plain
    workers, so that it could not compute a block.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._looked_seconds, self._had_rows = -math.inf, False
        self._idle: set[str] = set()

    @property
    def sessions(self) -> Set[str]:
        """The sessions that do not count."""
        return self._idle

    def look(
        self,
        useful_seconds: Mapping[str, float],
        has_rows: bool,
        now_seconds: float,
        limit_seconds: Mapping[str, float],
    ) -> None:
        """Looks at the members once more. Time in which a session was no member does not count.

        Args:
          useful_seconds: for each session, when its last block came, or when it last asked for rows
            that it could compute and there were none.
          limit_seconds: for each session, the time with rows and without a block after which it is
            idle.
        """
        since, self._looked_seconds = self._looked_seconds, now_seconds
        had_rows, self._had_rows = self._had_rows, has_rows
        elapsed = now_seconds - since if had_rows and has_rows else 0.0
        for session, useful in useful_seconds.items():
            if useful > since:
                self._seen.pop(session, None)
                self._idle.discard(session)
            elif has_rows:
                self._note_nothing(session, elapsed, now_seconds, limit_seconds[session])
        here = useful_seconds.keys() if has_rows else set()
        for session in self._seen.keys() - here:
            self._forgive(session, now_seconds)

    def _note_nothing(self, session: str, elapsed: float, now: float, limit: float) -> None:
        """Notes that it had rows and finished nothing."""
        before = self._seen.get(session, _Seen())
        seconds, times, until = before.seconds + elapsed, before.times, now
        if seconds > limit and session not in self._idle:
            self._idle.add(session)
            times += 1
        if session in self._idle:
            until = now + IDLE_SECONDS * 2.0 ** min(times - 1, MAX_DOUBLINGS)
        self._seen[session] = _Seen(seconds, times, until)

    def _forgive(self, session: str, now: float) -> None:
        """Notes that there are no rows for it."""
        seen = self._seen[session]
        if session in self._idle and now > seen.until_seconds:
            self._idle.discard(session)
            self._seen[session] = seen._replace(seconds=0.0)
        elif now > seen.until_seconds + FORGET_SECONDS:
            del self._seen[session]
