"""Proofs by a reducer that its mean belongs to the parts that the senders have signed.

When a reducer has given its mean, the leader draws some neighbouring values of the slice. The
reducer shows each sender's part there: the header that the sender has signed, and the leaves of the
payload's Merkle tree that hold these values. The leader adds them up again. It gets the same bits,
on any machine (`reducer.mean_of`), or the reducer has lied. A reducer cannot show a part that no
sender has signed, and a sender cannot deny one. No other peer is asked, so none can accuse another.
If a fraction f of a sum's values is wrong, it is found with probability f in each round, before the
step is taken. A sum that is scaled, negated or from other senders is wrong everywhere.

For its own part a reducer has only its own word. That part is checked like any sender's gradient,
by `leading.gradient_checks`.
"""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dipaco.errors import DipacoError
from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.codecs import WireCodec, codec_of
from dipaco.swarm.network.merkle import LEAF_BYTES, OpenedLeaf, is_in, open_leaves
from dipaco.swarm.network.messages import (
    ProofRequest,
    PushRequest,
    RoundPlan,
    SignedPart,
    Slice,
    SumProof,
)
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.planning.evidence import SHOWN, Evidence
from dipaco.swarm.training.reducer import SliceSum, mean_of

SPOT_VALUES = 1024  # a multiple of the blocks that codecs scale
DRAWS = 4  # tries to find values that are not all zero
LEAST = 2.0**-126  # smaller float32 values may be zero on some machines


class SpotPart(NamedTuple):
    """A sender's part of the drawn values of one slice."""

    start: int  # position in the whole gradient
    values: np.ndarray  # float32, decoded
    rounding: np.ndarray  # float64: largest error of each from coding
    header: bytes  # the sender's signed header; empty if the leader has the part from the sender


