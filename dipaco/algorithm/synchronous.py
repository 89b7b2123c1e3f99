"""Gradients averaged per module at every step, which DiPaCo section 4.5 compares Algorithm 1 with.

This is an oracle. The runtime's own loop (`inner/synchronous.py`) is compared with it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.algorithm.algorithm1 import Modules
from dipaco.outer.gradient import path_weights
from dipaco.topology import Topology, assemble, dissect


def train(
    topology: Topology,
    modules: Modules,
    states: Modules,
    gradient_of: Callable[[int, int, Any], Any],
    update: Callable[[int, Any, Any, Any, Any], tuple[Any, Any]],
    documents: Sequence[int],
    *,
    steps: Iterable[int],
    clip_norm: float,
    by_documents: bool = True,
) -> Iterator[Modules]:
    """Yields every module after each step, which all paths take together.

    A module's gradient is the mean over its paths, with the weights alpha_i of Algorithm 1. The
    gradient of a path, made of such means, is clipped as one model's is; a module whose paths
    are clipped differently takes their mean clip. So one path is plain AdamW, paths that share
    all are one model with their batches together, and paths that share nothing are separate models.

    Args:
      topology: levels, their modules, and the paths through them.
      modules: parameters of every module; given up (donated to `update`).
      states: one AdamW state per module, not per path; given up likewise.
      gradient_of: (path, step, parts) -> gradient of the path's mean loss.
      update: (step, parameters, state, gradient, clip) -> (parameters, state), AdamW of one module.
      documents: [P] |D_i|, documents in each path's shard.
      steps: numbers of the inner steps to take.
      clip_norm: largest norm of a path's gradient.
      by_documents: alpha_i in proportion to `documents`; else equal.

    Source: DiPaCo section 4.5; the clipping is not in the paper.
    """
    for step in steps:
        gradients = [
            dissect(
                gradient_of(path, step, assemble(modules, topology.modules_of(path))),
                topology,
                path,
            )
            for path in range(topology.num_paths)
        ]
        alphas, means = {}, {}
        for module in topology.modules:
            paths = topology.paths_through(module)
            share = path_weights([documents[i] for i in paths], by_documents=by_documents)
            alphas[module] = dict(zip(paths, share.astype(np.float32), strict=True))
            means[module] = _weighted_mean(
                [gradients[i][module] for i in paths], [alphas[module][i] for i in paths]
            )
        squares = {module: _sum_of_squares(mean) for module, mean in means.items()}
        clips = []
        for path in range(topology.num_paths):
            norm = jnp.sqrt(sum(squares[module] for module in topology.modules_of(path)))
            clips.append(jnp.minimum(1.0, clip_norm / norm))
        stepped = {}
        for module in topology.modules:
            clip = sum(alpha * clips[path] for path, alpha in alphas[module].items())
            stepped[module], states[module] = update(
                step, modules[module], states[module], means[module], clip
            )
        modules = stepped
        yield modules


def _weighted_mean(gradients: Sequence[Any], alphas: Sequence[Any]) -> Any:
    """sum_i alpha_i gradient_i, in path order."""
    total = _scaled(gradients[0], alphas[0])
    for gradient, alpha in zip(gradients[1:], alphas[1:], strict=True):
        total = _plus_scaled(total, gradient, alpha)
    return total


# Compiled, one term at a time: XLA rounds `total + alpha * leaf` once where the processor can. Runs
# have the same bits; all terms in one program, or op by op, have others.
@jax.jit
def _scaled(gradient: Any, alpha: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * alpha, gradient)


@jax.jit
def _plus_scaled(total: Any, gradient: Any, alpha: Any) -> Any:
    return jax.tree.map(lambda so_far, leaf: so_far + leaf * alpha, total, gradient)


@jax.jit
def _sum_of_squares(gradient: Any) -> jax.Array:
    return sum((jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)), jnp.zeros(()))
