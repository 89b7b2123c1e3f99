"""The rows of one step while peers compute them: their holders and their sums."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dipaco.swarm.network.messages import BlockResult, WorkReply
from dipaco.swarm.planning.leases import BlockLedger


class StepRows:
    """The rows of a step. `lineage`: names the state before the step. `start`: what of it gradients
    are computed from.
    """

    def __init__(
        self,
        step: int,
        targets: Sequence[float],
        *,
        lineage: str = "",
        start: Any = None,
        batch: Mapping[str, np.ndarray] | None = None,
    ):
        self.step, self.targets = step, tuple(targets)
        self.lineage, self.start, self.batch = lineage, start, batch or {}
        self.ledger = BlockLedger(step, len(self.targets))
        self.losses: dict[int, float] = {}  # block -> loss by its peer's word
        self.leased: set[tuple[str, int]] = set()  # (member, block)
        self.failed: set[str] = set()  # members that failed in a round of this step
        self.began_at = time.monotonic()

    @property
    def at(self) -> tuple[int, str]:
        """The step, and the lineage of the state before it."""
        return self.step, self.lineage

    @property
    def seconds(self) -> float:
        """Time since these rows began to be computed."""
        return time.monotonic() - self.began_at

    def leasing(self, blocks: tuple[int, ...]) -> WorkReply:
        """The reply that leases these blocks."""
        return WorkReply(blocks=blocks, step=self.step, lineage=self.lineage)

    def problem_with(self, done: BlockResult) -> str:
        """The reason why a block cannot have this result; empty if it can. The leader's count of
        targets is exact. A loss is only shown, and not finite if the model has diverged.
        """
        if not 0 <= done.block < len(self.ledger):
            return f"it claims block {done.block}, which there is not"
        if done.targets != (has := self.targets[done.block]):
            return f"it counts {done.targets:g} targets in block {done.block}, of {has:g}"
        if done.loss < 0:
            return f"it says that a block has a loss of {done.loss:g}"
        return ""

    @property
    def mean_loss(self) -> float:
        """Loss per target over the blocks whose loss is finite; NaN if there is none."""
        known = {block: loss for block, loss in self.losses.items() if np.isfinite(loss)}
        if self.losses and not known:
            return math.nan
        return sum(known.values()) / max(sum(self.targets[block] for block in known), 1.0)

    def drop(self, name: str) -> tuple[int, ...]:
        """Frees the blocks of a member. Returns them."""
        freed = self.ledger.drop(name)
        for block in freed:
            self.losses.pop(block, None)
        return freed
