"""The means of past steps, for peers that are a few steps behind."""

from dipaco.swarm.network.messages import ClosedStep, PastMeanRequest

KEPT_BYTES = 512 << 20
MAX_STEPS = 16


class PastMeans:
    """The last of them, as they were coded.

    Args:
      num_values: in a whole mean.
    """

    def __init__(self, num_values: int):
        self._most = max(1, min(MAX_STEPS, KEPT_BYTES // max(4 * num_values, 1)))
        self._slices: dict[tuple[int, str], list[tuple[int, int, bytes]]] = {}

    def keep(self, closed: ClosedStep, contents: list[bytes]) -> None:
        """A step that was taken, with the mean of each of its slices."""
        self._slices[closed.step, closed.before] = [
            (part.start, part.stop, content)
            for part, content in zip(closed.slices, contents, strict=True)
        ]
        while len(self._slices) > self._most:
            del self._slices[next(iter(self._slices))]

    def can_catch_up_from(self, step: int, lineage: str) -> bool:
        """Whether who is there can catch up by them."""
        return (step, lineage) in self._slices

    def find(self, asked: PastMeanRequest) -> bytes | None:
        for start, stop, content in self._slices.get((asked.step, asked.before), []):
            if (start, stop) == (asked.start, asked.stop):
                return content
        return None
