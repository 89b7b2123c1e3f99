"""The rows of one step while peers compute them: their holders and their sums.

With delayed updates the rows of two steps are open at once: the step that the group takes now, and
the next, whose gradients belong to the parameters that this step is predicted to give.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dipaco.swarm.network.messages import BlockResult, WorkReply
from dipaco.swarm.planning.leases import BlockLedger


class StepRows:
    """The rows of a step. `lineage`: names the state that the gradients are computed from: before
    the step, or one step earlier. `learning_rate`: the rate of the step between, in that case.
    """

    def __init__(
        self,
        step: int,
        targets: Sequence[float],
        *,
        lineage: str = "",
        learning_rate: float | None = None,
        parts: Any = None,
        batch: Mapping[str, np.ndarray] | None = None,
    ):
        self.step, self.targets = step, tuple(targets)
        self.lineage, self.learning_rate = lineage, learning_rate
        self.parts, self.batch = parts, batch or {}
        self.ledger = BlockLedger(step, len(self.targets))
        self.losses: dict[int, float] = {}  # block -> loss by its peer's word
        self.leased: set[tuple[str, int]] = set()  # (member, block)
        self.failed: set[str] = set()  # members that failed in a round of this step
        self.began_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Time since these rows began to be computed."""
        return time.monotonic() - self.began_at

    def at(self, lineage: str, parts: Any) -> "StepRows":
        """The same rows, to be computed at the state before their step. None is done yet."""
        return StepRows(self.step, self.targets, lineage=lineage, parts=parts, batch=self.batch)

    def leasing(self, blocks: tuple[int, ...]) -> WorkReply:
        """The reply that leases these blocks."""
        return WorkReply(
            blocks=blocks, step=self.step, lineage=self.lineage, learning_rate=self.learning_rate
        )

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
