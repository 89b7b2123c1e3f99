"""A leader's evidence of a round's sums: some values of every slice, as their senders signed them.
See `training.sum_proof`.
"""

import random

from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import ProofRequest, RoundPlan, Slice, SumProof
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.training.reducer import Reducer, SliceMean
from dipaco.swarm.training.sum_proof import SpotPart, check_proof, draw_spot, own_parts


class SumProofs:
    """The proofs of one leader.

    Args:
      wire, reducer: parts of this backbone.
    """

    def __init__(self, wire: Wire, reducer: Reducer):
        self._wire, self._reducer = wire, reducer
        self._rng = random.SystemRandom()
        self.spots: dict[str, list[SpotPart]] = {}  # sender -> its part of each slice in this round

    def begin_round(self) -> None:
        self.spots = {}

    def note_own(self, plan: RoundPlan, part: Slice, found: SliceMean) -> None:
        """The leader has added up a slice itself, and needs no proof of it."""
        total = self._reducer.sum_of(plan.number)
        if total is not None and not found.refused:
            mean = codec_of(plan.codec).decode(found.content, part.stop - part.start)
            self._note(own_parts(total, *draw_spot(mean, self._rng)))

    async def proved(self, plan: RoundPlan, part: Slice, content: bytes) -> SliceMean:
        """A slice's coded mean, after its reducer has shown the parts of drawn values.

        Raises:
          PEER_ERRORS: the mean has another length, or the reducer shows nothing.
        """
        mean = codec_of(plan.codec).decode(content, part.stop - part.start)
        first, last = draw_spot(mean, self._rng)
        proof, _ = await self._wire.ask(
            part.address,
            "proof",
            ProofRequest(
                round_number=plan.number, start=part.start, stop=part.stop, first=first, last=last
            ),
            SumProof,
            within_seconds=plan.within_seconds,
            recipient=part.reducer,
        )
        shown, lie = check_proof(self._wire, plan, part, content, (first, last), proof)
        self._note(shown)
        return SliceMean(content, {}, lie)

    def _note(self, shown: dict[str, SpotPart]) -> None:
        for name, one in shown.items():
            self.spots.setdefault(name, []).append(one)
