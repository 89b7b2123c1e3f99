"""Chooses the sums whose gradient the leader computes again.

The choice is secret. A credential is checked at least once in any `MAX_GAP` steps in which its sum
counts, and always at its first sum.
"""

import random

MAX_GAP = 19  # A doubted credential is checked once more within 20 steps.
REDRAWN = 1 / 16  # Share of the gaps that have a random length. It breaks any rhythm.


class CheckSchedule:
    """The checks of one leader, by credential."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._left: dict[str, int] = {}  # steps until the next check
        self._last: dict[str, tuple[int, bool]] = {}  # the last step, and whether it was checked

    def is_due(self, serial: str, step: int) -> bool:
        """True if a credential's sum is checked in this step. Repeated calls agree."""
        last = self._last.get(serial)
        if last is not None and last[0] == step:
            return last[1]
        left = self._left.get(serial, 0)
        self._left[serial] = self._gap() - 1 if left <= 0 else left - 1
        self._last[serial] = step, left <= 0
        return left <= 0

    def check_next(self, serial: str) -> None:
        """Makes the credential's next sum a checked one."""
        self._left[serial] = 0
        self._last.pop(serial, None)

    def _gap(self) -> int:
        return self._rng.randint(1, MAX_GAP) if self._rng.random() < REDRAWN else MAX_GAP
