"""Past rounds of averaging, as far as they matter to the next: which reducers are *set aside*, so
that they add up nothing for some rounds, and whose parts are expected later.
"""

from collections.abc import Collection

from dipaco.swarm.planning.suspensions import holder_of

# A reducer gets no slice for so long if senders cannot reach it.
SET_ASIDE_ROUNDS = 20
MAX_DOUBLINGS = 5  # limit for a reducer that repeatedly did not give its mean
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
        since for each of them the leader takes its part and gives it the mean.

        Args:
          forwarded: (sender, reducer) of each part that went through the leader.
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
