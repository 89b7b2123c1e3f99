"""A leader's checks of a round: of the means that reducers give, and of what senders have sent.

A mean must be finite, and have the sketch of its parts (`training.sum_sketch`). Where one does not,
the leader fetches every part of that slice from its reducer. Each part must have the digest to
which its sender has committed itself, so that the leader sees who has lied without any peer's word:
a reducer whose mean is another one, or a sender whose sketch is. No peer can accuse another.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import Ack, RoundPlan, Slice, SliceRequest, digest
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.checks import SHOWN, Evidence
from dipaco.swarm.training.slices import Reducer, mean_of
from dipaco.swarm.training.sum_sketch import BUCKETS, has_sketch, is_mean, size_of, sketch_of

NOT_FINITE = "the gradient holds a NaN or an infinity"
Sketches = dict[str, np.ndarray]  # sender -> float64 [slices, BUCKETS]


class Lie(Exception):
    """A peer has lied."""

    def __init__(self, who: str, evidence: Evidence):
        super().__init__(who)
        self.who, self.evidence = who, evidence


class SumFindings(NamedTuple):
    """What is wrong with a round's means."""

    lies: dict[str, Evidence]  # peer -> evidence against it
    not_finite: frozenset[str]  # senders whose part is not finite
    silent: frozenset[str]  # reducers that do not show a part


