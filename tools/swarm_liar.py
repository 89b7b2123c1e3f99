"""Runs a `dipaco` command line as a peer that lies, at the pace of `swarm_slow.py`. For
`swarm_storm.py`.

    python tools/swarm_liar.py LIE SECONDS FILE swarm join ...

LIE is one of `LIES`. The sums that it returns to others are 1.01 times too large, or its own
gradient is negated, 1.01 times too large, or an earlier step's.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from swarm_slow import slow_down

from dipaco.cli.main import main
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.reducer import Reducer


def scale_sums(factor: float) -> None:
    """Every slice that this peer adds up is so many times what it should be."""
    add_up = Reducer._add_up

    def lie(self, total, targets):
        add_up(self, total, targets)
        if total.mean is not None:
            codec, num_values = codec_of(total.plan.codec), total.stop - total.start
            mean = codec.decode(total.mean, num_values)
            total.mean = codec.encode((factor * mean).astype(np.float32))

    setattr(Reducer, "_add_up", lie)  # noqa: B010


def scale_gradients(factor: float) -> None:
    """Every gradient that this peer sends is so many times what it should be."""
    _change_gradients(lambda vector: np.float32(factor) * vector)


def send_again() -> None:
    """The first gradient, rolled by one place as the others' are not known, is sent every time."""
    kept: list[np.ndarray] = []

    def lie(vector):
        kept.append(np.roll(vector, 1))
        return kept[0]

    _change_gradients(lie)


def _change_gradients(change: Callable[[np.ndarray], np.ndarray]) -> None:
    gradient_sum = Volunteer.gradient_sum

    def lie(self, plan):
        vector = gradient_sum(self, plan)
        return None if vector is None else change(np.array(vector))

    setattr(Volunteer, "gradient_sum", lie)  # noqa: B010


LIES: dict[str, Callable[[], None]] = {
    "sum-scaled": lambda: scale_sums(1.01),
    "gradient-negated": lambda: scale_gradients(-1.0),
    "gradient-scaled": lambda: scale_gradients(1.01),
    "gradient-again": send_again,
}


if __name__ == "__main__":
    LIES[sys.argv[1]]()
    slow_down(float(sys.argv[2]), Path(sys.argv[3]))
    sys.exit(main(sys.argv[4:]))
