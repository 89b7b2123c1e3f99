"""Sketches: few numbers by which a leader sees whether a mean fits its parts.

Each sender *commits* itself to the digests of its parts before any part is shown, so that no part
can answer another. When the leader has all means, it draws a seed. Each sender multiplies its parts
by random numbers that follow from it, and sums the products in `BUCKETS` buckets: the sketch of a
sum is the sum of the sketches (AMS, Alon, Matias and Szegedy 1996; BTARD, arXiv 2106.11257). A mean
that is wrong in any value has another sketch. Then the leader fetches the parts, and finds who has
lied: `leading.sum_checks`. The squares of the sketch estimate the size of a part.
"""

from collections.abc import Sequence

import numpy as np

from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import RoundPlan, Slice, digest

BUCKETS = 64
CHUNK = 1 << 20  # values at a time, a multiple of the buckets
SPREADS = 2.0  # six standard deviations of uniform roundings, in root sums of their largest squares
LEAST = 2.0**-126  # smaller float32 values may be zero on some machines
HALF = 2.0**-24  # largest error of a float32 value, relative


def sketch_of(values: np.ndarray, seed: bytes, start: int) -> np.ndarray:
    """The sketch of a part, float64 [BUCKETS]. All machines draw the same numbers, in [-1, 1)."""
    key = int.from_bytes(digest(seed + start.to_bytes(8, "little")), "little")
    drawing = np.random.Philox(key=key)
    found = np.zeros(BUCKETS)
    for first in range(0, len(values), CHUNK):
        part = values[first : first + CHUNK]
        drawn = drawing.random_raw(-(-len(part) // 2)).view(np.int32)[: len(part)]
        with np.errstate(invalid="ignore", over="ignore"):
            found += _in_buckets(part.astype(np.float64) * (drawn * 2.0**-31))
    return found


def sketches_of(plan: RoundPlan, contents: Sequence[bytes]) -> bytes:
    """The sketches of a sender's coded parts, as it sends them."""
    decode = codec_of(plan.codec).decode
    of_slices = zip(plan.slices, contents, strict=True)
    found = [
        sketch_of(decode(content, part.stop - part.start), plan.seed, part.start)
        for part, content in of_slices
    ]
    return np.asarray(found, "<f8").tobytes()


def size_of(sketches: np.ndarray) -> float:
    """The estimated sum of squares of the values that these sketches are of."""
    return 3.0 * float(np.sum(np.square(sketches)))  # a drawn number's mean square is a third


def has_sketch(plan: RoundPlan, part: Slice, content: bytes, of_parts: np.ndarray) -> bool:
    """True if a slice's coded mean has the sketch of its parts, but for roundings. `of_parts`: the
    sum of the parts' sketches, float64 [BUCKETS].
    """
    codec, num_values = codec_of(plan.codec), part.stop - part.start
    mean = codec.decode(content, num_values)
    rounding = codec.rounding(content, num_values) + HALF * np.abs(mean.astype(np.float64)) + LEAST
    targets = max(plan.targets, 1.0)
    allowed = SPREADS * np.sqrt(_in_buckets(np.square(rounding)))
    off = np.abs(sketch_of(mean, plan.seed, part.start) - of_parts / targets)
    # NaN compares as false.
    return bool((off <= allowed + 1e-9 * np.abs(of_parts / targets)).all())


def is_mean(codec_name: str, mean: np.ndarray, content: bytes) -> bool:
    """True if a slice's coded mean is this one, to the bit. Subnormal numbers may be zero."""
    codec = codec_of(codec_name)
    with np.errstate(invalid="ignore", over="ignore"):
        if (expected := codec.encode(mean)) == content:
            return True
        ours, theirs = codec.decode(expected, len(mean)), codec.decode(content, len(mean))
        is_near = np.abs(ours.astype(np.float64) - theirs) <= LEAST
    return bool((is_near | (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))).all())


def _in_buckets(values: np.ndarray) -> np.ndarray:
    """Sums of every `BUCKETS`th value."""
    whole = len(values) // BUCKETS * BUCKETS
    found = values[:whole].reshape(-1, BUCKETS).sum(axis=0)
    found[: len(values) - whole] += values[whole:]
    return found
