"""The ledger of one group step: which block of rows is whose. No row twice, none lost.

A step's batch is cut into blocks of neighbouring rows. A block is free, leased to one peer until a
deadline, or done by one peer: computed, and held in that peer's sum. What a peer has, leased or
done, is free again when it goes before the step is closed. Time is any clock in seconds.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Lease(NamedTuple):
    """Some blocks, lent to a peer."""

    blocks: tuple[int, ...]
    until_seconds: float


@dataclasses.dataclass
class _Block:
    holder: str | None = None
    until_seconds: float = 0.0
    is_done: bool = False


class BlockLedger:
    """The blocks of one step.

    Args:
      step: which; only for those who look.
      num_blocks: of its batch.
    """

    def __init__(self, step: int, num_blocks: int):
        self.step = step
        self._blocks = [_Block() for _ in range(num_blocks)]

    def __len__(self) -> int:
        return len(self._blocks)

    def lease(self, peer: str, count: int, until_seconds: float) -> Lease | None:
        """The first free blocks, at most `count`; None where none is free."""
        free = [number for number, block in enumerate(self._blocks) if block.holder is None]
        if not free or count < 1:
            return None
        for number in free[:count]:
            self._blocks[number] = _Block(peer, until_seconds)
        return Lease(tuple(free[:count]), until_seconds)

    def finish(self, peer: str, block: int) -> bool:
        """The peer has computed a block; whether it counts. False where it is not its own: it was
        never leased to it, or went to somebody else meanwhile. A block that it did before counts.
        """
        if not 0 <= block < len(self._blocks) or self._blocks[block].holder != peer:
            return False
        self._blocks[block].is_done = True
        return True

    def adopt(self, peer: str, blocks: Iterable[int]) -> bool:
        """The peer has computed blocks of this step before this ledger was begun, and its sum is of
        all of them: all are its own now, or, where another has one of them, none. True again for
        what was adopted before.
        """
        wanted = set(blocks)
        free = {number for number, block in enumerate(self._blocks) if block.holder is None}
        if not wanted <= free | set(self._of(peer, done=True)):
            return False
        for number in wanted & free:
            self._blocks[number] = _Block(peer, is_done=True)
        return True

    def drop(self, peer: str) -> tuple[int, ...]:
        """The peer is gone, and its sum with it: what it had is free again; which blocks."""
        had = self._of(peer, done=True) + self._of(peer, done=False)
        for block in had:
            self._blocks[block] = _Block()
        return had

    def give_back(self, peer: str) -> tuple[int, ...]:
        """What the peer has not done is free again; what it has done stays its own."""
        open_blocks = self._of(peer, done=False)
        for block in open_blocks:
            self._blocks[block] = _Block()
        return open_blocks

    def transfer(self, peer: str, blocks: Iterable[int], to: str) -> None:
        """Who leaves has given away its sum over some blocks: they are in another's now, and what
        else it had is free.
        """
        given = set(blocks) & set(self._of(peer, done=True))
        for block in given:
            self._blocks[block].holder = to
        self.drop(peer)

    def expire(self, now_seconds: float) -> dict[str, tuple[int, ...]]:
        """Leases that ran out: their blocks are free again. Peer -> blocks."""
        late = {
            block.holder
            for block in self._blocks
            if block.holder is not None and not block.is_done and block.until_seconds < now_seconds
        }
        return {peer: self.give_back(peer) for peer in sorted(late)}

    def done_by(self, peer: str) -> tuple[int, ...]:
        return self._of(peer, done=True)

    def held_by(self, peer: str) -> tuple[int, ...]:
        """Leased to it and not done."""
        return self._of(peer, done=False)

    @property
    def blocks_by_peer(self) -> dict[str, tuple[int, ...]]:
        """Peer -> blocks that are in its sum."""
        peers = sorted({block.holder for block in self._blocks if block.is_done and block.holder})
        return {peer: self.done_by(peer) for peer in peers}

    @property
    def num_done(self) -> int:
        return sum(block.is_done for block in self._blocks)

    @property
    def num_free(self) -> int:
        return sum(block.holder is None for block in self._blocks)

    @property
    def is_complete(self) -> bool:
        return self.num_done == len(self._blocks)

    def _of(self, peer: str, *, done: bool) -> tuple[int, ...]:
        return tuple(
            number
            for number, block in enumerate(self._blocks)
            if block.holder == peer and block.is_done == done
        )


def blocks_to_lease(
    num_free: int,
    rate: float,
    rates: Sequence[float],
    seconds_per_block: float,
    max_seconds: float,
) -> int:
    """How many blocks a peer should get at once: half of its fair part of what is free, so that all
    finish together whatever their speeds (guided self-scheduling), and no more than it can compute
    in `max_seconds`.

    Args:
      num_free: blocks.
      rate: of the peer, blocks per second; 0 = not known.
      rates: of all who compute, with it.
      seconds_per_block: of the peer; 0 = not known, then it gets one.
      most_seconds: what would be lost with the peer.
    """
    if seconds_per_block <= 0 or rate <= 0:
        return min(1, num_free)
    fair = num_free * rate / max(sum(rates), rate)
    return min(num_free, max(1, min(int(fair / 2), int(max_seconds / seconds_per_block))))