class SumChecks:
    """The checks of one leader's sums."""

    def __init__(self, wire: Wire, reducer: Reducer):
        self._wire, self._reducer = wire, reducer
        # Of the present round. Checks that outlast a round keep its own.
        self.sketches: Sketches = {}
        self._seen: tuple[int, Sequence[bytes]] = 0, ()  # number and means of the last round

    def take(self, plan: RoundPlan, sender: str, content: bytes) -> None:
        """Takes a sender's sketches. Raises `BadMessage`."""
        if len(content) != 8 * BUCKETS * len(plan.slices):
            raise BadMessage(problem=f"it has {len(content)} bytes of sketches")
        found = np.frombuffer(content, "<f8").reshape(-1, BUCKETS)
        self.sketches.setdefault(sender, found)

    async def part_of(self, plan: RoundPlan, part: Slice, sender: str) -> bytes:
        """A sender's coded part of a slice, from its reducer. Raises `Lie`: the reducer shows
        something else; `PEER_ERRORS`: it shows nothing.
        """
        if part.reducer == self._wire.name:
            return self._reducer.part_of(plan.number, sender)
        body = SliceRequest(
            round_number=plan.number, start=part.start, stop=part.stop, sender=sender
        )
        _, content = await self._wire.ask(
            part.address,
            "part",
            body,
            Ack,
            within_seconds=3 * plan.within_seconds,
            recipient=part.reducer,
        )
        if digest(content) != plan.commitment(sender, part):
            raise Lie(part.reducer, _evidence(plan, part, f"it made up what {sender} has sent"))
        return content

    async def find(self, plan: RoundPlan, contents: Sequence[bytes]) -> SumFindings:
        """Looks at the means of a round, and finds who has lied if one is wrong."""
        lies: dict[str, Evidence] = {}
        not_finite: set[str] = set()
        silent: set[str] = set()
        self._seen = plan.number, contents
        for number, (part, content) in enumerate(zip(plan.slices, contents, strict=True)):
            if await asyncio.to_thread(self._is_right, plan, number, part, content):
                continue
            try:
                not_finite |= await self._search(plan, number, content, self.sketches)
            except Lie as lie:
                lies[lie.who] = lie.evidence
            except PEER_ERRORS:
                silent.add(part.reducer)
        return SumFindings(lies, frozenset(not_finite), frozenset(silent))

    def _is_right(self, plan: RoundPlan, number: int, part: Slice, content: bytes) -> bool:
        mean = codec_of(plan.codec).decode(content, part.stop - part.start)
        if not np.isfinite(mean).all():
            return False
        if not plan.seed or part.reducer == self._wire.name:
            return True
        of_parts = np.sum([self.sketches[one.name][number] for one in plan.senders], axis=0)
        return has_sketch(plan, part, content, of_parts)

    async def _search(
        self, plan: RoundPlan, number: int, content: bytes, sketches: Sketches
    ) -> frozenset[str]:
        """Senders whose part makes a mean not finite. None, if the mean is right after all. Raises
        `Lie`, `PEER_ERRORS`.
        """
        part = plan.slices[number]
        decode, num_values = codec_of(plan.codec).decode, part.stop - part.start
        contents = {one.name: await self.part_of(plan, part, one.name) for one in plan.senders}
        parts = {name: decode(coded, num_values) for name, coded in contents.items()}
        mean = await asyncio.to_thread(mean_of, parts, plan.targets, num_values)
        if not is_mean(plan.codec, mean, content):
            claimed = decode(content, num_values)
            raise Lie(part.reducer, _evidence(plan, part, _how_wrong(claimed, mean), claimed, mean))
        if not np.isfinite(mean).all():
            found = {name for name, one in parts.items() if not np.isfinite(one).all()}
            largest = max(parts, key=lambda name: float(np.max(np.abs(parts[name]), initial=0.0)))
            return frozenset(found or {largest})  # finite parts have a sum that is not
        for name, coded in contents.items():
            self.check_sketch(plan, number, name, coded, sketches)
        return frozenset()

    async def search_again(self, plan: RoundPlan, number: int, sketches: Sketches) -> None:
        """Raises as `_search`, for a mean that fitted its sketch, if its round was the last."""
        if self._seen[0] == plan.number:
            await self._search(plan, number, self._seen[1][number], sketches)

    def check_sketch(
        self, plan: RoundPlan, number: int, sender: str, content: bytes, sketches: Sketches
    ) -> None:
        """Raises `Lie` if a sender's sketch of a slice, by its number, does not fit its part.
        `sketches`: those of the plan's round.
        """
        part = plan.slices[number]
        if not plan.seed or part.reducer == self._wire.name:
            return
        values = codec_of(plan.codec).decode(content, part.stop - part.start)
        ours, theirs = sketch_of(values, plan.seed, part.start), sketches[sender][number]
        if not np.allclose(theirs, ours, rtol=1e-6, atol=1e-9 * np.abs(ours).max()):
            problem = "the sketch of its part is not that of what it has sent"
            raise Lie(sender, _evidence(plan, part, problem, theirs, ours))

    def sizes(self, plan: RoundPlan) -> dict[str, float]:
        """The norm of each sender's gradient, estimated by sketches where other peers add up."""
        squares: dict[str, float] = dict.fromkeys((one.name for one in plan.senders), 0.0)
        codec = codec_of(plan.codec)
        for number, part in enumerate(plan.slices):
            for name in squares:
                if part.reducer == self._wire.name:
                    values = codec.decode(
                        self._reducer.part_of(plan.number, name), part.stop - part.start
                    )
                    squares[name] += float(np.sum(np.square(values, dtype=np.float64)))
                else:
                    squares[name] += size_of(self.sketches[name][number])
        return {name: float(np.sqrt(value)) for name, value in squares.items()}


def _evidence(
    plan: RoundPlan,
    part: Slice,
    problem: str,
    claimed: np.ndarray | None = None,
    found: np.ndarray | None = None,
) -> Evidence:
    values: tuple[tuple[float, ...], ...] = ()
    if claimed is not None and found is not None:
        at = np.flatnonzero(~(claimed == found))[:SHOWN]
        values = tuple(map(float, claimed[at])), tuple(map(float, found[at]))
    return Evidence("sum", plan.step, plan.number, part.start, part.stop, problem, *values)


def _how_wrong(claimed: np.ndarray, mean: np.ndarray) -> str:
    """Describes the error for a sentence, by its factor if there is one."""
    with np.errstate(invalid="ignore", over="ignore"):
        ours, theirs = mean.astype(np.float64), claimed.astype(np.float64)
        square = float(ours @ ours)
        factor = float(theirs @ ours) / square if square else 0.0
        off = float(np.linalg.norm(theirs - factor * ours))
    if square and off <= 0.02 * np.sqrt(square):
        return f"its sum of a slice was {factor:.4g} times what the senders had committed to"
    return "its sum of a slice was not that of what the senders had committed to"
