"""Who is at fault where senders cannot reach reducers: the fewest peers that explain all of it.

Of two peers without a connection either may be the cause. A reducer that is set aside only adds up
nothing more; a sender that is set aside loses its sum. So between equals it is the reducer's fault,
and a sender's only if it misses more reducers than miss other senders.
"""

import collections
from collections.abc import Collection
from typing import NamedTuple


class Fault(NamedTuple):
    """Peers without which the others reach each other."""

    reducers: frozenset[str]
    senders: frozenset[str]


def blame(unreached: Collection[tuple[str, str]], can_be_set_aside: Collection[str]) -> Fault:
    """The peers to set aside, the one with the most missing connections first.

    Args:
      unreached: (sender, reducer) without a connection, as the sender says or the reducer does.
      can_be_set_aside: reducers; of any other (the leader) the sender is at fault.
    """
    left, reducers, senders = set(unreached), set(), set()
    while left:
        of_reducer = collections.Counter(to for _, to in left if to in can_be_set_aside)
        of_sender = collections.Counter(by for by, _ in left)
        reducer, num = max(of_reducer.items(), key=lambda one: (one[1], one[0]), default=("", 0))
        sender, num_sender = max(of_sender.items(), key=lambda one: (one[1], one[0]))
        if num_sender > num:
            senders.add(sender)
            left = {pair for pair in left if pair[0] != sender}
        else:
            reducers.add(reducer)
            left = {pair for pair in left if pair[1] != reducer}
    return Fault(frozenset(reducers), frozenset(senders))
