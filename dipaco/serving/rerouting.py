"""Who goes on with a text after every W tokens made: the router that the run trained for it.

DiPaCo (arXiv 2403.10616) section 2.4. The last task but one of a run with `reroute.every` trains a
router that says, after any token, which path should go on (`routing.within`), for the paths of the
run's last release. It reads the whole text so far, as it did when the run was evaluated with it. A
release before that one, and a run that trained no such router, are served by the document router,
which looks at the latest tokens as if a document began with them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.config import MODULAR
from dipaco.control.errors import NotAvailable
from dipaco.control.release import Release
from dipaco.model.config import ModelConfig, block_names
from dipaco.model.inference import prepare
from dipaco.routing import token_router as within
from dipaco.runs.run import Run
from dipaco.serving.decoding.decode import buckets, smallest_fitting
from dipaco.serving.dispatch import hidden_states
from dipaco.store.tensors import load_tree

SMALLEST_TEXT = 64  # tokens; the smallest bucket of texts


class Rerouter:
    """The router of one release. Any thread may ask.

    Args:
      config: sizes of the model that it looks through.
      params: from the stage `reroute`: `model` and `head`.
    """

    def __init__(self, config: ModelConfig, params: within.Params):
        below_head = {name: params["model"][name] for name in ("embed", *block_names(config))}
        self._params = jax.device_put({**params, "model": prepare(config, below_head)})
        self._sizes = buckets(SMALLEST_TEXT, config.max_length)
        self._config = config

    def warm_up(self) -> None:
        """Compiles for texts of every length."""
        for size in self._sizes:
            self.next_path(np.zeros(size, np.int32))

    def next_path(self, text: np.ndarray) -> int:
        """The path that goes on after a text, int32 [tokens]; at least one, at most the context."""
        tokens_1T = np.zeros((1, smallest_fitting(self._sizes, len(text))), np.int32)
        tokens_1T[0, : len(text)] = text
        return int(_choose(self._config, self._params, tokens_1T, np.int32(len(text) - 1)))


@functools.partial(jax.jit, static_argnames=("config",))
def _choose(
    config: ModelConfig, params: within.Params, tokens_1T: jax.Array, last: jax.Array
) -> jax.Array:
    """Who goes on after token `last`; what comes behind it is not looked at."""
    hidden_of = functools.partial(hidden_states, config)
    return jnp.argmax(within.path_logits(hidden_of, params, tokens_1T)[0, last])


def load_rerouter(run: Run, release: Release) -> Rerouter | None:
    """The router that was trained for re-routing between the paths of a release, if there is one.

    Raises:
      ObjectMissing, ObjectDamaged.
    """
    if release.arm != MODULAR or len(release.paths) == 1:
        return None
    try:
        stage = run.stage("reroute")
    except NotAvailable:
        return None
    if stage.summary["release"] != release.phase:
        return None
    params = load_tree(run.objects, stage.artifacts["within_router"])
    return Rerouter(run.config.model, params)
