"""The ledger of one group step: which peer has which block of rows. No row twice, none lost.

A step's batch is cut into blocks of neighbouring rows. A block is free, leased to one peer until a
deadline, or done by one peer: computed, and held in that peer's sum. If a peer goes before the step
is closed, its blocks are free again, leased or done. A leased block may have a *backup*: another
peer that computes it as well. The first of the two that finishes has it in its sum, and the other's
result does not count. A backup of unknown speed can be replaced by another peer. Time is any clock
in seconds.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence


@dataclasses.dataclass
class RowBlock:
    """Who has a block of rows."""

    holder: str | None = None
    until_seconds: float = 0.0  # the lease's end
    since_seconds: float = 0.0  # when it was leased
    due_seconds: float = math.inf  # when it should be done; infinite: the holder was not timed
    is_done: bool = False
    backup: "RowBlock | None" = None  # the backup's holder and deadline


class BlockLedger:
    """The blocks of one step."""

    def __init__(self, step: int, num_blocks: int):
        self.step = step
        self._blocks = [RowBlock() for _ in range(num_blocks)]

    def __len__(self) -> int:
        return len(self._blocks)

    def lease(
        self,
        peer: str,
        count: int,
        until_seconds: float,
        *,
        now_seconds: float = 0.0,
        seconds_per_block: float = math.inf,
    ) -> tuple[int, ...]:
        """Leases the first free blocks, at most `count`. `now_seconds`, `seconds_per_block`: the
        expected end of each block follows from these.
        """
        free = [number for number, block in enumerate(self._blocks) if block.holder is None]
        for index, number in enumerate(free[:count], start=1):
            due = now_seconds + index * seconds_per_block
            self._blocks[number] = RowBlock(peer, until_seconds, now_seconds, due)
        return tuple(free[:count])

    def lease_backup(
        self,
        peer: str,
        block: int,
        until_seconds: float,
        *,
        now_seconds: float = 0.0,
        seconds_per_block: float = math.inf,
    ) -> bool:
        """True if the peer is now the block's backup.

        False if the block is free or done, is the peer's own, or has a backup. A peer of known
        speed replaces a backup of unknown speed.
        """
        found = self._blocks[block]
        if found.holder in (None, peer) or found.is_done:
            return False
        if (backup := found.backup) is not None and (
            backup.holder == peer
            or math.isfinite(backup.due_seconds)
            or not math.isfinite(seconds_per_block)
        ):
            return False
        due = now_seconds + seconds_per_block
        found.backup = RowBlock(peer, until_seconds, now_seconds, due)
        return True

    def finish(self, peer: str, block: int) -> bool:
        """True if a block that the peer has computed counts, also if it was finished before. False
        if the block was never leased to the peer or is another peer's meanwhile.
        """
        if not 0 <= block < len(self._blocks):
            return False
        found = self._blocks[block]
        if found.backup is not None and found.backup.holder == peer:
            found = self._blocks[block] = found.backup  # it was faster than the holder
        if found.holder != peer:
            return False
        found.is_done, found.backup = True, None
        return True

    def adopt(self, peer: str, blocks: Iterable[int]) -> bool:
        """Takes over a sum of blocks that the peer computed for another ledger of this step.

        Either all of the blocks become the peer's, or none if another peer has one. True again for
        blocks that were adopted before.
        """
        wanted = set(blocks)
        free = {number for number, block in enumerate(self._blocks) if block.holder is None}
        if not wanted <= free | set(self._of(peer, done=True)):
            return False
        for number in wanted & free:
            self._blocks[number] = RowBlock(peer, is_done=True)
        return True

    def drop(self, peer: str) -> tuple[int, ...]:
        """The peer is gone, and its sum with it. Returns its blocks, which are free again or belong
        to their backups.
        """
        done = self._of(peer, done=True)
        for block in done:
            self._blocks[block] = RowBlock()
        return done + self.give_back(peer)

    def give_back(self, peer: str) -> tuple[int, ...]:
        """Frees the peer's unfinished blocks, or gives them to their backups. Returns them."""
        open_blocks = self._of(peer, done=False)
        for block in open_blocks:
            self._blocks[block] = self._blocks[block].backup or RowBlock()
        for each in self._blocks:
            if each.backup is not None and each.backup.holder == peer:
                each.backup = None
        return open_blocks

    def expire(self, now_seconds: float) -> dict[str, tuple[int, ...]]:
        """Frees the blocks of leases that ran out. Returns peer -> blocks."""
        late = {
            block.holder
            for block in self._blocks
            if block.holder is not None and not block.is_done and block.until_seconds < now_seconds
        }
        return {peer: self.give_back(peer) for peer in sorted(late)}

    def open_blocks(self) -> list[tuple[int, RowBlock]]:
        """Leased blocks, by number, that are not done and have no backup of known speed."""
        return [
            (number, block)
            for number, block in enumerate(self._blocks)
            if block.holder is not None
            and not block.is_done
            and (block.backup is None or not math.isfinite(block.backup.due_seconds))
        ]

    def done_by(self, peer: str) -> tuple[int, ...]:
        return self._of(peer, done=True)

    def held_by(self, peer: str) -> tuple[int, ...]:
        """Blocks that are leased to the peer and not done."""
        return self._of(peer, done=False)

    @property
    def blocks_by_peer(self) -> dict[str, tuple[int, ...]]:
        """Peer -> the blocks in its sum."""
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
    num_free: int, own_seconds: float, others: Sequence[float], max_seconds: float
) -> int:
    """The number of blocks to lease to a peer at once.

    It is half of the peer's fair part of the free blocks, so that peers of all speeds finish
    together (guided self-scheduling), and at most the work of `max_seconds`, which would be lost
    with it. `own_seconds`, `others`: for a block, of this peer and of each other one.
    """
    fair = num_free / own_seconds / sum(1.0 / seconds for seconds in (own_seconds, *others))
    return min(num_free, max(1, min(int(fair / 2), int(max_seconds / own_seconds))))
