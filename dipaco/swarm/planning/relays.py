"""Decides if a reducer that some senders do not reach still adds up.

If a sender cannot send its part to a reducer, the leader passes the part on, and gives the mean to
the sender. For k such senders the leader sends 2 k parts of the slice. If the leader added up the
slice itself, it would send the mean to all N senders: N parts. So a reducer that at least half of
its senders do not reach is no help to the leader's link.
"""

import collections
from collections.abc import Collection


def reducers_of_no_help(
    relayed: Collection[tuple[str, str]], senders: Collection[str]
) -> frozenset[str]:
    """Reducers that at least half of the other senders do not reach.

    Args:
      relayed: (sender, reducer) whose parts went through the leader.
      senders: all senders of the round.
    """
    unreached_by = collections.Counter(to for by, to in set(relayed) if by in senders)
    return frozenset(
        reducer
        for reducer, count in unreached_by.items()
        if 2 * count >= len(set(senders) - {reducer})
    )
