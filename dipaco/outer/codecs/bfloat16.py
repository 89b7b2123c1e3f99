"""Every value in 16 bits, with the exponent of float32."""

import math

import jax.numpy as jnp
import numpy as np

from dipaco import trees
from dipaco.outer.codecs.contract import Codec, Tree, tagged, untagged
from dipaco.outer.errors import BadEncoding

NAME = "bfloat16"


def encode(gradient: Tree) -> Tree:
    leaves = {name: np.asarray(leaf).astype(jnp.bfloat16) for name, leaf in trees.flatten(gradient)}
    return tagged(NAME, leaves)


def decode(message: Tree, like: Tree) -> Tree:
    leaves = dict(trees.flatten(untagged(NAME, message)))
    for name, leaf in leaves.items():
        if leaf.dtype != jnp.bfloat16:
            raise BadEncoding(problem=f"`{name}` is {leaf.dtype}, expected bfloat16")
    return trees.unflatten({name: leaf.astype(np.float32) for name, leaf in leaves.items()})


CODEC = Codec(NAME, encode, decode, lambda name, shape: 16 * math.prod(shape))
