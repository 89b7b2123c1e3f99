"""A reducer's part of a round: it takes its slice of each sum, checks it, adds, and gives the mean.

A part counts only if it is finite, as long as it should be, and no larger than the group's. Its
root mean square per target is compared with that of the other parts and, while the slice stays
about the same, with earlier rounds. (The head's gradient is tens of times the embedding's, and
slices move when a peer joins or leaves.) Sums are float64, so that the order in which parts arrive
does not show in the mean.
"""

import asyncio
import collections
import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import RoundPlan, is_same_term
from dipaco.swarm.planning.accusations import NOT_FINITE, TOO_LARGE
from dipaco.swarm.planning.evidence import Evidence

MAX_TIMES = 30.0  # A part is refused beyond so many times the group's root mean square per target.
REMEMBERED = 32  # rounds kept for comparison
# Slices are about the same if they share this much of the values they cover together.
MIN_OVERLAP = 0.9
KEPT_ROUNDS = 3  # rounds whose means are still given out
OVER = "that round is over"


class SliceMean(NamedTuple):
    """The result of a slice of a round."""

    content: bytes  # the coded mean; empty if a sender was refused
    refused: dict[str, str]  # sender -> reason
    lie: Evidence | None = None  # evidence that its reducer has added up something else


class SliceSum:
    """One slice in one round."""

    def __init__(self, plan: RoundPlan, start: int, stop: int):
        self.plan, self.start, self.stop = plan, start, stop
        self.parts: dict[str, np.ndarray] = {}
        self.signed: dict[str, tuple[bytes, bytes]] = {}  # sender -> header, coded part
        self.refused: dict[str, str] = {}
        self.mean: bytes | None = None
        # set when there is a mean or will be none: see `Reducer.mean`
        self.is_settled = asyncio.Event()
        self.is_over = False

    def end(self) -> None:
        """Ends the sum without a mean. A peer that waits for it may have vanished without a
        goodbye, and would keep all parts for ever.
        """
        self.is_over = True
        self.parts.clear()
        self.signed.clear()
        self.is_settled.set()