def draw_spot(mean: np.ndarray, rng: random.Random) -> tuple[int, int]:
    """Draws the values of a slice that are to be shown: (first, last)."""
    spots = max(1, -(-len(mean) // SPOT_VALUES))
    for _ in range(DRAWS):
        first = SPOT_VALUES * rng.randrange(spots)
        last = min(first + SPOT_VALUES, len(mean))
        if mean[first:last].any():
            break
    return first, last


# --- the reducer -----------------------------------------------------------------------------


def prove(wire: Wire, total: SliceSum, request: ProofRequest) -> SumProof:
    """Shows the parts that this peer has added up.

    Raises:
      BadMessage: there are no such values, or the parts are gone.
    """
    num_values = total.stop - total.start
    if not 0 <= request.first < request.last <= num_values or request.first % SPOT_VALUES:
        raise BadMessage(problem=f"values {request.first} to {request.last} of {num_values}")
    signed = dict(total.signed)  # a copy, since a round that is over is cleared meanwhile
    if total.mean is None or len(signed) < len(total.plan.senders):
        raise BadMessage(problem="nothing was added up there, or that round is over")
    codec = codec_of(total.plan.codec)
    numbers = _leaf_numbers(codec, num_values, request.first, request.last)
    parts = []
    for name, (header, content) in sorted(signed.items()):
        if not header:
            body = _push_of(total.plan, total.start, total.stop)
            header = wire.signed("push", body, content, name)
        parts.append(SignedPart(header=header, leaves=open_leaves(content, numbers)))
    return SumProof(parts=tuple(parts))


# --- the leader ------------------------------------------------------------------------------


def own_parts(total: SliceSum, first: int, last: int) -> dict[str, SpotPart]:
    """Each sender's part of values that this peer has added up itself."""
    codec = codec_of(total.plan.codec)
    found = {}
    for name, (header, content) in total.signed.items():
        pieces = codec.pieces(total.stop - total.start, first, last)
        coded = b"".join(content[start:stop] for start, stop in pieces)
        found[name] = _spot_part(codec, coded, total.start + first, last - first, header)
    return found


def check_proof(
    wire: Wire, plan: RoundPlan, part: Slice, content: bytes, spot: tuple[int, int], proof: SumProof
) -> tuple[dict[str, SpotPart], Evidence | None]:
    """Each sender's part of the drawn values, and evidence if the reducer's mean is wrong.

    Args:
      wire: the leader's wire.
      part, content: the slice, and its coded mean as the reducer gave it.
      spot: the drawn values, (first, last).
    """
    codec, num_values = codec_of(plan.codec), part.stop - part.start
    first, last = spot

    def lie(problem: str, claimed: Sequence[float] = (), right: Sequence[float] = ()) -> Evidence:
        where = part.start + first, part.start + last
        values = tuple(map(float, claimed[:SHOWN])), tuple(map(float, right[:SHOWN]))
        return Evidence("sum", plan.step, plan.number, *where, problem, *values)

    shown: dict[str, SpotPart] = {}
    for one in proof.parts:
        try:
            sender, values = _checked(wire, plan, part, codec, spot, one)
        except DipacoError as error:
            return {}, lie(f"a part of its sum was not signed by any sender ({error})")
        shown[sender] = values
    missing = sorted({one.name for one in plan.senders} - set(shown))
    if missing:
        return {}, lie(f"it cannot show what {missing[0]} has sent")
    parts = {name: each.values for name, each in shown.items()}
    mean = mean_of(parts, plan.targets, last - first)
    coded = b"".join(content[start:stop] for start, stop in codec.pieces(num_values, first, last))
    claimed = codec.decode(coded, last - first)
    if _is_coded(codec, mean, coded, content, num_values):
        return shown, None
    at = np.flatnonzero(claimed != mean)[:SHOWN]
    return shown, lie(_how_wrong(claimed, mean), list(claimed[at]), list(mean[at]))


def _checked(
    wire: Wire,
    plan: RoundPlan,
    part: Slice,
    codec: WireCodec,
    spot: tuple[int, int],
    one: SignedPart,
) -> tuple[str, SpotPart]:
    """A sender and its part. Raises `BadMessage` or `MessageRefused` if it has not signed that."""
    signed, body = wire.opened(one.header, PushRequest)
    num_values, num_bytes = part.stop - part.start, signed.payload_bytes
    if signed.method != "push" or body != _push_of(plan, part.start, part.stop):
        raise BadMessage(problem=f"{signed.sender} has signed something else")
    if signed.sender not in {sender.name for sender in plan.senders}:
        raise BadMessage(problem=f"{signed.sender} has nothing to add in that round")
    if num_bytes != codec.num_bytes(num_values):
        raise BadMessage(problem=f"{signed.sender} has sent {num_bytes} bytes")
    leaves = {leaf.number: leaf for leaf in one.leaves}
    for number in _leaf_numbers(codec, num_values, *spot):
        if number not in leaves or not is_in(leaves[number], signed.payload_root, num_bytes):
            raise BadMessage(problem=f"{signed.sender} has signed other values")
    coded = b"".join(_cut(leaves, start, stop) for start, stop in codec.pieces(num_values, *spot))
    count = spot[1] - spot[0]
    return signed.sender, _spot_part(codec, coded, part.start + spot[0], count, one.header)


def _spot_part(codec: WireCodec, coded: bytes, start: int, count: int, header: bytes) -> SpotPart:
    return SpotPart(start, codec.decode(coded, count), codec.rounding(coded, count), header)


def _push_of(plan: RoundPlan, start: int, stop: int) -> PushRequest:
    return PushRequest(round_number=plan.number, step=plan.step, start=start, stop=stop)


def _leaf_numbers(codec: WireCodec, num_values: int, first: int, last: int) -> list[int]:
    """The leaves of a coded part that hold some of its values."""
    numbers: set[int] = set()
    for start, stop in codec.pieces(num_values, first, last):
        numbers |= set(range(start // LEAF_BYTES, -(-stop // LEAF_BYTES)))
    return sorted(numbers)


def _cut(leaves: Mapping[int, OpenedLeaf], start: int, stop: int) -> bytes:
    """The bytes from `start` to `stop`, joined from leaves."""
    first, last = start // LEAF_BYTES, -(-stop // LEAF_BYTES)
    joined = b"".join(leaves[number].content for number in range(first, last))
    return joined[start - first * LEAF_BYTES : stop - first * LEAF_BYTES]


def _is_coded(
    codec: WireCodec, mean: np.ndarray, coded: bytes, content: bytes, num_values: int
) -> bool:
    """True if the codec makes `coded` from a mean, to the bit. Values below float32's smallest
    normal number may be zero. A sum beyond float32 shows nothing.
    """
    if not np.isfinite(mean).all():
        return True
    if codec.name == "float16":  # One scale for the slice, from its largest value.
        scale = np.frombuffer(content[:4], "<f4")[0]
        of_slice = np.abs(np.frombuffer(content[4:], "<f2").astype(np.float32))
        if not (of_slice.max(initial=0.0) == 1.0 or (not of_slice.any() and scale == 1.0)):
            return False
        if not (np.isfinite(scale) and scale > 0):
            return False
        expected = coded[:4] + (mean / scale).astype("<f2").tobytes()
    else:
        expected = codec.encode(mean)
    if expected == coded:
        return True
    with np.errstate(invalid="ignore"):
        off = codec.decode(expected, len(mean)) - codec.decode(coded, len(mean))
        return bool((np.abs(off) <= LEAST).all())


def _how_wrong(claimed: np.ndarray, mean: np.ndarray) -> str:
    """Describes the error for a sentence, by its factor if there is one."""
    ours, theirs = mean.astype(np.float64), claimed.astype(np.float64)
    square = float(ours @ ours)
    factor = float(theirs @ ours) / square if square else 0.0
    off = float(np.linalg.norm(theirs - factor * ours))
    if square and off <= 0.02 * np.sqrt(square):
        return f"its sum of a slice was {factor:.4g} times what the senders had signed"
    return "its sum of a slice was not that of what the senders had signed"
