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
from dipaco.swarm.network.credentials import OTHER_RECIPIENT
from dipaco.swarm.network.envelope import Body
from dipaco.swarm.network.messages import (
    NOT_YET,
    Ack,
    MeanReply,
    MeanRequest,
    PushRequest,
    RoundPlan,
    Slice,
)
from dipaco.swarm.network.relay import Relay
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.training.reducer import Reducer, SliceMean


def decoded_mean(codec: str, slices: Sequence[Slice], contents: Sequence[bytes]) -> np.ndarray:
    """The whole mean, float32 [values], from the means of its slices.

    Raises:
      BadMessage: one has another length.
    """
    decode = codec_of(codec).decode
    of_slices = zip(contents, slices, strict=True)
    return np.concatenate([decode(content, part.stop - part.start) for content, part in of_slices])


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


async def push_slice(
    wire: Wire,
    reducer: Reducer,
    plan: RoundPlan,
    part: Slice,
    vector: np.ndarray,
    *,
    within_seconds: float,
    attempts: int = 1,
    through: Relay | None = None,
) -> None:
    """Sends this peer's part of a slice to its reducer.

    Args:
      reducer: the reducer of this peer.
      vector: float32 [values], the whole sum.
      within_seconds: limit for each attempt.
      through: the peer that passes the part on, if its reducer is not reached from here.

    Raises:
      SwarmRefuses: the part does not count.
      PEER_ERRORS: the reducer does not answer, or another peer at its address does. If this peer is
        the reducer, `BadMessage`: the part does not count.
    """
    values = vector[part.start : part.stop]
    content = await asyncio.to_thread(codec_of(plan.codec).encode, values)
    if part.reducer == wire.name:
        total = await reducer.slice_sum(plan.number, part.start, part.stop)
        reducer.push(total, wire.name, content)
        return
    body = PushRequest(round_number=plan.number, step=plan.step, start=part.start, stop=part.stop)
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
                through=through,
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
) -> SliceMean:
    """The coded mean of a slice from its reducer, or the senders that it has refused.

    Raises:
      PEER_ERRORS: the reducer does not give it.
    """
    if part.reducer == wire.name:
        return await reducer.mean(await reducer.slice_sum(plan.number, part.start, part.stop))
    body = MeanRequest(round_number=plan.number, step=plan.step, start=part.start, stop=part.stop)
    reply, content = await _ask_until_known(
        wire, part, "slice_mean", body, MeanReply, within_seconds=within_seconds
    )
    return SliceMean(content, reply.refused)


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