class Reducer:
    """The slices that this peer adds up."""

    def __init__(self, name: str):
        self._name = name
        self._sums: dict[int, SliceSum] = {}  # keyed by round
        self._usual: collections.deque[float] = collections.deque(maxlen=REMEMBERED)
        self._usual_of = (0, 0)  # the slice in which `_usual` was measured
        self._new_round = asyncio.Event()

    def begin(self, plan: RoundPlan) -> None:
        """Starts a round in which this peer may have a slice.

        Rounds of another leader end. Earlier rounds without a mean end as well, since they are held
        again.
        """
        for number, one in list(self._sums.items()):
            is_held_again = number < plan.number and one.mean is None
            if is_held_again or not is_same_term(number, plan.number):
                self._sums.pop(number).end()
        for part in plan.slices:
            if part.reducer == self._name and plan.number not in self._sums:
                self._sums[plan.number] = SliceSum(plan, part.start, part.stop)
        while len(self._sums) > KEPT_ROUNDS:
            del self._sums[min(self._sums)]
        for number, one in self._sums.items():
            if number < plan.number:
                one.signed.clear()  # nobody asks any more for the signed parts
        self._new_round.set()
        self._new_round = asyncio.Event()

    async def slice_sum(self, round_number: int, start: int, stop: int) -> SliceSum:
        """The slice of a round. A sender may hear of a round before its reducer does. Then this
        waits for the plan, as long as the caller does.

        Raises:
          SwarmRefuses: that round is over. It is no fault: a peer may be slow.
          BadMessage: this peer does not have that slice.
        """
        while round_number not in self._sums:
            known = max(self._sums, default=round_number)
            if is_same_term(round_number, known) and round_number < known:
                raise SwarmRefuses(reason=OVER)
            await self._new_round.wait()
        found = self._sums[round_number]
        if (found.start, found.stop) != (start, stop):
            problem = f"values {start} to {stop} of that round are not added up here"
            raise BadMessage(problem=problem)
        return found

    def sum_of(self, round_number: int) -> SliceSum | None:
        """The slice of a round, if this peer knows the round."""
        return self._sums.get(round_number)

    def arrived(self, round_number: int) -> tuple[str, ...]:
        """Senders whose parts have arrived."""
        found = self._sums.get(round_number)
        return () if found is None else tuple(sorted(found.parts))

    def push(self, total: SliceSum, sender: str, content: bytes, header: bytes = b"") -> None:
        """Adds a sender's part.

        Args:
          header: the signed header of the request; empty for this peer's own part.

        Raises:
          SwarmRefuses: that round is over.
          BadMessage: the part does not count, and why. The leader learns of it with the mean. Parts
            that are not finite are refused when all parts have arrived, so that the leader sees how
            many there are.
        """
        if total.is_over:
            raise SwarmRefuses(reason=OVER)
        senders = {one.name: one.targets for one in total.plan.senders}
        if sender not in senders:
            raise BadMessage(problem=f"{sender} has nothing to add in that round")
        if sender in total.parts or total.mean is not None:
            return  # sent again, because a reply was lost
        try:
            values = codec_of(total.plan.codec).decode(content, total.stop - total.start)
        except BadMessage as error:
            self._refuse(total, sender, str(error.values["problem"]))
            raise
        total.parts[sender] = values
        total.signed[sender] = header, content
        if len(total.parts) == len(senders):
            self._add_up(total, senders)

    def _add_up(self, total: SliceSum, targets_of: dict[str, float]) -> None:
        not_finite = [name for name, part in total.parts.items() if not np.isfinite(part).all()]
        for name in not_finite:
            del total.parts[name]
            self._refuse(total, name, NOT_FINITE)
        if not_finite:
            return
        total_targets = sum(targets_of.values())
        scale = {
            name: _rms(part) / max(targets_of[name], 1.0) for name, part in total.parts.items()
        }
        if not overlap_mostly(self._usual_of, (total.start, total.stop)):
            self._usual.clear()
            self._usual_of = total.start, total.stop
        oversized = oversized_sums(scale, targets_of, list(self._usual))
        for name, times in oversized.items():
            del total.parts[name]
            problem = f"the gradient is {times:.0f} {TOO_LARGE}"
            self._refuse(total, name, problem)
        if oversized:
            return
        mean = mean_of(total.parts, total_targets, total.stop - total.start)
        total.mean = codec_of(total.plan.codec).encode(mean)
        total.is_settled.set()
        total.parts = {name: np.zeros(0, np.float32) for name in total.parts}
        if scale and any(scale.values()):
            self._usual.append(statistics.median(scale.values()))

    def _refuse(self, total: SliceSum, sender: str, reason: str) -> None:
        total.refused[sender] = reason
        total.is_settled.set()

    async def mean(self, total: SliceSum) -> SliceMean:
        """Waits until there is a mean, or a sender was refused.

        Raises:
          SwarmRefuses: that round is over, and has no mean.
        """
        await total.is_settled.wait()
        if total.mean is None and not total.refused:
            raise SwarmRefuses(reason=OVER)
        if total.mean is None:
            return SliceMean(b"", dict(total.refused))
        return SliceMean(total.mean, {})


def mean_of(parts: Mapping[str, np.ndarray], targets: float, num_values: int) -> np.ndarray:
    """The mean per target, float32. Each operation is IEEE 754's, and parts are added in the order
    of their names, so all machines get the same bits.
    """
    added = np.zeros(num_values, np.float64)
    for name in sorted(parts):
        added += parts[name]
    return (added / max(targets, 1.0)).astype(np.float32)


def overlap_mostly(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """True if two slices (start, stop) hold mostly the same values."""
    shared = min(one[1], other[1]) - max(one[0], other[0])
    covered = max(one[1], other[1]) - min(one[0], other[0])
    return shared >= MIN_OVERLAP * covered


def oversized_sums(
    scale: dict[str, float], targets: dict[str, float], usual: list[float]
) -> dict[str, float]:
    """Senders whose sum is far too large, and how many times the group's size it is.

    A mean over few targets is noisier: by the root of how many fewer they are.

    Args:
      scale: root mean square of each sender's sum, per target.
      targets: the number of targets of each sender.
      usual: the same measure in earlier rounds. Without it, one sender alone is never refused.
    """
    max_targets, found = max(targets.values(), default=1.0), {}
    for name, own in scale.items():
        others = [value for other, value in scale.items() if other != name]
        known = usual or others
        if not known or not (reference := statistics.median([*usual, *others])):
            continue
        noise = math.sqrt(max(max_targets, 1.0) / max(targets[name], 1.0))
        if own > MAX_TIMES * noise * reference:
            found[name] = own / reference
    return found


def _rms(values: np.ndarray) -> float:
    return math.sqrt(float(np.mean(np.square(values, dtype=np.float64)))) if len(values) else 0.0
