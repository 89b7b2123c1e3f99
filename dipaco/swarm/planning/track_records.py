"""What the past says of members: who is suspended, who adds up nothing for a while, who is idle,
and who is left alone after a fault. Time is any clock in seconds.

A failed session joins again, and would get rows of the same step. After some failed rounds in a row
it is suspended, for a multiple of the time it held up the step, at first ten, and so costs the
others at most an eleventh of their time. Time that its own suspension added is not counted as held
up. A new session continues the worst record of its holder's, and clears the records of those that
are gone.
"""

import functools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

FAILED_ROUNDS = 2  # failed rounds in a row before a session is suspended
# Length in times of the delay it caused. Each further failed round doubles it.
SUSPENSION_FACTOR = 10.0
# A suspension is longer only if a step was held up for a tenth of it.
MAX_SUSPENSION_SECONDS = 3600.0


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
        of_holder = {one for one in self._seen if holder_of(one) == holder_of(session)}
        among = {session} if session in self._seen else of_holder
        among |= of_holder - members
        seen = functools.reduce(_worst, map(self._of, among), _Failures())
        for one in self._seen.keys() - members:
            over = now_seconds > self._of(one).until_seconds + MAX_SUSPENSION_SECONDS
            if over or one in of_holder:
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

    def _of(self, session: str) -> _Failures:
        return self._seen.get(session, _Failures())


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
        # reducers -> how often they did not give their mean; holders -> how often one hid a part
        self.faults: Counter[str] = Counter()
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

    def set_aside(self, reducer: str, rounds: int = SET_ASIDE_ROUNDS) -> None:
        """It lacks a part that the leader could send, and is not to blame for more."""
        self.last_aside[reducer] = self.count + rounds

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
        self._set_aside_after(holder_of(reducer), SET_ASIDE_ROUNDS)

    def note_unreliable(self, reducer: str) -> None:
        """A reducer took a slice and did not give its mean, so it adds up nothing for a while. If
        another session of its holder did so in an earlier round, none does: each may be a new one.
        """
        holder, soon = holder_of(reducer), range(self.count, self.count + SET_ASIDE_ROUNDS)
        others = [one for one in self.last_aside if one != reducer and holder_of(one) == holder]
        if any(self.last_aside[one] in soon for one in others):
            self.set_aside(holder)
        self._set_aside_after(reducer, 2)

    def _set_aside_after(self, who: str, growth: int) -> None:
        self.set_aside(who, SET_ASIDE_ROUNDS * growth ** min(self.faults[who], MAX_DOUBLINGS))
        self.faults[who] += 1

    def note_late(self, sender: str) -> None:
        self.slowdowns[sender] = min(2.0 * self.slowdown(sender), MAX_SLOWDOWN)

    def note_good(self, reducers: Collection[str], senders: Collection[str]) -> None:
        """The parts of all senders arrived, and all slices were added up."""
        for reducer in reducers:
            if (times := self.faults.pop(reducer, 0)) > 1:
                self.faults[reducer] = times - 1
        for sender in senders:
            if (slowdown := self.slowdowns.pop(sender, 1.0) / 2.0) > 1.0:
                self.slowdowns[sender] = slowdown


class LeftAlone:
    """Names that are left alone after a fault: at first for `first_seconds`, each time for twice as
    long, and for `longest_seconds` at most.
    """

    def __init__(self, first_seconds: float, longest_seconds: float):
        self._first, self._longest = first_seconds, longest_seconds
        self._until: dict[str, tuple[int, float]] = {}  # name -> (number of faults, end)

    def note_fault(self, name: str, now_seconds: float) -> None:
        recent = now_seconds - self._longest
        self._until = {one: seen for one, seen in self._until.items() if seen[1] > recent}
        times, _ = self._until.get(name, (0, 0.0))
        seconds = min(self._first * 2.0 ** min(times, 64), self._longest)
        self._until[name] = times + 1, now_seconds + seconds

    def forgive(self, name: str) -> None:
        self._until.pop(name, None)

    def now(self, now_seconds: float) -> Set[str]:
        return {name for name, (_, until) in self._until.items() if now_seconds < until}


# A volunteer is idle if it has rows for so long and finishes no block. Over any useful link,
# fetching the state and compiling take less.
IDLE_SECONDS = 1800.0


class IdleVolunteers:
    """Volunteers that finish no block, by session. An idle one does not count until it does. It
    gets another chance after `IDLE_SECONDS`, then after twice as long: the path may be left to
    plain workers, so that it could not compute.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}  # time in which it had rows and finished nothing
        self._idle = LeftAlone(IDLE_SECONDS, IDLE_SECONDS * 2.0**MAX_DOUBLINGS)
        self._looked_seconds, self._had_rows = -math.inf, False

    def look(
        self,
        useful_seconds: Mapping[str, float],
        has_rows: bool,
        now_seconds: float,
        limit_seconds: Mapping[str, float],
    ) -> Set[str]:
        """Looks at the members once more. Returns the sessions that do not count. `useful_seconds`:
        for each session, when its last block came, or when it last asked for rows that it could
        compute and there were none. `limit_seconds`: deadlines of blocks, where longer than
        `IDLE_SECONDS`.
        """
        since, self._looked_seconds = self._looked_seconds, now_seconds
        had_rows, self._had_rows = self._had_rows, has_rows
        elapsed = now_seconds - since if had_rows and has_rows else 0.0
        before, self._seconds = self._seconds, {} if has_rows else self._seconds
        for session, useful in useful_seconds.items():
            if useful > since:
                self._idle.forgive(session)
                before.pop(session, None)
            elif has_rows and session not in self._idle.now(now_seconds):
                self._seconds[session] = before.get(session, 0.0) + elapsed
                if self._seconds[session] > max(IDLE_SECONDS, limit_seconds[session]):
                    del self._seconds[session]
                    self._idle.note_fault(session, now_seconds)
        return self._idle.now(now_seconds)
