"""A volunteer's sums: its work on a step, and the error feedback of what it sends.

Blocks that count are in the sum of their step. Blocks are *pending* until the leader has accepted
them. Each sum is sent together with the codec's loss from the last one that went into a step.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from dipaco.swarm.network.messages import BlockResult, ClosedStep, RoundPlan
from dipaco.swarm.training.slices import rounding


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


class CodecResidual:
    """The codec's loss from the last sum of a volunteer that went into a step."""

    def __init__(self) -> None:
        self._sent: tuple[int, np.ndarray] | None = None  # the round's number, and the sum
        self._rounded: tuple[ClosedStep, np.ndarray] | None = None  # the step that took it
        self._residual: np.ndarray | None = None

    def added_to(self, vector: np.ndarray, plan: RoundPlan) -> np.ndarray:
        """The sum to send in a round. It takes a while for a large model."""
        if plan.codec == "none":
            return vector
        if self._rounded is not None:
            (closed, sent), self._rounded = self._rounded, None
            self._residual = rounding(closed.codec, closed.slices, sent)
        if self._residual is not None:
            vector = vector + self._residual
        self._sent = plan.number, vector
        return vector

    def on_step(self, closed: ClosedStep) -> None:
        """A step is taken. If the sum was in its round, it went into the step."""
        if self._sent is not None and self._sent[0] == closed.round_number:
            self._rounded = closed, self._sent[1]
        self._sent = None

    def forget(self) -> None:
        """Drops everything, since the loss belongs to another state."""
        self._sent = self._rounded = self._residual = None
