"""One vector a document: the mean hidden state of its first tokens.

DiPaCo (arXiv 2403.10616) section 2.4: g(document) is the mean over the first 32 tokens of the last
block's output, taken from the *initial* model, so that features stay fixed while the paths train.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

HiddenFunction = Callable[[np.ndarray], jax.Array]  # int32 [B, T] -> [B, T, D]


def document_features(
    hidden_fn: HiddenFunction,
    tokens_NT: np.ndarray,
    lengths_N: np.ndarray | None = None,
    *,
    batch_size: int = 64,
) -> np.ndarray:
    """Mean of the hidden states over the first T tokens of each document, or all if it is shorter.

    Args:
      hidden_fn: int32 [batch_size, T] -> hidden states [batch_size, T, D]. Must be causal, since
        short documents are padded at the end with zeros. Always called with this one shape, so it
        compiles once.
      tokens_NT: [N, T] the first T tokens of each document, padded with 0.
      lengths_N: [N] tokens each document has. Longer ones count as T. None: all have T.

    Returns:
      float32 [N, D]. A document of no tokens gets zeros.
    """
    num_documents, num_tokens = tokens_NT.shape
    if lengths_N is None:
        lengths_N = np.full(num_documents, num_tokens)
    features = []
    for start in range(0, max(num_documents, 1), batch_size):
        rows = slice(start, min(start + batch_size, num_documents))
        tokens_BT = np.zeros((batch_size, num_tokens), np.int32)
        lengths_B = np.zeros(batch_size, np.int32)
        count = rows.stop - rows.start
        tokens_BT[:count], lengths_B[:count] = tokens_NT[rows], lengths_N[rows]
        features.append(np.asarray(_masked_mean(hidden_fn(tokens_BT), lengths_B))[:count])
    return np.concatenate(features)


@jax.jit
def _masked_mean(hidden_BTD: jax.Array, lengths_B: jax.Array) -> jax.Array:
    hidden_BTD = hidden_BTD.astype(jnp.float32)  # a bfloat16 sum of 32 terms loses three digits
    num_tokens = hidden_BTD.shape[1]
    is_token_BT = jnp.arange(num_tokens)[None, :] < lengths_B[:, None]
    sum_BD = jnp.sum(jnp.where(is_token_BT[:, :, None], hidden_BTD, 0.0), axis=1)
    return sum_BD / jnp.clip(lengths_B, 1, num_tokens)[:, None].astype(jnp.float32)
