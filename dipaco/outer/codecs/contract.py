"""The contract of codecs, and the tag that names a codec's messages."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dipaco import trees
from dipaco.outer.errors import BadEncoding

Tree = Mapping[str, Any]
VERSION = 1  # version of every message format but "none"


class Codec(NamedTuple):
    """A pair of functions between contributions and messages.

    `encode` turns a float32 tree into a message. `decode` takes a message and a tree with the names
    and shapes of the encoded one (`trees.outline`), and returns a float32 tree. It raises
    `BadEncoding` for a message that `encode` cannot have made, before it takes memory for values.
    """

    name: str
    encode: Callable[[Tree], Tree]
    decode: Callable[[Tree, Tree], Tree]
    leaf_bits: Callable[[tuple[int, ...]], int]  # shape -> bits in a message
    is_lossy: bool = True

    @property
    def bits_per_value(self) -> float:
        """Bits per value of a large matrix."""
        return self.leaf_bits((LARGE, LARGE)) / LARGE**2


LARGE = 1 << 13


def tagged(name: str, leaves: Mapping[str, np.ndarray]) -> Tree:
    """A message: the leaves below one key, `int8-1`."""
    return {f"{name}-{VERSION}": trees.unflatten(leaves)}


def untagged(name: str, message: Tree) -> Tree:
    """The message without its tag. Raises `BadEncoding`."""
    expected = f"{name}-{VERSION}"
    if list(message) != [expected] or not isinstance(message[expected], Mapping):
        found = ", ".join(list(message)[:3]) or "nothing"
        problem = f"it begins with {found}, and messages of this run with {expected}"
        raise BadEncoding(problem=problem)
    return message[expected]
