"""Suspends sessions for a while after rounds that had to be held again because of them.

A failed session is removed, joins again, and would get rows of the same step. After some failed
rounds in a row it is suspended, for a multiple of the time it held up the step, at first ten. It
therefore costs the others at most an eleventh of their time, whatever it does. Time that its own
suspension added is not counted as held up. A new session continues the worst record among its
holder's sessions, and clears the records of those that are gone. Time is any clock in seconds.
"""

import functools
import math
from collections.abc import Mapping, Set
from typing import NamedTuple, TypeVar

FAILED_ROUNDS = 2  # failed rounds in a row before a session is suspended
SUSPENSION_FACTOR = (
    10.0  # Length in times of the delay it caused. Each further failed round doubles it.
)
MAX_SUSPENSION_SECONDS = (
    3600.0  # A suspension is longer only if a step was held up for a tenth of it.
)

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

        Args:
          session: the session that failed.
          now_seconds: time on the clock.
          step_seconds: the time that the step has taken so far.
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
        """The members that are not suspended, or all of them if none of those computes.

        Args:
          sessions: the members.
          computing: the members that have finished blocks.
          now_seconds: time on the clock.
        """
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
