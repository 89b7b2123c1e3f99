"""A reducer's part of a round: it takes its slice of each sum, adds, and gives the mean.

A part counts only if it has the digest to which its sender has committed itself before any part was
shown. Nothing else is judged here: the leader looks at the means (`leading.sum_checks`), so that no
reducer's word counts against a sender. Sums are float64, and parts are added in the order of their
names, so that the order in which they arrive does not show in the mean.
"""

import asyncio
from collections.abc import Mapping

import numpy as np

from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import RoundPlan, Slice, digest, is_same_term

KEPT_ROUNDS = 3  # rounds whose means are still given out
OVER = "that round is over"


class SliceSum:
    """One slice in one round."""

    def __init__(self, plan: RoundPlan, part: Slice):
        self.plan, self.part = plan, part
        self.parts: dict[str, bytes] = {}  # sender -> coded part
        self.mean: bytes | None = None  # coded
        # set when there is a mean or will be none: see `Reducer.mean`
        self.is_settled = asyncio.Event()
        self.is_over = False

    def end(self) -> None:
        """Ends the sum without a mean. A peer that waits for it may have vanished without a
        goodbye, and would keep all parts for ever.
        """
        self.is_over = True
        self.parts.clear()
        self.is_settled.set()


class Reducer:
    """The slices that this peer adds up."""

    def __init__(self, name: str):
        self._name = name
        self._sums: dict[int, SliceSum] = {}  # keyed by round
        self._new_round = asyncio.Event()

    def begin(self, plan: RoundPlan) -> None:
        """Starts a round in which this peer may have a slice, or takes the news of its plan.

        Rounds of another leader end. Earlier rounds without a mean end as well, since they are held
        again.
        """
        for number, one in list(self._sums.items()):
            is_held_again = number < plan.number and one.mean is None
            if is_held_again or not is_same_term(number, plan.number):
                self._sums.pop(number).end()
        for part in plan.slices:
            if part.reducer == self._name:
                self._sums.setdefault(plan.number, SliceSum(plan, part)).plan = plan
        while len(self._sums) > KEPT_ROUNDS:
            del self._sums[min(self._sums)]
        # The leader may still ask for parts of the last round.
        for number in sorted(self._sums)[:-2]:
            self._sums[number].parts.clear()
        self._new_round.set()
        self._new_round = asyncio.Event()

    async def slice_sum(self, round_number: int, start: int, stop: int) -> SliceSum:
        """The slice of a round, once all its senders are committed. A sender may hear of a round
        before its reducer does. Then this waits for the plan, as long as the caller does.

        Raises:
          SwarmRefuses: that round is over. It is no fault: a peer may be slow.
          BadMessage: this peer does not have that slice.
        """
        while (found := self._sums.get(round_number)) is None or found.plan.commitments is None:
            known = max(self._sums, default=round_number)
            if is_same_term(round_number, known) and round_number < known:
                raise SwarmRefuses(reason=OVER)
            await self._new_round.wait()
        if (found.part.start, found.part.stop) != (start, stop):
            problem = f"values {start} to {stop} of that round are not added up here"
            raise BadMessage(problem=problem)
        return found

    def arrived(self, round_number: int) -> tuple[str, ...]:
        """Senders whose parts have arrived."""
        found = self._sums.get(round_number)
        return () if found is None else tuple(sorted(found.parts))

    def part_of(self, round_number: int, sender: str) -> bytes:
        """A sender's coded part. Raises `BadMessage` if it is not here any more."""
        found = self._sums.get(round_number)
        if found is None or sender not in found.parts:
            raise BadMessage(problem=f"the part of {sender} is not kept here")
        return found.parts[sender]

    def push(self, total: SliceSum, sender: str, content: bytes) -> None:
        """Adds a sender's part.

        Raises:
          SwarmRefuses: that round is over.
          BadMessage: the part does not count, and why.
        """
        if total.is_over:
            raise SwarmRefuses(reason=OVER)
        plan, part = total.plan, total.part
        if sender not in {one.name for one in plan.senders}:
            raise BadMessage(problem=f"{sender} has nothing to add in that round")
        if sender in total.parts or total.mean is not None:
            return  # sent again, because a reply was lost
        check_part(plan, part, sender, content)
        total.parts[sender] = content
        if len(total.parts) == len(plan.senders):
            self._add_up(total)

    def _add_up(self, total: SliceSum) -> None:
        codec, num_values = codec_of(total.plan.codec), total.part.stop - total.part.start
        parts = {name: codec.decode(one, num_values) for name, one in total.parts.items()}
        with np.errstate(invalid="ignore", over="ignore"):
            total.mean = codec.encode(mean_of(parts, total.plan.targets, num_values))
        total.is_settled.set()

    async def mean(self, total: SliceSum) -> bytes:
        """Waits until there is a mean. Returns it as it is sent.

        Raises:
          SwarmRefuses: that round is over, and has no mean.
        """
        await total.is_settled.wait()
        if total.mean is None:
            raise SwarmRefuses(reason=OVER)
        return total.mean


def check_part(plan: RoundPlan, part: Slice, sender: str, content: bytes) -> None:
    """Raises `BadMessage` if a coded part has another size, or not the digest to which its sender
    has committed itself.
    """
    if len(content) != (size := codec_of(plan.codec).num_bytes(part.stop - part.start)):
        raise BadMessage(problem=f"it has {len(content)} bytes of values, expected {size}")
    if plan.commitments and digest(content) != plan.commitment(sender, part):
        raise BadMessage(problem=f"{sender} has committed itself to another part")


def mean_of(parts: Mapping[str, np.ndarray], targets: float, num_values: int) -> np.ndarray:
    """The mean per target, float32. Each operation is IEEE 754's, and parts are added in the order
    of their names, so all machines get the same bits.
    """
    added = np.zeros(num_values, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for name in sorted(parts):
            added += parts[name]
        return (added / max(targets, 1.0)).astype(np.float32)
