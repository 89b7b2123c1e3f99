"""The means of past steps. Peers that are a few steps behind catch up with them."""

from dipaco.swarm.network.messages import ClosedStep, PastMeanRequest

KEPT_BYTES = 512 << 20
MAX_STEPS = 16


class PastMeans:
    """The last means in their coded form.

    Args:
      num_values: the number of values in a whole mean.
    """

    def __init__(self, num_values: int):
        self._max_steps = max(1, min(MAX_STEPS, KEPT_BYTES // max(4 * num_values, 1)))
        self._slices: dict[tuple[int, str], list[tuple[int, int, bytes]]] = {}

    def add(self, closed: ClosedStep, contents: list[bytes]) -> None:
        """Adds a step that was taken, with the mean of each of its slices."""
        self._slices[closed.step, closed.before] = [
            (part.start, part.stop, content)
            for part, content in zip(closed.slices, contents, strict=True)
        ]
        while len(self._slices) > self._max_steps:
            del self._slices[next(iter(self._slices))]

    def can_catch_up_from(self, step: int, lineage: str) -> bool:
        """True if a peer at that state finds the mean that it needs next."""
        return (step, lineage) in self._slices

    def find(self, request: PastMeanRequest) -> bytes | None:
        for start, stop, content in self._slices.get((request.step, request.before), []):
            if (start, stop) == (request.start, request.stop):
                return content
        return None
