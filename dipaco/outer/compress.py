"""Codecs: contributions in fewer bits, with error feedback.

A codec is a pair of pure functions. What its message cannot hold of an outer gradient stays with
the path as a *residual* and is added to its next contribution (error feedback): over all phases,
the decoded contributions add up to the measured ones, up to the last residual. Sums are float32
whatever the codec.

Few bits have done no harm so far where nothing is dropped (Streaming DiLoCo, arXiv 2501.18512,
section 3.3); error feedback is from Seide et al. 2014 and arXiv 1901.09847.

A message names its codec and version: its tree lies below one key, `int8-1`. NumPy, for the same
bits on every machine.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dipaco import trees
from dipaco.outer.errors import BadEncoding, NotFinite
from dipaco.outer.quantise import BLOCK, dequantise, num_blocks, quantise
from dipaco.outer.vocabulary import put_rows, take_rows

Tree = Mapping[str, Any]
VERSION = 1  # of every message format but "none"
VALUES, SCALES = "values", "scales"


class Codec(NamedTuple):
    """How contributions travel.

    `encode` turns a float32 tree into a message; `decode` turns a message into a float32 tree of
    the same names and shapes, and raises `BadEncoding` for what `encode` cannot have made.
    """

    name: str
    encode: Callable[[Tree], Tree]
    decode: Callable[[Tree], Tree]
    bits_per_value: float
    is_lossy: bool = True


class EncodedContribution(NamedTuple):
    """A contribution as its path sends it, and what stays with the path."""

    message: Tree
    residual: Tree | None  # float32, shaped like the gradient; None where nothing is lost


def encode_contribution(codec: Codec, gradient: Tree, residual: Tree | None) -> EncodedContribution:
    """Encodes an outer gradient plus the residual of earlier phases.

    Args:
      codec: how the contribution travels.
      gradient: float32 tree, of one path and module.
      residual: from this path's contribution before; None at the first phase.

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


def encode_rows(
    codec: Codec, gradient: Tree, residual: Tree | None, sent_V: np.ndarray | None
) -> EncodedContribution:
    """As `encode_contribution`, with only some rows of the vocabulary (`vocabulary.sent_rows`);
    None: all. What an earlier message could not hold of a row waits until the row is sent again.
    """
    if sent_V is None:
        return encode_contribution(codec, gradient, residual)
    encoded = encode_contribution(
        codec,
        take_rows(gradient, sent_V),
        None if residual is None else take_rows(residual, sent_V),
    )
    if encoded.residual is None:
        return encoded
    return encoded._replace(residual=put_rows(encoded.residual, sent_V, residual))


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


# --- tags -------------------------------------------------------------------------------------


def _tagged(name: str, leaves: Mapping[str, np.ndarray]) -> Tree:
    return {f"{name}-{VERSION}": trees.unflatten(leaves)}


def _untagged(name: str, message: Tree) -> Tree:
    """The message without its tag. Raises `BadEncoding`."""
    expected = f"{name}-{VERSION}"
    if list(message) != [expected]:
        found = ", ".join(list(message)[:3]) or "nothing"
        problem = f"it begins with {found}, and messages of this run with {expected}"
        raise BadEncoding(problem=problem)
    return message[expected]


# --- bfloat16 ---------------------------------------------------------------------------------


def _to_bfloat16(gradient: Tree) -> Tree:
    leaves = {name: np.asarray(leaf).astype(jnp.bfloat16) for name, leaf in trees.flatten(gradient)}
    return _tagged("bfloat16", leaves)


def _from_bfloat16(message: Tree) -> Tree:
    leaves = dict(trees.flatten(_untagged("bfloat16", message)))
    for name, leaf in leaves.items():
        if leaf.dtype != jnp.bfloat16:
            raise BadEncoding(problem=f"`{name}` is {leaf.dtype}, expected bfloat16")
    return trees.unflatten({name: leaf.astype(np.float32) for name, leaf in leaves.items()})


# --- int8 -------------------------------------------------------------------------------------


def _to_int8(gradient: Tree) -> Tree:
    leaves = {}
    for name, leaf in trees.flatten(gradient):
        leaves[f"{name}.{VALUES}"], leaves[f"{name}.{SCALES}"] = quantise(np.asarray(leaf))
    return _tagged("int8", leaves)


def _from_int8(message: Tree) -> Tree:
    found = dict(trees.flatten(_untagged("int8", message)))
    names = sorted({name.rpartition(trees.SEPARATOR)[0] for name in found})
    leaves = {}
    for name in names:
        values, scales = found.pop(f"{name}.{VALUES}", None), found.pop(f"{name}.{SCALES}", None)
        if values is None or scales is None:
            raise BadEncoding(problem=f"`{name}` has no {VALUES if values is None else SCALES}")
        if values.dtype != np.int8 or scales.dtype != np.float32:
            types = f"{values.dtype} with scales of {scales.dtype}"
            raise BadEncoding(problem=f"`{name}` is {types}, expected int8 with scales of float32")
        if scales.shape != (num_blocks(values.size),):
            expected = f"[{num_blocks(values.size)}]"
            raise BadEncoding(problem=f"`{name}` has scales {list(scales.shape)}, not {expected}")
        if not (np.isfinite(scales).all() and (scales >= 0).all()):
            raise BadEncoding(problem=f"a scale of `{name}` is negative, infinite or not a number")
        leaves[name] = dequantise(values, scales)
    if found:
        raise BadEncoding(problem=f"`{min(found)}` was not expected")
    return trees.unflatten(leaves)


PLAIN = Codec("none", lambda gradient: gradient, lambda message: message, 32, is_lossy=False)
CODECS = {
    codec.name: codec
    for codec in (
        PLAIN,
        Codec("bfloat16", _to_bfloat16, _from_bfloat16, 16),
        Codec("int8", _to_int8, _from_int8, 8 + 32 / BLOCK),
    )
}
