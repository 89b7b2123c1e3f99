"""Whether a reducer that some senders do not reach still adds up.

What a sender cannot send to a reducer itself goes through the leader, which takes the part and
passes it on, and gives the mean to the sender: of k such senders the leader sends 2 k parts of the
slice. Did the leader add up the slice itself, it would send the mean to all N senders: N parts. So
a reducer that at least half of its senders do not reach is no help to the leader's link.
"""

import collections
from collections.abc import Collection


def reducers_of_no_help(
    relayed: Collection[tuple[str, str]], senders: Collection[str]
) -> frozenset[str]:
    """Those that at least half of the other senders do not reach.

    Args:
      relayed: (sender, reducer) whose parts went through the leader.
      senders: of the round.
    """
    unreached_by = collections.Counter(to for by, to in set(relayed) if by in senders)
    return frozenset(
        reducer
        for reducer, count in unreached_by.items()
        if 2 * count >= len(set(senders) - {reducer})
    )
