"""A reducer's part of a round: takes its slice from every sender, checks it, adds, and gives the
mean to whoever asks.

A part counts only if it is finite, as long as it should be, and no larger than the group's: its
root mean square per target is compared with that of the others and, while the slice is about the
same, of rounds before: the head's is tens of times the embedding's, and slices move when somebody
joins or leaves. Sums are float64, so that the order in which parts arrive does not show in the
mean.
"""

import asyncio
import collections
import math
import statistics

import numpy as np

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import RoundPlan, digest, is_same_term

MAX_TIMES = 30.0  # times the group's root mean square per target, before it is refused
REMEMBERED = 32  # rounds
MIN_OVERLAP = 0.9  # of what two slices cover together, in both: about the same slice
KEPT_ROUNDS = 3  # whose means are still given out


class SliceSum:
    """One slice in one round."""

    def __init__(self, plan: RoundPlan, start: int, stop: int):
        self.plan, self.start, self.stop = plan, start, stop
        self.parts: dict[str, np.ndarray] = {}
        self.refused: dict[str, str] = {}
        self.mean: bytes | None = None
        self.is_settled = asyncio.Event()  # there is a mean, or somebody was refused


class Reducer:
    """The slices that this peer adds up."""

    def __init__(self, name: str):
        self._name = name
        self._slots: dict[int, SliceSum] = {}
        self._usual: collections.deque[float] = collections.deque(maxlen=REMEMBERED)
        self._usual_of = (0, 0)  # the slice that it was first seen in
        self._news = asyncio.Event()

    def begin(self, plan: RoundPlan) -> None:
        """A round of which this peer may have a slice. Those of another leader are forgotten."""
        self._slots = {n: slot for n, slot in self._slots.items() if is_same_term(n, plan.number)}
        for part in plan.slices:
            if part.reducer == self._name and plan.number not in self._slots:
                self._slots[plan.number] = SliceSum(plan, part.start, part.stop)
        while len(self._slots) > KEPT_ROUNDS:
            del self._slots[min(self._slots)]
        self._news.set()
        self._news = asyncio.Event()

    async def slot(self, round_number: int, start: int, stop: int) -> SliceSum:
        """The slice of a round. Who pushes may have heard of it before we have: it is waited for,
        as long as the caller does.

        Raises:
          BadMessage: this peer does not have that slice.
        """
        while round_number not in self._slots:
            known = min(self._slots, default=round_number)
            if is_same_term(round_number, known) and round_number < known:
                raise BadMessage(problem="that round is over")
            await self._news.wait()
        found = self._slots[round_number]
        if (found.start, found.stop) != (start, stop):
            problem = f"values {start} to {stop} of that round are not added up here"
            raise BadMessage(problem=problem)
        return found

    def arrived(self, round_number: int) -> tuple[str, ...]:
        found = self._slots.get(round_number)
        return () if found is None else tuple(sorted(found.parts))

    def push(self, slot: SliceSum, sender: str, content: bytes) -> None:
        """A sender's part.

        Raises:
          BadMessage: it does not count; the reason is in it, and the leader will be told.
        """
        senders = {one.name: one.targets for one in slot.plan.senders}
        if sender not in senders:
            raise BadMessage(problem=f"{sender} has nothing to add in that round")
        if sender in slot.parts or slot.mean is not None:
            return  # it was sent again: an answer was lost
        try:
            values = codec_of(slot.plan.codec).decode(content, slot.stop - slot.start)
            if not np.isfinite(values).all():
                raise BadMessage(problem="the gradient holds a NaN or an infinity")
        except BadMessage as error:
            self._refuse(slot, sender, str(error.values["problem"]))
            raise
        slot.parts[sender] = values
        if len(slot.parts) == len(senders):
            self._add_up(slot, senders)

    def _add_up(self, slot: SliceSum, targets_of: dict[str, float]) -> None:
        total_targets = sum(targets_of.values())
        scale = {name: _rms(part) / targets_of[name] for name, part in slot.parts.items()}
        if not overlap_mostly(self._usual_of, (slot.start, slot.stop)):
            self._usual.clear()
            self._usual_of = slot.start, slot.stop
        too_large = oversized_sums(scale, targets_of, list(self._usual))
        for name, times in too_large.items():
            del slot.parts[name]
            problem = f"the gradient is {times:.0f} times as large as the group's"
            self._refuse(slot, name, problem)
        if too_large:
            return
        total = np.zeros(slot.stop - slot.start, np.float64)
        for name in sorted(slot.parts):
            total += slot.parts[name]
        mean = (total / max(total_targets, 1.0)).astype(np.float32)
        slot.mean = codec_of(slot.plan.codec).encode(mean)
        slot.is_settled.set()
        slot.parts = {name: np.zeros(0, np.float32) for name in slot.parts}
        if scale and any(scale.values()):
            self._usual.append(statistics.median(scale.values()))

    def _refuse(self, slot: SliceSum, sender: str, reason: str) -> None:
        slot.refused[sender] = reason
        slot.is_settled.set()

    async def outcome(self, slot: SliceSum) -> tuple[bytes, bytes, dict[str, str]]:
        """(mean as it is coded, its digest, who was refused), when either is known."""
        await slot.is_settled.wait()
        if slot.mean is None:
            return b"", b"", dict(slot.refused)
        return slot.mean, digest(slot.mean), {}


def overlap_mostly(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two slices, from and to, hold mostly the same values."""
    shared = min(one[1], other[1]) - max(one[0], other[0])
    covered = max(one[1], other[1]) - min(one[0], other[0])
    return shared >= MIN_OVERLAP * covered


def oversized_sums(
    scale: dict[str, float], targets: dict[str, float], usual: list[float]
) -> dict[str, float]:
    """Who sent far too much, and how many times the group's size.

    A mean over few targets is noisier: by the root of how many fewer they are.

    Args:
      scale: root mean square of each sender's sum, per target.
      targets: of each sender.
      usual: that of rounds before; with nobody to compare with, nobody is refused.
    """
    max_targets, found = max(targets.values(), default=1.0), {}
    for name, own in scale.items():
        others = [value for other, value in scale.items() if other != name]
        known = usual or others
        if not known or not (reference := statistics.median([*usual, *others])):
            continue
        noise = math.sqrt(max_targets / max(targets[name], 1.0))
        if own > MAX_TIMES * noise * reference:
            found[name] = own / reference
    return found


def _rms(values: np.ndarray) -> float:
    return math.sqrt(float(np.mean(np.square(values, dtype=np.float64)))) if len(values) else 0.0
