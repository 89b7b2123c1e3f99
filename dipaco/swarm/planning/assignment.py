"""Chooses the blocks that a peer gets, so that no step waits for a slow peer.

A peer gets a block only if the others would not finish everything sooner. A peer that is too slow
for that is *parked* until a step has more left. When no block is free, an idle peer computes as a
*backup* any block that it would finish before the block's holder does (MapReduce's backup tasks:
Dean and Ghemawat 2004, section 3.6), after rows of the next step if those may be computed
meanwhile. A peer of unknown speed gets one block and is timed by it: a free one, or else one whose
holder's speed is known. (If neither speed is known, neither peer may ever finish.)
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from dipaco.swarm.planning.leases import BlockLedger, RowBlock, blocks_to_lease

MARGIN = 1.1  # A slower peer may lengthen a step by this factor.


class Assignment(NamedTuple):
    """The work that a peer gets."""

    count: int = 0  # free blocks to lease
    backup: int | None = None  # a block to compute although another peer has it
    # Seconds that the others need without this peer. Above 0 it is parked.
    needed_seconds: float = 0.0


def assign(
    ledger: BlockLedger,
    peer: str,
    seconds_per_block: Mapping[str, float],
    now_seconds: float,
    max_seconds: float,
) -> Assignment:
    """Chooses the work that `peer` gets now.

    Args:
      seconds_per_block: one entry for each peer that computes, this one included; 0 = not known.
      max_seconds: limit on the work that would be lost with the peer.
    """
    own = seconds_per_block[peer]
    if ledger.num_free == 0:
        return Assignment(backup=_late_block(ledger, peer, own, now_seconds))
    if own <= 0:
        return Assignment(count=1)
    others = [
        seconds for name, seconds in seconds_per_block.items() if name != peer and seconds > 0
    ]
    needed = seconds_without(len(ledger) - ledger.num_done, others)
    if own > MARGIN * needed:
        return Assignment(needed_seconds=needed)
    return Assignment(count=blocks_to_lease(ledger.num_free, own, others, max_seconds))


def seconds_without(num_blocks: int, others: list[float]) -> float:
    """Seconds that these peers need for so many blocks; infinite without peers. Blocks are computed
    whole: at least the time of the fastest peer for one.
    """
    if not others:
        return math.inf
    return max(num_blocks / sum(1.0 / seconds for seconds in others), min(others))


def _expected(one: RowBlock, now: float) -> float:
    """When a block should be done. An overdue one should take as long again as it has taken."""
    return one.due_seconds if now <= one.due_seconds else now + (now - one.since_seconds)


def _late_block(ledger: BlockLedger, peer: str, own: float, now: float) -> int | None:
    """The block that `peer` would finish the longest before its holder, or None."""
    is_timed = own > 0
    late = [
        (_expected(one, now), number)
        for number, one in ledger.open_blocks()
        if one.holder != peer
        and _expected(one, now) > now + own
        and (is_timed or (math.isfinite(one.due_seconds) and one.backup is None))
    ]
    return max(late, default=(0.0, None))[1]
