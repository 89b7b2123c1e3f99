"""A volunteer's work on one step: blocks that count, in its sum, and blocks that are *pending*
until the leader has accepted them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from dipaco.swarm.network.messages import BlockResult


@dataclasses.dataclass
class StepSum:
    """The sum of one step."""

    step: int
    lineage: str  # lineage of the state from which the gradients are computed
    parts: Any  # the parameters of the gradients
    total: Any | None = None
    summed: dict[int, BlockResult] = dataclasses.field(default_factory=dict)  # blocks in `total`
    pending: dict[int, tuple[Any, BlockResult]] = dataclasses.field(default_factory=dict)
    done: list[BlockResult] = dataclasses.field(default_factory=list)  # not reported yet

    def note(self, gradient: Any, done: BlockResult) -> None:
        """Notes a computed block."""
        self.pending[done.block] = gradient, done
        self.done.append(done)

    def add(self, block: int, add: Callable[[Any, Any], Any]) -> None:
        """Adds a pending block that counts."""
        gradient, self.summed[block] = self.pending.pop(block)
        self.total = gradient if self.total is None else add(self.total, gradient)
