"""Re-routing: the path that continues a text after every W new tokens, by a trained router.

DiPaCo (arXiv 2403.10616) section 2.4. In a run with `reroute.every`, the last task but one trains a
router for the paths of the last release: after any token it chooses the path that continues
(`routing.token_router`). It reads the whole text so far, as in the evaluation of the run. Earlier
releases, and runs without such a router, are re-routed by the document router, which reads the
latest tokens as if a document began with them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dipaco.config import MODULAR
from dipaco.control.errors import NotAvailable
from dipaco.control.planning.release import Release
from dipaco.control.planning.summaries import Rerouted
from dipaco.model.config import ModelConfig, block_names
from dipaco.model.inference import prepare
from dipaco.routing import token_router
from dipaco.runs.run import Run
from dipaco.serving.decoding.decode import buckets, hidden_states, smallest_fitting
from dipaco.serving.warm_up import WarmUpProgram
from dipaco.store.tensors import load_tree

SMALLEST_TEXT = 64  # tokens: the smallest bucket of texts


class Rerouter:
    """The re-routing router of one release. Any thread may call it.

    Args:
      config: sizes of the router's model.
      params: from the stage `reroute`: `model` and `head`.
    """

    def __init__(self, config: ModelConfig, params: token_router.Params):
        below_head = {name: params["model"][name] for name in ("embed", *block_names(config))}
        self._params = jax.device_put({**params, "model": prepare(config, below_head)})
        self._sizes = buckets(SMALLEST_TEXT, config.max_length)
        self._config = config

    def programs(self) -> list[WarmUpProgram]:
        """The programs for texts of every length."""
        texts = [np.zeros(size, np.int32) for size in self._sizes]
        runs = [functools.partial(self.next_path, text) for text in texts]
        names = [f"re-routing of {size} tokens" for size in self._sizes]
        return list(map(WarmUpProgram, names, runs))

    def next_path(self, text: np.ndarray) -> int:
        """The path that continues a text, int32 [tokens], of one token to a full context."""
        tokens_1T = np.zeros((1, smallest_fitting(self._sizes, len(text))), np.int32)
        tokens_1T[0, : len(text)] = text
        return int(_next_path(self._config, self._params, tokens_1T, np.int32(len(text) - 1)))


@functools.partial(jax.jit, static_argnames=("config",))
def _next_path(
    config: ModelConfig, params: token_router.Params, tokens_1T: jax.Array, last: jax.Array
) -> jax.Array:
    """The path that continues after token `last`. Tokens after it are padding."""
    hidden_of = functools.partial(hidden_states, config)
    return jnp.argmax(token_router.path_logits(hidden_of, params, tokens_1T)[0, last])


def load_rerouter(run: Run, release: Release) -> Rerouter | None:
    """The router that was trained to re-route between the paths of a release, if any."""
    if release.arm != MODULAR or len(release.paths) == 1:
        return None
    try:
        stage = run.stage("reroute")
    except NotAvailable:
        return None
    if Rerouted.of(stage).release != release.phase:
        return None
    params = load_tree(run.objects, stage.artifacts["within_router"])
    return Rerouter(run.config.model, params)
