"""A path's state as bytes in chunks, so that it can be fetched from several donors, checked piece
by piece, and gone on with after a donor has left.

Chunks are known by digest: what a newcomer has already, from another donor or of its own last
state, it does not fetch again (AdamW's moments are the same before and after an outer step).
"""

import numpy as np

from dipaco.errors import BadMessage
from dipaco.swarm.messages import digest

CHUNK_BYTES = 1 << 20


class StateBytes:
    """A state, as one line of bytes.

    Args:
      leaves: its arrays, in an order that all peers share.
    """

    def __init__(self, leaves: list[np.ndarray]):
        self._bytes = b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in leaves)

    @property
    def num_chunks(self) -> int:
        return -(-len(self._bytes) // CHUNK_BYTES)

    def chunk(self, number: int) -> memoryview:
        """Raises `BadMessage` for a number that there is not."""
        if not 0 <= number < self.num_chunks:
            raise BadMessage(problem=f"there is no chunk {number}")
        return memoryview(self._bytes)[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]

    def digests(self) -> tuple[bytes, ...]:
        return tuple(digest(self.chunk(number)) for number in range(self.num_chunks))


def leaves_of(content: bytes, like: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays again; `like` gives shapes and types.

    Raises:
      BadMessage: there are more or fewer bytes.
    """
    expected = sum(leaf.nbytes for leaf in like)
    if len(content) != expected:
        raise BadMessage(problem=f"the state has {len(content)} bytes, expected {expected}")
    leaves, offset = [], 0
    for leaf in like:
        here = np.frombuffer(content, leaf.dtype, leaf.size, offset).reshape(leaf.shape)
        leaves.append(here.copy())
        offset += leaf.nbytes
    return leaves
