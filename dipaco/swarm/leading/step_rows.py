"""The rows of one step, while peers compute them: who has which, and what is summed.

With delayed updates the rows of two steps are open at once: those of the step that the group takes
now, and of the next, whose gradients are at the parameters that this step is predicted to give.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dipaco.swarm.network.messages import BlockResult
from dipaco.swarm.planning.leases import BlockLedger


class StepRows:
    """The rows of a step.

    Args:
      step: its number.
      targets: of each block, as the leader counts them.
      lineage: of the state that the gradients are computed from: before the step, or one step
        earlier.
      learning_rate: of the step between, where it is one step earlier; else None.
      parts: the parameters that the gradients are at.
      batch: the rows themselves.
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
        self.losses: dict[int, float] = {}  # block -> loss, as its peer says
        self.departed_sum: np.ndarray | None = None  # of members that left in order
        self.leased: set[tuple[str, int]] = set()  # (member, block)
        self.failed: set[str] = set()  # members, in a round of this step
        self.began_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since they began to be computed."""
        return time.monotonic() - self.began_at

    def note_work(self, seconds: float) -> None:
        """A peer comes with rows that it has computed for so long, before these began here."""
        self.began_at = min(self.began_at, time.monotonic() - seconds)

    def at(self, lineage: str, parts: Any) -> "StepRows":
        """The same rows, to be computed at the state before their step: none is done yet."""
        return StepRows(self.step, self.targets, lineage=lineage, parts=parts, batch=self.batch)

    def problem_with(self, done: BlockResult) -> str:
        """Why a block has no such result; empty where it may have.

        The leader has the rows, and its count of their targets is exact. A loss is only shown; it
        is not finite where the model has diverged.
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
        """Per target, of blocks whose loss is finite; 0 where there is none. No peer's word alone
        makes a step's loss NaN.
        """
        known = {block: loss for block, loss in self.losses.items() if np.isfinite(loss)}
        return sum(known.values()) / max(sum(self.targets[block] for block in known), 1.0)

    def drop(self, name: str) -> tuple[int, ...]:
        """The blocks of a member are free again. Returns them."""
        freed = self.ledger.drop(name)
        for block in freed:
            self.losses.pop(block, None)
        return freed
