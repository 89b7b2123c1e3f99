"""Late modules: the start of a phase for a path that has trained on while its modules stepped.

Streaming DiLoCo (arXiv 2501.18512, section 2.3 and Algorithm 2): a path sends its contributions at
the end of a phase, takes `outer.delay` more inner steps from its own parameters, and then takes the
modules as they have stepped meanwhile:

    theta = alpha * own + (1 - alpha) * stepped

`alpha` is `outer.delay_merge`. The contribution of the phase is measured from the stepped modules,
as without a delay: stepped - (the path's parameters at the end of the phase). So it is the distance
between path and module, and an outer step moves by such distances. The share alpha of the steps
taken ahead is in it. The rest of these steps moved only the path's AdamW state and its place in the
data. The paper writes theta(t - H) for the base and does not say whether the path's own parameters
or the shared ones are meant. Its open implementation (torchft) keeps the shared ones, as here.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def merge(own: Mapping[str, Any], stepped: Mapping[str, Any], alpha: float) -> dict[str, Any]:
    """alpha * own + (1 - alpha) * stepped, leaf by leaf.

    With alpha 0 it is `stepped` itself. NumPy computes it in float32, one operation after the
    other: the bits do not depend on a compiler.

    Args:
      own: part name -> parameters of the path, `outer.delay` steps into the phase.
      stepped: the same parts of the path's modules at the start of the phase.

    Returns:
      The same parts, in the types of `stepped`.
    """
    if alpha == 0:
        return {part: stepped[part] for part in own}
    kept, taken = np.float32(alpha), np.float32(1) - np.float32(alpha)

    def leaf(of_path: Any, of_module: Any) -> np.ndarray:
        there = np.asarray(of_module)
        mixed = kept * np.asarray(of_path, np.float32) + taken * np.asarray(there, np.float32)
        return mixed.astype(there.dtype)

    return jax.tree.map(leaf, dict(own), {part: stepped[part] for part in own})
