"""Early stopping, each path by itself: it goes out as it was when it did best on its own hold-out.

DiPaCo (arXiv 2403.10616) section 2.7. A path that has begun to learn its shard by heart goes on
training, since others need the modules that it shares; only what is *released* of it stays behind.
So a release may be made of modules of several phases. A path that is given another shard begins
anew: a loss on other documents says nothing about these.
"""

import math
from typing import NamedTuple


class Best(NamedTuple):
    """The best that a path has been since it has had its shard."""

    phase: int  # at whose start its parameters are meant
    loss: float  # mean nats per token of the hold-out


def best_so_far(before: Best | None, phase: int, loss: float) -> Best:
    """The better of two, and of equals the earlier, which has fewer steps behind it. A loss that is
    no number is not better than any.

    Args:
      before: what was best before `phase`; None: nothing was, under this shard.
      phase, loss: how the path does now.
    """
    now = Best(phase, loss)
    if before is None:
        return now
    return now if loss < before.loss or math.isnan(before.loss) else before
