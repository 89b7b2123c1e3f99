"""One slice of a round between two peers: a part goes to its reducer, the mean comes from it.

If this peer is the reducer itself, nothing goes over the network.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import (
    NOT_YET,
    Ack,
    MeanReply,
    MeanRequest,
    PushRequest,
    RoundPlan,
    Slice,
    digest,
)
from dipaco.swarm.network.wire import OTHER_RECIPIENT, PEER_ERRORS, Body, Wire
from dipaco.swarm.training.reducer import Reducer


def decoded_mean(codec: str, slices: Sequence[Slice], contents: Sequence[bytes]) -> np.ndarray:
    """The whole mean, float32 [values], from the means of its slices.

    Raises:
      BadMessage: one has another length.
    """
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


def rounding(codec: str, slices: Sequence[Slice], vector: np.ndarray) -> np.ndarray:
    """The values that the codec loses, float32 [values], when a vector is cut as it is sent. Error
    feedback adds them to the next vector (1-bit SGD, Seide et al. 2014).
    """
    coded = codec_of(codec)
    lost = np.zeros_like(vector)
    for part in slices:
        values = vector[part.start : part.stop]
        lost[part.start : part.stop] = values - coded.decode(coded.encode(values), len(values))
    return lost


async def push_part(
    wire: Wire,
    reducer: Reducer,
    plan: RoundPlan,
    part: Slice,
    content: bytes,
    *,
    sender: str,
    within_seconds: float,
    attempts: int = 1,
) -> None:
    """Sends a sender's part of a slice to its reducer.

    Args:
      reducer: the reducer of this peer.
      content: the coded part.
      within_seconds: limit for each attempt.

    Raises:
      SwarmRefuses: the part does not count.
      PEER_ERRORS: the reducer does not answer, or another peer at its address does. If this peer is
        the reducer, `BadMessage`: the part does not count.
    """
    if part.reducer == wire.name:
        total = await reducer.slice_sum(plan.number, part.start, part.stop)
        reducer.push(total, sender, content)
        return
    body = PushRequest(
        round_number=plan.number, step=plan.step, start=part.start, stop=part.stop, sender=sender
    )
    for attempt in range(1, attempts + 1):
        try:
            await _ask_until_known(
                wire,
                part,
                "push",
                body,
                Ack,
                payload=content,
                within_seconds=within_seconds,
            )
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
    """The coded mean of a slice from its reducer.

    Raises:
      PEER_ERRORS: the reducer does not give it.
    """
    if part.reducer == wire.name:
        return await reducer.mean(await reducer.slice_sum(plan.number, part.start, part.stop))
    body = MeanRequest(round_number=plan.number, step=plan.step, start=part.start, stop=part.stop)
    _, content = await _ask_until_known(
        wire, part, "slice_mean", body, MeanReply, within_seconds=within_seconds
    )
    return content


async def _ask_until_known(
    wire: Wire,
    part: Slice,
    method: str,
    body: msgspec.Struct,
    reply: type[Body],
    *,
    within_seconds: float,
    **more: Any,
) -> tuple[Body, bytes]:
    """Asks a reducer until it knows the round. Arguments are those of `Wire.ask`."""
    async with asyncio.timeout(within_seconds):
        while True:
            try:
                return await wire.ask(
                    part.address,
                    method,
                    body,
                    reply,
                    within_seconds=within_seconds,
                    recipient=part.reducer,
                    **more,
                )
            except SwarmRefuses as error:
                if error.values["reason"] != NOT_YET:
                    raise
                await asyncio.sleep(0.05)
