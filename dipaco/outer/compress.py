"""Codecs: outer gradients in fewer bits on their way, and nothing lost for good.

A codec is a pair of pure functions. What its message cannot hold of an outer gradient stays with
the path as a *residual*, and is added to what the path sends after the next phase (error feedback):
what has been decoded over all phases is what was measured, but for the last residual. Sums are
float32 whatever travels.

int8 keeps a float32 scale for each block of values, so that one large value costs its neighbours
nothing but those of its block. Few bits do no harm seen so far where nothing is dropped (Streaming
DiLoCo, arXiv 2501.18512, section 3.3); error feedback is of Seide et al. 2014 and arXiv 1901.09847.

A message says by which codec and version it was made: its tree lies below one name, `int8-1`.
NumPy, for the same bits on every machine.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dipaco import trees
from dipaco.outer.errors import BadEncoding, NotFinite

Tree = Mapping[str, Any]
VERSION = 1  # of all messages that are not plain
BLOCK = 256  # values that share a scale: 32 / 256 of a bit more for each
VALUES, SCALES = "values", "scales"


class Codec(NamedTuple):
    """How contributions travel.

    `encode` takes a float32 tree, and `decode` of what it gives is a float32 tree of the same names
    and shapes; it raises `BadEncoding` for anything that no `encode` of this codec gives.
    """

    name: str
    encode: Callable[[Tree], Tree]
    decode: Callable[[Tree], Tree]
    bits_per_value: float
    is_lossy: bool = True


class EncodedContribution(NamedTuple):
    """What goes out, and what stays."""

    message: Tree
    residual: Tree | None  # float32, shaped like the gradient; None where nothing is lost


def encode_contribution(codec: Codec, gradient: Tree, residual: Tree | None) -> EncodedContribution:
    """Encodes an outer gradient together with what earlier messages could not hold.

    Args:
      codec: how it travels.
      gradient: float32, of one path and module.
      residual: as `encode_contribution` left it after the phase before; None at the first.

    Raises:
      NotFinite: their sum holds a NaN or an infinity.
    """
    if not codec.is_lossy:
        return EncodedContribution(codec.encode(gradient), None)
    wanted = gradient if residual is None else _each(np.add, gradient, residual)
    _check_finite(wanted)
    message = codec.encode(wanted)
    left = _each(np.subtract, wanted, codec.decode(message))
    _check_finite(left)
    return EncodedContribution(message, left)


def codec(name: str) -> Codec:
    """The codec of this name, as `outer.codec` has it."""
    return CODECS[name]


def _check_finite(tree: Tree) -> None:
    for name, leaf in trees.flatten(tree):
        if not np.isfinite(leaf).all():
            raise NotFinite(what="An outer gradient with its residual", name=name)


def _each(function: Callable, tree: Tree, other: Tree) -> dict[str, Any]:
    others = dict(trees.flatten(other))
    return trees.unflatten(
        {name: function(leaf, others[name]) for name, leaf in trees.flatten(tree)}
    )


# --- what travels -----------------------------------------------------------------------------


def _sealed(name: str, leaves: Mapping[str, np.ndarray]) -> Tree:
    return {f"{name}-{VERSION}": trees.unflatten(leaves)}


def _opened(name: str, message: Tree) -> Tree:
    """What lies below the name of the codec. Raises `BadEncoding`."""
    expected = f"{name}-{VERSION}"
    if list(message) != [expected]:
        found = ", ".join(list(message)[:3]) or "nothing"
        problem = f"it begins with {found}, and messages of this run with {expected}"
        raise BadEncoding(problem=problem)
    return message[expected]


# --- bfloat16 ---------------------------------------------------------------------------------


def _to_bfloat16(gradient: Tree) -> Tree:
    leaves = {name: np.asarray(leaf).astype(jnp.bfloat16) for name, leaf in trees.flatten(gradient)}
    return _sealed("bfloat16", leaves)


def _from_bfloat16(message: Tree) -> Tree:
    leaves = dict(trees.flatten(_opened("bfloat16", message)))
    for name, leaf in leaves.items():
        if leaf.dtype != jnp.bfloat16:
            raise BadEncoding(problem=f"`{name}` is {leaf.dtype}, expected bfloat16")
    return trees.unflatten({name: leaf.astype(np.float32) for name, leaf in leaves.items()})


# --- int8 -------------------------------------------------------------------------------------


def _to_int8(gradient: Tree) -> Tree:
    leaves = {}
    for name, leaf in trees.flatten(gradient):
        leaves[f"{name}.{VALUES}"], leaves[f"{name}.{SCALES}"] = _quantised(np.asarray(leaf))
    return _sealed("int8", leaves)


def _quantised(leaf: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 of the leaf's shape, and a float32 scale for each block: value = int8 * scale."""
    blocks = _in_blocks(leaf.astype(np.float32, copy=False))
    scales = np.abs(blocks).max(axis=1) / np.float32(127)
    # A block of zeros, or of values so small that their scale is none.
    divisors = np.where(scales > 0, scales, np.float32(1))
    values = np.clip(np.rint(blocks / divisors[:, None]), -127, 127).astype(np.int8)
    return values.reshape(-1)[: leaf.size].reshape(leaf.shape), scales


def _from_int8(message: Tree) -> Tree:
    found = dict(trees.flatten(_opened("int8", message)))
    names = sorted({name.rpartition(trees.SEPARATOR)[0] for name in found})
    leaves = {}
    for name in names:
        values, scales = found.pop(f"{name}.{VALUES}", None), found.pop(f"{name}.{SCALES}", None)
        if values is None or scales is None:
            raise BadEncoding(problem=f"`{name}` has no {VALUES if values is None else SCALES}")
        if values.dtype != np.int8 or scales.dtype != np.float32:
            types = f"{values.dtype} with scales of {scales.dtype}"
            raise BadEncoding(problem=f"`{name}` is {types}, expected int8 with scales of float32")
        if scales.shape != (_num_blocks(values.size),):
            expected = f"[{_num_blocks(values.size)}]"
            raise BadEncoding(problem=f"`{name}` has scales {list(scales.shape)}, not {expected}")
        if not (np.isfinite(scales).all() and (scales >= 0).all()):
            raise BadEncoding(problem=f"a scale of `{name}` is negative, infinite or not a number")
        products = _in_blocks(values) * scales[:, None]
        leaves[name] = products.reshape(-1)[: values.size].reshape(values.shape)
    if found:
        raise BadEncoding(problem=f"`{min(found)}` was not expected")
    return trees.unflatten(leaves)


def _num_blocks(size: int) -> int:
    return -(-size // BLOCK)


def _in_blocks(leaf: np.ndarray) -> np.ndarray:
    """[blocks, BLOCK]; the last one is filled up with zeros."""
    blocks = np.zeros((_num_blocks(leaf.size), BLOCK), leaf.dtype)
    blocks.reshape(-1)[: leaf.size] = leaf.reshape(-1)
    return blocks


PLAIN = Codec("none", lambda gradient: gradient, lambda message: message, 32, is_lossy=False)
CODECS = {
    codec.name: codec
    for codec in (
        PLAIN,
        Codec("bfloat16", _to_bfloat16, _from_bfloat16, 16),
        Codec("int8", _to_int8, _from_int8, 8 + 32 / BLOCK),
    )
}
