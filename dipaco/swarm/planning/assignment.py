"""Which blocks a peer gets when it asks, so that no step waits for a slow one.

A step ends with its last block. So a block goes to a peer only if the others would not have done
all that is left sooner; a peer that is too slow for that is *parked* until a step has more left. At
the end of a step, when no block is free, an idle peer computes as a *backup* what it would finish
before the block's holder does (MapReduce's backup tasks: Dean and Ghemawat 2004, section 3.6).
Where rows of the next step may be computed meanwhile, these come first, unless a block would hold
up its step for longer than they last.
A peer whose speed is not known gets one block and is timed by it: a free one, else one of a holder
whose speed is known. (Of two that are not timed it is not known whether either ever ends.)
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from dipaco.swarm.planning.leases import BlockLedger, OpenBlock, blocks_to_lease

MARGIN = 1.1  # of a step's length that a slower peer may add
PATIENCE = 3.0  # times the seconds of who asks, before a block of unknown speed holds up its step


class Assignment(NamedTuple):
    """What a peer is to do."""

    count: int = 0  # free blocks to lease
    backup: int | None = None  # a block to compute though another peer does
    needed_seconds: float = 0.0  # that the others need without it; above 0: it is parked


def assign(
    ledger: BlockLedger,
    peer: str,
    seconds_per_block: Mapping[str, float],
    now_seconds: float,
    max_seconds: float,
) -> Assignment:
    """What `peer` is to do now.

    Args:
      ledger: of the step.
      peer: who asks.
      seconds_per_block: of every peer that computes, this one among them; 0 = not known.
      now_seconds: of the clock that the ledger's times are of.
      max_seconds: of work that would be lost with the peer.
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
    rates = [1.0 / seconds for seconds in (own, *others)]
    return Assignment(count=blocks_to_lease(ledger.num_free, 1.0 / own, rates, own, max_seconds))


def seconds_without(num_blocks: int, others: list[float]) -> float:
    """How long peers of these seconds per block need for so many; infinite where there are none.

    No less than one block takes the fastest: blocks are computed whole.
    """
    if not others:
        return math.inf
    return max(num_blocks / sum(1.0 / seconds for seconds in others), min(others))


def block_that_holds_up(
    ledger: BlockLedger, own: float, now: float, meanwhile_seconds: float
) -> int | None:
    """The block that keeps a step from ending the longest, where that is longer than there is
    anything else to do; None where there is none.

    Args:
      ledger: of the step.
      own: seconds that the peer which asks needs for a block; 0 = not known.
      now: of the clock that the ledger's times are of.
      meanwhile_seconds: for which all peers have rows of the next step.
    """
    if own <= 0:
        return None
    late = [
        (_expected(one, now), one.block)
        for one in ledger.open_blocks()
        if _expected(one, now) > now + own + meanwhile_seconds
        and (math.isfinite(one.due_seconds) or now - one.since_seconds > PATIENCE * own)
    ]
    return max(late, default=(0.0, None))[1]


def _expected(one: OpenBlock, now: float) -> float:
    """When a block should be done. Of one that is overdue it is known only how long it has taken:
    it may take as long again.
    """
    return one.due_seconds if now <= one.due_seconds else now + (now - one.since_seconds)


def _late_block(ledger: BlockLedger, peer: str, own: float, now: float) -> int | None:
    """The block that `peer` would finish the longest before its holder; None: there is none."""
    is_timed = own > 0
    late = [
        (_expected(one, now), one.block)
        for one in ledger.open_blocks()
        if one.holder != peer
        and _expected(one, now) > now + own
        and (is_timed or (math.isfinite(one.due_seconds) and not one.has_backup))
    ]
    return max(late, default=(0.0, None))[1]
