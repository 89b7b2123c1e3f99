"""Which sessions get no rows for a while: those without which rounds had to be held again.

Such a session is removed, joins again, and would get rows of the same step. After some rounds in a
row it rests, for so many times the step that it held up: what it costs the others is a share of
their time that falls with each round, whatever it does. A new session goes on where the last one of
the same holder was. Time is any clock in seconds.
"""

from collections.abc import Mapping, Set
from typing import TypeVar

FAILED_ROUNDS = 2  # in a row, before a session rests
REST = 10.0  # times the step's seconds; twice as long with each further round
MAX_REST_SECONDS = 3600.0

_Member = TypeVar("_Member")


class Rests:
    """What the leader has seen of sessions ("name/number"), by session."""

    def __init__(self) -> None:
        self._failed: dict[str, float] = {}  # rounds; a good one takes one off
        self._until: dict[str, float] = {}

    def note_failed(self, session: str, now_seconds: float, step_seconds: float) -> float:
        """A round is held again without it. Returns for how many seconds it rests; 0 = it does not.

        Args:
          session: that failed.
          now_seconds: of the clock.
          step_seconds: that the step has taken so far.
        """
        times = self._failed[session] = self._of_holder(self._failed, session) + 1
        if times < FAILED_ROUNDS:
            return 0.0
        rest = min(REST * step_seconds * 2.0 ** min(times - FAILED_ROUNDS, 16.0), MAX_REST_SECONDS)
        self._until[session] = now_seconds + rest
        return rest

    def note_good(self, session: str) -> None:
        """A step was closed with its rows."""
        self._failed[session] = max(0, self._of_holder(self._failed, session) - 1)
        self._until[session] = 0.0

    def rests(self, session: str, now_seconds: float) -> bool:
        """Whether it is to get no rows, where others do."""
        return now_seconds < self._of_holder(self._until, session)

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

    def _of_holder(self, known: Mapping[str, float], session: str) -> float:
        """What is known of a session; of a new one, the most that is of its holder's."""
        if session in known:
            return known[session]
        holder = session.partition("/")[0]
        return max((known[one] for one in known if one.partition("/")[0] == holder), default=0)
