"""Decides whether a sender that reducers refuse is at fault, where reducers may lie too.

A refusal by the leader's own reducer is certain. A refusal by one other reducer is not: the sender
is left out of the round, and that reducer's holder adds up nothing for a while, so that another one
sees the sender's next sum. Reducers of two holders that refuse the same session are believed.
Nothing is proved against a holder until two holders have refused its sessions. A NaN or a size that
most senders share comes from the model, not from them.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

NOT_FINITE = "the gradient holds a NaN or an infinity"
TOO_LARGE = "times as large as the group's"  # The end of such a reason.


class Judgement(NamedTuple):
    """The consequences of one round's refusals."""

    left_out: dict[str, str]  # sender -> reason, for this round
    at_fault: frozenset[str]  # senders that are refused for good
    in_doubt: frozenset[str]  # reducers whose word stands alone
    unproved: frozenset[str]  # senders whose holder was refused by at most one holder


class Accusations:
    """All refusals by the reducers of one leader's rounds.

    Args:
      own: the leader's name as a reducer.
    """

    def __init__(self, own: str):
        self._own = own
        # Sender or holder of senders -> holders of the reducers that refused it.
        self._accusers: dict[str, set[str]] = {}

    def clear(self) -> None:
        """Forgets all refusals, since another term begins."""
        self._accusers.clear()

    def judge(
        self,
        refused: Mapping[str, Mapping[str, str]],
        senders: Collection[str],
        holder_of: Callable[[str], str],
    ) -> Judgement:
        """Judges the refusals of one round.

        Args:
          refused: reducer -> sender -> reason.
          senders: all senders of the round.
          holder_of: gives the name in a session's credential.
        """
        left_out: dict[str, str] = {}
        at_fault: set[str] = set()
        unproved = {sender for reasons in refused.values() for sender in reasons}
        unproved -= refused.get(self._own, {}).keys()
        alone: set[tuple[str, str]] = set()
        for reducer, reasons in refused.items():
            is_shared = 2 * sum(map(_may_be_the_models, reasons.values())) > len(senders)
            for sender, reason in reasons.items():
                left_out.setdefault(sender, reason)
                counts = not (is_shared and _may_be_the_models(reason))
                if reducer != self._own:
                    alone.add((reducer, sender))
                if reducer == self._own and counts:
                    left_out[sender] = reason
                    at_fault.add(sender)
                elif counts:
                    if self._num_accusers(sender, holder_of(reducer)) > 1:
                        at_fault.add(sender)
                    if self._num_accusers(holder_of(sender), holder_of(reducer)) > 1:
                        unproved.discard(sender)
        in_doubt = {reducer for reducer, sender in alone if sender not in at_fault}
        return Judgement(left_out, frozenset(at_fault), frozenset(in_doubt), frozenset(unproved))

    def _num_accusers(self, accused: str, accuser: str) -> int:
        """Counts the holders that have accused a session or a holder, `accuser` included."""
        accusers = self._accusers.setdefault(accused, set())
        accusers.add(accuser)
        return len(accusers)


def _may_be_the_models(reason: str) -> bool:
    """True if honest senders can have such a gradient when the model diverges."""
    return reason == NOT_FINITE or reason.endswith(TOO_LARGE)
