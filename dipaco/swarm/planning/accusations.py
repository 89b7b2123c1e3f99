"""Whether a sender that reducers refuse is at fault, where reducers may lie too.

What the leader's own reducer refuses is certain. The word of one other reducer is not: the sender
is left out of the round, and that reducer adds up nothing for a while, so that another one sees the
sender's next sum. Reducers of two holders that refuse the same session are believed. A NaN, or
a size, that most senders have comes from the model, not from them.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

NOT_FINITE = "the gradient holds a NaN or an infinity"
TOO_LARGE = "times as large as the group's"  # how such a reason ends


class Judgement(NamedTuple):
    """What follows from the refusals of one round."""

    left_out: dict[str, str]  # sender -> reason, of this round
    at_fault: frozenset[str]  # those of them that are refused for good
    in_doubt: frozenset[str]  # reducers whose word stands alone


class Accusations:
    """What the reducers of a leader's rounds say against senders.

    Args:
      own: the leader's name as a reducer.
    """

    def __init__(self, own: str):
        self._own = own
        self._accusers: dict[str, set[str]] = {}  # sender -> holders of reducers that refused it

    def clear(self) -> None:
        """Another term begins."""
        self._accusers.clear()

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
          holder_of: the name in the credential of a reducer.
        """
        left_out: dict[str, str] = {}
        at_fault: set[str] = set()
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
                    accusers = self._accusers.setdefault(sender, set())
                    accusers.add(holder_of(reducer))
                    if len(accusers) > 1:
                        at_fault.add(sender)
        in_doubt = {reducer for reducer, sender in alone if sender not in at_fault}
        return Judgement(left_out, frozenset(at_fault), frozenset(in_doubt))


def _may_be_the_models(reason: str) -> bool:
    """Whether honest senders have such a gradient where the model diverges."""
    return reason == NOT_FINITE or reason.endswith(TOO_LARGE)
