"""Checks of gradients: which sums the leader computes again, the verdict on them, and the evidence.

Each sum is drawn independently, so that no rhythm tells a liar when it is not watched (BOINC's
adaptive replication). A credential that has passed n checks since its last doubt is checked with
probability 1 / (1 + n), and never less than once in `MEAN_GAP` sums: the mean gap is then 19 sums,
and 95 % of the gaps are within 55. The first sum is always checked.

Machines do not agree to the last bit. Two things are compared: the part along the expected
gradient, in which differences of single values cancel (so that a factor of 1.01 shows), and the
distance. All figures were measured on 0.9 M parameters in spots of 1,024 values, as the largest of
864. With float32 on other processors, threads, orders and levels of optimisation, factors are 2e-6
off. They are 1.6e-4 off with fast mathematics, and 3.9e-3 with the ten bits of a GPU's TF32
products. Distances are 2e-6, 2.9e-4 and 7.8e-3 of the gradient. Between bfloat16 and float32
factors are 3.7e-2 off, and distances are 6.3e-2.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dipaco.control.members.swarms import PROVED

MEAN_GAP = 19


class CheckDraws:
    """The draws of one leader."""

    def __init__(self, rng: random.Random):
        self._rng = rng
        self._passed: dict[str, int] = {}  # checks passed since the last doubt, by credential
        self._step, self._drawn = -1, dict[str, bool]()  # sessions in the last step

    def is_due(self, serial: str, session: str, step: int) -> bool:
        """True if a session's sum is checked in this step. Repeated calls agree until a doubt."""
        if not self.is_proven(serial):
            return True
        if step != self._step:
            self._step, self._drawn = step, {}
        share = max(1.0 / MEAN_GAP, 1.0 / (1 + self._passed[serial]))
        return self._drawn.setdefault(session, self._rng.random() < share)

    def is_proven(self, serial: str) -> bool:
        """True if it has passed a check since its last doubt."""
        return self._passed.get(serial, 0) > 0

    def passed(self, serial: str) -> None:
        self._passed[serial] = self._passed.get(serial, 0) + 1

    def doubt(self, serial: str) -> None:
        """The credential's next sum is checked, as a newcomer's."""
        self._passed[serial] = 0


FLOOR = 1e-4  # Precision below which no value is compared, in root mean squares of the gradient.
# Spots below this share of the gradient's root mean square are measured by it. All spots are
# compared, and what cancels in a small one leaves the roundings of what was added.
SMALL = 0.01
BOUNDS = 2.5  # Six standard deviations of two roundings, divided by the largest error of both.
CLEARLY = 3.0  # A sum this many times the tolerated distance away is enough alone.


class Tolerance(NamedTuple):
    """Largest differences between honest machines."""

    factor: float  # limit over all compared values
    spot_factor: float  # limit within one spot
    distance: float  # norms of the gradient


TOLERANCES = {
    "float32": Tolerance(factor=6e-3, spot_factor=0.03, distance=0.05),
    "bfloat16": Tolerance(factor=0.05, spot_factor=0.2, distance=0.25),
}


class Compared(NamedTuple):
    """Values of a sum beside the expected ones."""

    given: np.ndarray  # float32 [n]
    expected: np.ndarray  # float32 [n]
    rounding: np.ndarray  # float64 [n]: how much codecs may have changed each


class Verdict(NamedTuple):
    """The result of a comparison."""

    problem: str = ""  # empty if the sum is as expected
    is_clear: bool = False  # no honest machine is so far off
    spot: int = 0  # the number of the spot that shows it


def judge(spots: Sequence[Compared], tolerance: Tolerance) -> Verdict:
    """Judges a sum by its values at some spots, all float32 and of one gradient."""
    whole = Compared(*(np.concatenate([one[i] for one in spots]) for i in range(3)))
    size = float(np.sqrt(np.mean(np.square(whole.expected, dtype=np.float64))))
    verdict = _judge(whole, size, tolerance.factor, tolerance.distance)
    if verdict.problem:
        distances = [float(np.linalg.norm(one.given - one.expected)) for one in spots]
        return verdict._replace(spot=int(np.argmax(distances)))
    for number, one in enumerate(spots):
        found = _judge(one, size, tolerance.spot_factor, tolerance.distance, SMALL)
        if found.problem:
            return found._replace(spot=number)
    return Verdict()


def _judge(
    one: Compared, size: float, factor: float, distance: float, least: float = 0.0
) -> Verdict:
    given, expected = one.given.astype(np.float64), one.expected.astype(np.float64)
    rounding = one.rounding + FLOOR * size
    norm, apart = float(np.linalg.norm(expected)), float(np.linalg.norm(given - expected))
    least *= size * len(expected) ** 0.5
    allowed = distance * max(norm, least) + 3.0 * float(np.linalg.norm(rounding))
    is_clear = not apart <= CLEARLY * allowed
    if norm == 0.0:
        problem = "" if apart <= allowed else "has values where that of its rows has none"
        return Verdict(problem, is_clear)
    times = float(given @ expected) / norm**2
    noise = BOUNDS * float(np.linalg.norm(rounding * expected)) / norm**2
    is_near = norm >= least and float(np.linalg.norm(given - times * expected)) <= allowed
    if is_near and not abs(times - 1.0) <= factor + noise:
        return Verdict(f"is {times:.4g} times that of its rows", is_clear)
    if not apart <= allowed:
        return Verdict(f"is {apart / norm:.2g} of its size away from that of its rows", is_clear)
    return Verdict()


SHOWN = 4  # values kept from each side


class Evidence(NamedTuple):
    """A lie that the leader has found itself, without the word of any peer."""

    kind: str  # "sum" or "gradient"
    step: int
    round_number: int
    first: int  # the compared values of the gradient are those from `first` to `last`
    last: int
    problem: str  # part of a sentence
    claimed: tuple[float, ...] = ()  # the first values that differ, as the peer gave them
    found: tuple[float, ...] = ()  # the same values as they should be

    @property
    def reason(self) -> str:
        """The reason that the refused session is given."""
        return f"{PROVED} at step {self.step + 1}: {self.problem}"
