"""Which sessions get no rows for a while: senders without which rounds had to be held again.

Such a session is removed, joins again, and would get rows of the same step. After some rounds in a
row it rests, for so many times as long as it held up the step, at first ten: what it costs the
others is an eleventh of their time at the most, whatever it does. What its own rest made longer is
not held up. A new session goes on where the worst of the same holder was, and makes good what those
did that are gone. Time is any clock in seconds.
"""

import functools
import math
from collections.abc import Mapping, Set
from typing import NamedTuple, TypeVar

FAILED_ROUNDS = 2  # in a row, before a session rests
REST = 10.0  # times what it held up; twice as long with each further round
MAX_REST_SECONDS = 3600.0  # longer only where a step was held up for a tenth of it

_Member = TypeVar("_Member")


class _Failures(NamedTuple):
    """Of one session."""

    failed_rounds: int = 0  # a good one takes one off
    until_seconds: float = 0.0  # it rests; of one that does not, when it was seen last
    rest_ends_seconds: float = -math.inf  # of its last rest, also of one that is over


class Rests:
    """What the leader has seen of sessions ("name/number"), by session."""

    def __init__(self) -> None:
        self._seen: dict[str, _Failures] = {}

    def note_joined(self, session: str, members: Set[str], now_seconds: float) -> None:
        """A session joins, beside these: what others of its holder did that are gone is its own
        now. Sessions that did not come back for `MAX_REST_SECONDS` are forgotten.
        """
        seen, holder = self._of(session), holder_of(session)
        for one in self._seen.keys() - members - {session}:
            its = self._seen[one]
            if now_seconds > its.until_seconds + MAX_REST_SECONDS:
                del self._seen[one]
            elif holder_of(one) == holder:
                seen = _worst(seen, its)
                del self._seen[one]
        self._seen[session] = seen._replace(until_seconds=max(seen.until_seconds, now_seconds))

    def note_failed(self, session: str, now_seconds: float, step_seconds: float) -> float:
        """A round is held again without it. Returns for how many seconds it rests; 0 = it does not.

        Args:
          session: that failed.
          now_seconds: of the clock.
          step_seconds: that the step has taken so far.
        """
        before = self._of(session)
        times = before.failed_rounds + 1
        if times < FAILED_ROUNDS:
            self._seen[session] = before._replace(failed_rounds=times, until_seconds=now_seconds)
            return 0.0
        held_up = step_seconds
        if now_seconds >= before.rest_ends_seconds:  # else it had rows all the same
            held_up = min(held_up, now_seconds - before.rest_ends_seconds)
        doubled = REST * held_up * 2.0 ** min(times - FAILED_ROUNDS, 16)
        rest = min(doubled, max(MAX_REST_SECONDS, REST * held_up))
        self._seen[session] = _Failures(times, now_seconds + rest, now_seconds + rest)
        return rest

    def note_good(self, session: str, now_seconds: float) -> None:
        """A step was closed with its rows: it does not rest any more."""
        before = self._of(session)
        rest_ends = min(now_seconds, before.rest_ends_seconds)
        self._seen[session] = _Failures(max(0, before.failed_rounds - 1), now_seconds, rest_ends)

    def rests(self, session: str, now_seconds: float) -> bool:
        """Whether it is to get no rows, where others do."""
        return now_seconds < self._of(session).until_seconds

    def at_work(
        self, sessions: Mapping[str, _Member], computing: Set[str], now_seconds: float
    ) -> Mapping[str, _Member]:
        """Those that do not rest; all, where none of them computes.

        Args:
          sessions: the members.
          computing: those of them of which blocks have come.
          now_seconds: of the clock.
        """
        at_work = {name: one for name, one in sessions.items() if not self.rests(name, now_seconds)}
        return at_work if computing & at_work.keys() else sessions

    def _of(self, session: str) -> _Failures:
        """What is known of a session; of a new one, the most that is of its holder's."""
        if session in self._seen:
            return self._seen[session]
        holder = holder_of(session)
        of_holder = (seen for one, seen in self._seen.items() if holder_of(one) == holder)
        return functools.reduce(_worst, of_holder, _Failures())


def _worst(one: _Failures, other: _Failures) -> _Failures:
    return _Failures(
        max(one.failed_rounds, other.failed_rounds),
        max(one.until_seconds, other.until_seconds),
        max(one.rest_ends_seconds, other.rest_ends_seconds),
    )


def holder_of(session: str) -> str:
    """The name in the credential of a session."""
    return session.partition("/")[0]
