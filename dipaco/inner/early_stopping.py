"""Early stopping per path: a path is released as of the phase with the lowest hold-out loss.

DiPaCo (arXiv 2403.10616) section 2.7. A path that over-fits its shard goes on training, since
others need the modules that it shares. Only its *release* stays at the earlier phase. So a release
may hold modules of several phases. A new shard resets the choice: losses on other documents do not
compare.
"""

import math
from typing import NamedTuple


class Best(NamedTuple):
    """The best phase of a path since it has had its shard."""

    phase: int  # the path's parameters at the start of this phase
    loss: float  # mean nats per token of the hold-out


def best_so_far(before: Best | None, phase: int, loss: float) -> Best:
    """The better of `before`, the best under this shard so far, and a new phase. The earlier of two
    equal ones stays. NaN is never better.
    """
    now = Best(phase, loss)
    if before is None:
        return now
    return now if loss < before.loss or math.isnan(before.loss) else before
