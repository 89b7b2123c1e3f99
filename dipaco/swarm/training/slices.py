"""Slices of a round: parts go to their reducers, which add them up and give the means.

A part counts only if it has the digest to which its sender has committed itself before any part was
shown. Nothing else is judged here: the leader looks at the means (`leading.sum_checks`), so that no
reducer's word counts against a sender. Sums are float64, and parts are added in the order of their
names, so that the order in which they arrive does not show in the mean. If a peer is the reducer
itself, nothing goes over the network.
"""

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import (
    NOT_YET,
    Ack,
    RoundPlan,
    Slice,
    SliceRequest,
    digest,
    is_same_term,
)
from dipaco.swarm.network.streams import Signal
from dipaco.swarm.network.wire import OTHER_RECIPIENT, PEER_ERRORS, Wire

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
        """Ends the sum without a mean, for those that wait for it: they would keep all parts."""
        self.is_over = True
        self.parts.clear()
        self.is_settled.set()


class Reducer:
    """The slices that this peer adds up."""

    def __init__(self, name: str):
        self._name = name
        self._sums: dict[int, SliceSum] = {}  # keyed by round
        self._new_round = Signal()

    def begin(self, plan: RoundPlan) -> None:
        """Starts a round in which this peer may have a slice, or takes the news of its plan. Rounds
        of another leader end, and those without a mean, since they are held again.
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

    async def slice_sum(self, round_number: int, start: int, stop: int) -> SliceSum:
        """The slice of a round, once all its senders are committed. A sender may hear of a round
        before its reducer does: this waits for the plan, as long as the caller does. Raises
        `SwarmRefuses`: that round is over; `BadMessage`: this peer does not have that slice.
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
        """Adds a sender's part. Raises `SwarmRefuses`: that round is over; `BadMessage`: it does
        not count.
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
        """The mean as it is sent, once there is one. Raises `SwarmRefuses`: the round is over."""
        await total.is_settled.wait()
        if total.mean is None:
            raise SwarmRefuses(reason=OVER)
        return total.mean


def check_part(plan: RoundPlan, part: Slice, sender: str, content: bytes) -> None:
    """Raises `BadMessage` if a coded part has another size, or not its committed digest."""
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


def decoded_mean(codec: str, slices: Sequence[Slice], contents: Sequence[bytes]) -> np.ndarray:
    """The whole mean, float32 [values], from its slices' means. Raises `BadMessage`."""
    decode = codec_of(codec).decode
    of_slices = zip(contents, slices, strict=True)
    return np.concatenate([decode(content, part.stop - part.start) for content, part in of_slices])


def coded_parts(plan: RoundPlan, vector: np.ndarray) -> list[bytes]:
    """A sender's sum as it is sent, slice by slice."""
    encode = codec_of(plan.codec).encode
    with np.errstate(invalid="ignore", over="ignore"):
        return [encode(vector[part.start : part.stop]) for part in plan.slices]


def commitment_to(contents: Sequence[bytes]) -> bytes:
    """The digests of coded parts, one after the other."""
    return b"".join(map(digest, contents))


async def push_part(
    wire: Wire,
    reducer: Reducer,
    plan: RoundPlan,
    part: Slice,
    content: bytes,
    *,
    sender: str,
    attempts: int = 1,
) -> None:
    """Sends a sender's part of a slice to its reducer. Raises `SwarmRefuses`: the part does not
    count; `PEER_ERRORS`: the reducer does not answer, or another peer does at its address.
    """
    within = attempts * plan.within_seconds
    if part.reducer == wire.name:
        total = await reducer.slice_sum(plan.number, part.start, part.stop)
        reducer.push(total, sender, content)
        return
    body = SliceRequest(round_number=plan.number, start=part.start, stop=part.stop, sender=sender)
    for attempt in range(1, attempts + 1):
        try:
            await _ask_until_known(wire, part, "push", body, within, content)
            return
        except SwarmRefuses as error:
            if error.values["reason"] != OTHER_RECIPIENT:
                raise
            raise ConnectionRefusedError("another peer answers at its address") from error
        except TimeoutError:
            raise  # it was silent, and another attempt would cost as much
        except PEER_ERRORS:
            if attempt == attempts:
                raise
            await asyncio.sleep(0.05)


async def fetch_mean(
    wire: Wire, reducer: Reducer, plan: RoundPlan, part: Slice, *, within_seconds: float
) -> bytes:
    """The coded mean of a slice from its reducer. Raises `PEER_ERRORS`."""
    if part.reducer == wire.name:
        return await reducer.mean(await reducer.slice_sum(plan.number, part.start, part.stop))
    body = SliceRequest(round_number=plan.number, start=part.start, stop=part.stop)
    return await _ask_until_known(wire, part, "slice_mean", body, within_seconds)


async def _ask_until_known(
    wire: Wire,
    part: Slice,
    method: str,
    body: SliceRequest,
    within_seconds: float,
    payload: bytes = b"",
) -> bytes:
    """Asks a reducer until it knows the round, for what it sends. Raises `PEER_ERRORS`."""
    asked, within = (part.address, method, body, Ack), within_seconds
    async with asyncio.timeout(within):
        while True:
            try:
                _, content = await wire.ask(
                    *asked, payload=payload, within_seconds=within, recipient=part.reducer
                )
                return content
            except SwarmRefuses as error:
                if error.values["reason"] != NOT_YET:
                    raise
                await asyncio.sleep(0.05)
