"""Lloyd's k-means, on the device, a block of documents at a time.

Seeding is k-means++ (Arthur and Vassilvitskii 2007). The largest array beside the documents is
[BLOCK_ROWS, K]. A centre without documents is moved onto the document farthest from its centre,
which can only lower the objective: without that, a path would have nothing to train on.

Axes: G blocks, B rows a block, N = G * B rows with padding, K clusters, D dimensions.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BLOCK_ROWS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clusters:
    """Centres, and the objective (sum of squared distances) of every iteration."""

    centres_KD: np.ndarray  # float32
    objectives: tuple[float, ...]  # before each move and at the end. Never rises


def kmeans(x_ND: np.ndarray, num_clusters: int, *, seed: int, iterations: int = 50) -> Clusters:
    """Centres that minimise the sum of squared distances of documents to their nearest centre.

    Args:
      x_ND: [N, D] documents, N >= num_clusters.
      seed: seed of k-means++. The same seed gives the same centres on the same kind of device.
      iterations: most moves. They end earlier if the objective stops falling.

    Returns:
      The centres after the last move. Clusters may be empty only where fewer than K documents are
      distinct.
    """
    x_GBD, weight_GB = _blocks(np.asarray(x_ND, np.float32))
    centres_KD = _seed_centres(jax.random.key(seed), x_GBD, weight_GB, num_clusters)
    objectives: list[float] = []
    for _ in range(iterations):
        moved_KD, count_K, distance_GB, objective = _lloyd_step(x_GBD, weight_GB, centres_KD)
        objectives.append(float(objective))
        empty = np.flatnonzero(np.asarray(count_K) == 0)
        has_settled = len(objectives) > 1 and objectives[-1] >= objectives[-2] * (1 - 1e-7)
        if has_settled and not len(empty):
            break
        if len(empty):
            worst = np.argsort(-np.asarray(distance_GB).ravel(), kind="stable")[: len(empty)]
            moved_KD = moved_KD.at[empty].set(x_GBD.reshape(-1, x_GBD.shape[-1])[worst])
        centres_KD = moved_KD
    else:
        objectives.append(float(_lloyd_step(x_GBD, weight_GB, centres_KD)[3]))
    return Clusters(centres_KD=np.asarray(centres_KD), objectives=tuple(objectives))


def _blocks(x_ND: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """Rows in G blocks of B, padded, and the weight of each row: 1, or 0 for padding."""
    num_rows, num_dims = x_ND.shape
    block_rows = min(BLOCK_ROWS, num_rows)
    num_blocks = -(-num_rows // block_rows)
    padded = np.zeros((num_blocks * block_rows, num_dims), np.float32)
    padded[:num_rows] = x_ND
    weight = (np.arange(len(padded)) < num_rows).astype(np.float32)
    return (
        jnp.asarray(padded.reshape(num_blocks, block_rows, num_dims)),
        jnp.asarray(weight.reshape(num_blocks, block_rows)),
    )


@functools.partial(jax.jit, static_argnames="num_clusters")
def _seed_centres(key, x_GBD, weight_GB, num_clusters: int) -> jax.Array:
    """k-means++: the next centre is a document drawn by its squared distance to the centres."""
    x_ND, weight_N = x_GBD.reshape(-1, x_GBD.shape[-1]), weight_GB.ravel()

    def add_centre(k, carry):
        centres_KD, distance_N = carry
        drawn = jax.random.categorical(jax.random.fold_in(key, k), jnp.log(distance_N))
        to_new_N = jnp.sum(jnp.square(x_ND - x_ND[drawn][None, :]), axis=1) * weight_N
        return centres_KD.at[k].set(x_ND[drawn]), jnp.minimum(distance_N, to_new_N)

    # All documents are equally likely to be the first: minimum() leaves only real distances after
    # it.
    first = jax.random.categorical(jax.random.fold_in(key, num_clusters), jnp.log(weight_N))
    distance_N = jnp.sum(jnp.square(x_ND - x_ND[first][None, :]), axis=1) * weight_N
    centres_KD = jnp.zeros((num_clusters, x_ND.shape[1])).at[0].set(x_ND[first])
    return lax.fori_loop(1, num_clusters, add_centre, (centres_KD, distance_N))[0]


@jax.jit
def _lloyd_step(x_GBD, weight_GB, centres_KD):
    """Assign, then move: (means of clusters, documents of each, each one's distance, objective)."""
    num_clusters, num_dims = centres_KD.shape
    norm_K = jnp.sum(jnp.square(centres_KD), axis=1)

    def add_block(carry, block):
        sum_KD, count_K = carry
        x_BD, weight_B = block
        # HIGHEST: accelerators would otherwise round inputs to 10 bits, and the objective could
        # rise.
        dot_BK = jnp.matmul(x_BD, centres_KD.T, precision=lax.Precision.HIGHEST)
        relative_BK = norm_K[None, :] - 2 * dot_BK
        nearest_B = jnp.argmin(relative_BK, axis=1)
        # Not |x|^2 + relative: the difference of two large numbers would blur documents near a
        # centre.
        distance_B = jnp.sum(jnp.square(x_BD - centres_KD[nearest_B]), axis=1) * weight_B
        member_BK = jax.nn.one_hot(nearest_B, num_clusters) * weight_B[:, None]
        sum_KD += jnp.matmul(member_BK.T, x_BD, precision=lax.Precision.HIGHEST)
        return (sum_KD, count_K + jnp.sum(member_BK, axis=0)), distance_B

    start = (jnp.zeros((num_clusters, num_dims)), jnp.zeros(num_clusters))
    (sum_KD, count_K), distance_GB = lax.scan(add_block, start, (x_GBD, weight_GB))
    mean_KD = sum_KD / jnp.maximum(count_K, 1)[:, None]
    moved_KD = jnp.where(count_K[:, None] > 0, mean_KD, centres_KD)
    return moved_KD, count_K, distance_GB, jnp.sum(distance_GB)
