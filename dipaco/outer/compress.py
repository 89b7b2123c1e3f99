"""Error feedback: the error of a codec's message is sent later.

The part of an outer gradient that a message cannot hold stays with the path as a *residual* and is
added to its next contribution. Over all phases, the decoded contributions add up to the measured
ones, up to the last residual. A codec may let a residual decay (`sparse2`, whose residual is most
of a gradient). Sums are float32 whatever the codec. With `turns2` the path trains on with its
residual in its own parameters (`own_parameters`), and so finds it in its next outer gradient. A
path that takes modules late and keeps a share of its parameters (`delay_merge`) has that share of
its residual in both. This is refused with `sparse2`, and little with the others, whose residual is
the error of one message.

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
from dipaco.outer.codecs.sparse2 import sparse2
from dipaco.outer.codecs.turns2 import turns2
from dipaco.outer.config import CodecName, OuterSettings
from dipaco.outer.errors import NotFinite
from dipaco.outer.vocabulary import put_rows, take_rows

WITHOUT_SETTINGS = {codec.name: codec for codec in (PLAIN, BFLOAT16, INT8, int4.CODEC, int2.CODEC)}


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
    if residual is not None and not codec.keeps_own:
        kept = np.float32(codec.residual_decay)
        wanted = _each(lambda new, old: new + kept * old, gradient, residual)
    _check_finite(wanted)
    message = codec.encode(wanted)
    left = _each(np.subtract, wanted, codec.decode(message, wanted))
    _check_finite(left)
    return EncodedContribution(message, left)


def encode_rows(
    codec: Codec, gradient: Tree, residual: Tree | None, sent_V: np.ndarray | None
) -> EncodedContribution:
    """`encode_contribution` with only some rows of the vocabulary (`vocabulary.sent_rows`, None =
    all). The residual of another row waits until the row is sent again, and does not decay
    meanwhile. A path that keeps its residual takes such rows from the module.
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
    others = None if codec.keeps_own else residual
    return encoded._replace(residual=put_rows(encoded.residual, sent_V, others))


def own_parameters(parts: Tree, residual: Tree) -> dict[str, Any]:
    """Start of a phase for a path that keeps its residual: its modules, moved on by what it has not
    sent yet. A residual points from new to old, so it is subtracted.

    Args:
      parts: part name -> parameters of its modules.
      residual: the same parts, float32, from its last contributions.
    """
    return _each(
        lambda leaf, left: (np.asarray(leaf, np.float32) - left).astype(leaf.dtype), parts, residual
    )


def codec_of(settings: OuterSettings, phase: int = 0, *, sends_all: bool = False) -> Codec:
    """The codec of `outer.codec` with its settings, for the contributions of a phase."""
    return codec_named(settings.codec, settings, phase, sends_all=sends_all)


def codec_named(
    name: CodecName, settings: OuterSettings, phase: int = 0, *, sends_all: bool = False
) -> Codec:
    """A codec by its name, whatever `outer.codec` says, with the settings that it would have.

    Args:
      phase: chooses the values that are due with `turns2`.
      sends_all: True if all values are due (`Arm.sends_all`).
    """
    if name == "turns2":
        turns = 1 if sends_all else settings.turns
        return turns2(turns, phase % turns)
    if name == "sparse2":
        return sparse2(settings.sparse_places)
    return WITHOUT_SETTINGS[name]


def _check_finite(tree: Tree) -> None:
    for name, leaf in trees.flatten(tree):
        if not np.isfinite(leaf).all():
            raise NotFinite(what="An outer gradient with its residual", name=name)


def _each(function: Callable, tree: Tree, other: Tree) -> dict[str, Any]:
    others = dict(trees.flatten(other))
    return trees.unflatten(
        {name: function(leaf, others[name]) for name, leaf in trees.flatten(tree)}
    )
