"""Messages without names: the leaves of a module one after another, and a checksum.

In a message of a small module a header with a name for each leaf would be a large part. So the
receiver takes names and shapes from its module, and a message holds the bytes of all leaves in a
few arrays, the largest value of each leaf, and a checksum of all of it, names and shapes included.
Any array of bytes is well formed: without the checksum, a damaged byte would be another gradient.
"""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from dipaco import trees
from dipaco.outer.codecs.contract import Tree, tagged, untagged
from dipaco.outer.errors import BadEncoding

LARGEST, CHECKSUM = "largest", "checksum"
HEADER_BITS = 32  # the largest value of each leaf


def seal(
    name: str, like: Tree, largest: Sequence[np.float32], streams: Mapping[str, list[np.ndarray]]
) -> Tree:
    """The message of a codec: each stream's pieces one after another, uint8."""
    leaves = {
        stream: np.concatenate([np.empty(0, np.uint8), *pieces])
        for stream, pieces in streams.items()
    }
    leaves[LARGEST] = np.array(largest, np.float32)
    leaves[CHECKSUM] = _checksum(like, leaves)
    return tagged(name, leaves)


def unseal(name: str, message: Tree, like: Tree, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The streams and the largest values of a message whose checksum is right.

    Args:
      like: a tree with the names and shapes of the leaves.
      sizes: stream -> bytes.

    Raises:
      BadEncoding: it is not a sealed message of such leaves.
    """
    leaves = dict(trees.flatten(untagged(name, message)))
    expected = {stream: (np.dtype(np.uint8), (size,)) for stream, size in sizes.items()}
    expected[LARGEST] = (np.dtype(np.float32), (sum(1 for _ in trees.flatten(like)),))
    expected[CHECKSUM] = (np.dtype(np.uint32), (1,))
    for stream, (dtype, shape) in expected.items():
        if stream not in leaves:
            raise BadEncoding(problem=f"it has no `{stream}`")
        leaf = leaves[stream]
        if (leaf.dtype, leaf.shape) != (dtype, shape):
            found, wanted = f"{leaf.dtype}{list(leaf.shape)}", f"{dtype}{list(shape)}"
            raise BadEncoding(problem=f"`{stream}` is {found}, expected {wanted}")
    if more := sorted(leaves.keys() - expected.keys()):
        raise BadEncoding(problem=f"`{more[0]}` was not expected")
    checksum = leaves.pop(CHECKSUM)
    if checksum != _checksum(like, leaves):
        raise BadEncoding(problem="its checksum is not that of its values")
    if not (np.isfinite(leaves[LARGEST]).all() and (leaves[LARGEST] >= 0).all()):
        raise BadEncoding(problem="a largest value is negative, infinite or not a number")
    return leaves


def _checksum(like: Tree, leaves: Mapping[str, np.ndarray]) -> np.ndarray:
    """uint32 [1]: CRC-32 of names and shapes of the leaves, and of the streams."""
    outline = ",".join(f"{name}:{tuple(leaf.shape)}" for name, leaf in trees.flatten(like))
    crc = zlib.crc32(outline.encode())
    for stream in sorted(leaves):
        crc = zlib.crc32(np.ascontiguousarray(leaves[stream]).view(np.uint8).data, crc)
    return np.array([crc], np.uint32)


class StreamReader:
    """Takes a message's streams apart, in the order in which they were joined."""

    def __init__(self, leaves: Mapping[str, np.ndarray]):
        self._leaves = leaves
        self._at = dict.fromkeys(leaves, 0)

    def take(self, stream: str, count: int) -> np.ndarray:
        start = self._at[stream]
        self._at[stream] = start + count
        return self._leaves[stream][start : start + count]
