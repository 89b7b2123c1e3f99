"""A path's state as bytes in chunks: fetched from several donors, checked chunk by chunk, and
completed after a donor has left.

Chunks are known by digest. A newcomer does not fetch a chunk that it has already, from another
donor or from its own last state (AdamW's moments are the same before and after an outer step).

With a codec, the newcomer's parameters differ from the group's in their last digits for as long as
it stays, since steps add the same to both. Its gradients belong to a model that is a rounding away.
It never gives its state to other peers.
"""

import functools
from typing import Any

import jax
import numpy as np

from dipaco.inner.state import PathState
from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.codecs import OF_MOMENTS, WireCodec, codec_of
from dipaco.swarm.network.messages import digest

CHUNK_BYTES = 1 << 20


class StateBytes:
    """A state as one sequence of bytes. `codec`: a name in `CODECS`. Moments take the codec beside
    it in `OF_MOMENTS`. Raises `BadMessage`: the codec is not known.
    """

    def __init__(self, state: PathState, codec: str = "none"):
        self._bytes = b"".join(
            np.ascontiguousarray(leaf).tobytes()
            if of_leaf is None
            else of_leaf.encode(np.asarray(leaf, np.float32).reshape(-1))
            for leaf, of_leaf in _leaves(state, codec)
        )

    @property
    def num_chunks(self) -> int:
        return -(-len(self._bytes) // CHUNK_BYTES)

    def chunk(self, number: int) -> memoryview:
        """Raises `BadMessage` if there is no such chunk."""
        if not 0 <= number < self.num_chunks:
            raise BadMessage(problem=f"there is no chunk {number}")
        return memoryview(self._bytes)[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]

    @functools.cached_property
    def digests(self) -> tuple[bytes, ...]:
        return tuple(digest(self.chunk(number)) for number in range(self.num_chunks))


def state_from_bytes(content: bytes, codec: str, like: PathState) -> PathState:
    """The inverse. `like` gives shapes and types. Raises `BadMessage`: there are too many or too
    few bytes.
    """
    leaves = _leaves(like, codec)
    sizes = [
        leaf.size * leaf.dtype.itemsize if of_leaf is None else of_leaf.num_bytes(leaf.size)
        for leaf, of_leaf in leaves
    ]
    if len(content) != sum(sizes):
        raise BadMessage(problem=f"the state has {len(content)} bytes, expected {sum(sizes)}")
    arrays, offset = [], 0
    for (leaf, of_leaf), size in zip(leaves, sizes, strict=True):
        here = content[offset : offset + size]
        values = (
            np.frombuffer(here, leaf.dtype)
            if of_leaf is None
            else of_leaf.decode(here, leaf.size).astype(leaf.dtype)
        )
        arrays.append(values.reshape(leaf.shape))
        offset += size
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def _leaves(state: PathState, codec: str) -> list[tuple[Any, WireCodec | None]]:
    """Leaves in the order that all peers share, and the codec of each; None = its own bytes."""
    of_parts = codec_of(codec)

    def coded(tree: Any, of_tree: WireCodec) -> list[tuple[Any, WireCodec | None]]:
        return [
            (leaf, of_tree if codec != "none" and _is_real(leaf) else None)
            for leaf in jax.tree.leaves(tree)
        ]

    return [
        *coded(state.parts, of_parts),
        *coded(state.optimizer, OF_MOMENTS[codec]),
        (state.step, None),
    ]


def _is_real(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, np.floating)
