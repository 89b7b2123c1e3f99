"""Error feedback: the error of a codec's message is sent later.

The part of an outer gradient that a message cannot hold stays with the path as a *residual* and is
added to its next contribution. Over all phases, the decoded contributions add up to the measured
ones, up to the last residual. Sums are float32 whatever the codec. A path that takes modules late
and keeps a share of its parameters (`delay_merge`) has that share of its residual in both, which is
little: a residual is the error of one message.

Few bits have done no harm so far if nothing is dropped (Streaming DiLoCo, arXiv 2501.18512,
section 3.3). Error feedback is from Seide et al. 2014 and arXiv 1901.09847.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dipaco import trees
from dipaco.outer.codecs import int2, int4
from dipaco.outer.codecs.contract import Codec, Tree
from dipaco.outer.codecs.rounded import BFLOAT16, INT8, PLAIN
from dipaco.outer.config import OuterSettings
from dipaco.outer.errors import NotFinite
from dipaco.outer.vocabulary import put_rows, take_rows

BY_NAME = {codec.name: codec for codec in (PLAIN, BFLOAT16, INT8, int4.CODEC, int2.CODEC)}


class EncodedContribution(NamedTuple):
    """A contribution as its path sends it, and the residual that stays with the path."""

    message: Tree
    residual: Tree | None  # float32, shaped like the gradient. None: nothing is lost


def encode_contribution(codec: Codec, gradient: Tree, residual: Tree | None) -> EncodedContribution:
    """Encodes an outer gradient plus the residual of earlier phases.

    Args:
      gradient: float32 tree, of one path and module.
      residual: from this path's contribution before. None at the first phase.

    Raises:
      NotFinite: their sum holds a NaN or an infinity.
    """
    if not codec.is_lossy:
        return EncodedContribution(codec.encode(gradient), None)
    wanted = gradient
    if residual is not None:
        wanted = _each(np.add, gradient, residual)
    _check_finite(wanted)
    message = codec.encode(wanted)
    left = _each(np.subtract, wanted, codec.decode(message, wanted))
    _check_finite(left)
    return EncodedContribution(message, left)


def encode_rows(
    codec: Codec, gradient: Tree, residual: Tree | None, sent_V: np.ndarray | None
) -> EncodedContribution:
    """`encode_contribution` with only some rows of the vocabulary (`vocabulary.sent_rows`, None =
    all). The residual of another row waits until the row is sent again."""
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


def codec_of(settings: OuterSettings) -> Codec:
    """The codec of contributions, `outer.codec`."""
    return BY_NAME[settings.codec]


def _check_finite(tree: Tree) -> None:
    for name, leaf in trees.flatten(tree):
        if not np.isfinite(leaf).all():
            raise NotFinite(what="An outer gradient with its residual", name=name)


def _each(function: Callable, tree: Tree, other: Tree) -> dict[str, Any]:
    others = dict(trees.flatten(other))
    return trees.unflatten(
        {name: function(leaf, others[name]) for name, leaf in trees.flatten(tree)}
    )
