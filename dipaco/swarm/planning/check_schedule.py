"""Whose gradient the leader computes again, and in which step: in secret, and at least once in any
`MAX_GAP` steps in which a credential's sum counts. The first sum of a credential is always checked.
"""

import random

MAX_GAP = 19  # so that what is doubted there is checked once more within 20 steps
REDRAWN = 1 / 16  # of gaps are of any length: no peer is checked in the same rhythm for long


class CheckSchedule:
    """The checks of one leader, by credential."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._left: dict[str, int] = {}  # steps until the next check
        self._last: dict[str, tuple[int, bool]] = {}  # the last step, and whether it was checked

    def is_due(self, serial: str, step: int) -> bool:
        """Whether the sum of a credential is checked in a step; the same whenever it is asked."""
        last = self._last.get(serial)
        if last is not None and last[0] == step:
            return last[1]
        left = self._left.get(serial, 0)
        self._left[serial] = self._gap() - 1 if left <= 0 else left - 1
        self._last[serial] = step, left <= 0
        return left <= 0

    def check_next(self, serial: str) -> None:
        """The next sum of that credential is checked."""
        self._left[serial] = 0
        self._last.pop(serial, None)

    def _gap(self) -> int:
        return self._rng.randint(1, MAX_GAP) if self._rng.random() < REDRAWN else MAX_GAP
