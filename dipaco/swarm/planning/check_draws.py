"""Draws the sums whose gradient the leader computes again.

Each sum is drawn independently, so that no rhythm tells a liar when it is not watched (BOINC's
adaptive replication). A credential that has passed n checks since its last doubt is checked with
probability 1 / (1 + n), and never less than once in `MEAN_GAP` sums: the mean gap is then 19 sums,
and 95 % of the gaps are within 55. The first sum is always checked.
"""

import random

MEAN_GAP = 19


class CheckDraws:
    """The draws of one leader, by credential."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._passed: dict[str, int] = {}  # checks passed since the last doubt
        self._drawn: dict[str, tuple[int, bool]] = {}  # the last step, and whether it was drawn

    def is_due(self, serial: str, step: int) -> bool:
        """True if a credential's sum is checked in this step. Repeated calls agree."""
        last = self._drawn.get(serial)
        if last is None or last[0] != step:
            share = max(1.0 / MEAN_GAP, 1.0 / (1 + self._passed.get(serial, 0)))
            last = self._drawn[serial] = step, self._rng.random() < share
        return last[1]

    def is_proven(self, serial: str) -> bool:
        """True if it has passed a check since its last doubt."""
        return self._passed.get(serial, 0) > 0

    def passed(self, serial: str) -> None:
        self._passed[serial] = self._passed.get(serial, 0) + 1

    def doubt(self, serial: str) -> None:
        """The credential's next sum is checked, as a newcomer's."""
        self._passed[serial] = 0
        self._drawn.pop(serial, None)
