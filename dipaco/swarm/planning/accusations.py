"""Whether a sender that reducers refuse is at fault, where reducers may lie too.

What the leader's own reducer refuses is certain. The word of one other reducer is not: the sender
is left out of the round, and that reducer adds up nothing for a while, so that another one sees the
sender's next sum. Reducers of two holders that refuse the same session are believed. Until two have
refused sessions of a sender's holder, nothing is proved against it.

Where one holder alone refuses one other, either may lie, and after some rounds both pay: the sender
is not excused any more. Where one alone refuses two others, it is taken for the liar: none of its
reducers adds up anything for a while, and its word costs nobody more than a round.

A NaN, or a size, that most senders have comes from the model, not from them.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Set
from typing import NamedTuple

NOT_FINITE = "the gradient holds a NaN or an infinity"
TOO_LARGE = "times as large as the group's"  # how such a reason ends
ALONE_TIMES = 2  # that one holder alone refuses another, and the sender is excused


class Judgement(NamedTuple):
    """What follows from the refusals of one round."""

    left_out: dict[str, str]  # sender -> reason, of this round
    at_fault: frozenset[str]  # those of them that are refused for good
    in_doubt: frozenset[str]  # reducers whose word stands alone, or holders of them
    unproved: frozenset[str]  # senders that are excused: one holder's word is all there is


class Accusations:
    """What the reducers of a leader's rounds say against senders.

    Args:
      own: the leader's name as a reducer.
    """

    def __init__(self, own: str):
        self._own = own
        # Sender, and holder of senders -> holders of reducers that refused it.
        self._accusers: dict[str, set[str]] = {}
        # Holder of reducers -> holder of senders -> in how many rounds it alone refused them.
        self._alone: dict[str, collections.Counter[str]] = {}

    def clear(self) -> None:
        """Another term begins."""
        self._accusers.clear()
        self._alone.clear()

    def judge(
        self,
        refused: Mapping[str, Mapping[str, str]],
        senders: Collection[str],
        holder_of: Callable[[str], str],
    ) -> Judgement:
        """What follows from the refusals of one round.

        Args:
          refused: reducer -> sender -> reason.
          senders: of the round.
          holder_of: the name in the credential of a session.
        """
        left_out: dict[str, str] = {}
        at_fault: set[str] = set()
        unproved = {sender for reasons in refused.values() for sender in reasons}
        unproved -= refused.get(self._own, {}).keys()
        alone: dict[tuple[str, str], bool] = {}  # reducer, sender -> whether it is no model's
        for reducer, reasons in refused.items():
            is_shared = 2 * sum(map(_may_be_the_models, reasons.values())) > len(senders)
            for sender, reason in reasons.items():
                left_out.setdefault(sender, reason)
                counts = not (is_shared and _may_be_the_models(reason))
                if reducer != self._own:
                    alone[reducer, sender] = counts
                if reducer == self._own and counts:
                    left_out[sender] = reason
                    at_fault.add(sender)
                elif counts:
                    if self._num_accusers(sender, holder_of(reducer)) > 1:
                        at_fault.add(sender)
                    if self._num_accusers(holder_of(sender), holder_of(reducer)) > 1:
                        unproved.discard(sender)
        alone = {pair: counts for pair, counts in alone.items() if pair[1] not in at_fault}
        in_doubt: set[str] = set()
        for holder in {holder_of(reducer) for reducer, _ in alone}:
            its = {pair: counts for pair, counts in alone.items() if holder_of(pair[0]) == holder}
            times = self._alone.setdefault(holder, collections.Counter())
            times.update({holder_of(one) for (_, one), counts in its.items() if counts} - {holder})
            if self._is_liar(holder, {holder_of(sender) for _, sender in its}):
                in_doubt.add(holder)
                continue
            in_doubt |= {reducer for reducer, _ in its}
            for (_, sender), counts in its.items():
                if counts and times[holder_of(sender)] > ALONE_TIMES:
                    unproved.discard(sender)
        return Judgement(left_out, frozenset(at_fault), frozenset(in_doubt), frozenset(unproved))

    def _is_liar(self, holder: str, refused: Set[str]) -> bool:
        """Whether it alone refuses more than one other holder: these now, or others before."""
        accused = (refused | self._alone[holder].keys()) - {holder}
        return sum(len(self._accusers.get(one, ())) < 2 for one in accused) > 1

    def _num_accusers(self, accused: str, accuser: str) -> int:
        """Holders that have accused a session, or a holder, with this one."""
        accusers = self._accusers.setdefault(accused, set())
        accusers.add(accuser)
        return len(accusers)


def _may_be_the_models(reason: str) -> bool:
    """Whether honest senders have such a gradient where the model diverges."""
    return reason == NOT_FINITE or reason.endswith(TOO_LARGE)
