"""Which path takes a prompt, and why. DiPaCo section 2.4: a prompt is routed once, by its prefix.

The router reads the base model's features of the first `routing.prefix_tokens` (32) tokens. A
shorter prompt is routed by the mean over the tokens it has. A start token before it is not read.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from dipaco.control.release import Release
from dipaco.model.cache import empty_cache
from dipaco.model.config import ModelConfig, block_names
from dipaco.model.inference import extend, prepare
from dipaco.model.spec import Parts
from dipaco.routing.features import document_features
from dipaco.routing.router import Router
from dipaco.runs.routing import prefixes_of, router_of
from dipaco.runs.run import Run
from dipaco.serving.decoding.decode import smallest_fitting
from dipaco.serving.micro_batcher import MicroBatcher

MAX_CACHED_PREFIXES = 4096  # prompts of one application often share them
BATCH_SIZES = (1, 2, 4)  # prefixes: in a batch of four, one costs 0.65 of alone (eight: 0.6)


class PathChoice(NamedTuple):
    """A path, its modules, and the router's scores: higher is better, None = it was not asked."""

    path: int
    modules: tuple[str, ...]
    scores: np.ndarray | None  # float32 [P]

    def describe(self) -> str:
        """Two lines for a person."""
        lines = [f"path {self.path} = {' + '.join(self.modules)}"]
        if self.scores is not None:
            best = np.argsort(-self.scores, kind="stable")[:8]
            listed = ", ".join(f"path {path} {self.scores[path]:.2f}" for path in best)
            more = f", and {len(self.scores) - 8} more" if len(self.scores) > 8 else ""
            lines.append(f"router's scores, the best first: {listed}{more}")
        return "\n".join(lines)


class Dispatcher:
    """The routers of the releases that are served, and the base model that gives their features.

    Prompts that arrive together share a batch. It is smaller than the batch in which documents are
    routed, so it answers far sooner; rounding may send a prompt on the border of two paths to the
    other one. Caches the prefixes it has routed. Any thread may call it.

    Raises:
      ReleaseOfOtherRouter: the release was made with another router than its paths.
    """

    def __init__(self, run: Run, release: Release):
        self._run = run
        self._routers: dict[str, Router] = {}  # by digest: an alternation fits a new one
        self.add_release(run, release)
        # On one device, whatever mesh the run was trained on. Features do not need the head.
        config, parts = run.config.model, run.base_parts()
        below_head = {name: parts[name] for name in ("embed", *block_names(config))}
        self._hidden = functools.partial(hidden_states, config, prepare(config, below_head))
        self._batcher = MicroBatcher(self._features, BATCH_SIZES[-1])
        self._route_cached = functools.lru_cache(MAX_CACHED_PREFIXES)(self._route_uncached)

    def warm_up(self) -> None:
        """Compiles for every batch size."""
        for number in BATCH_SIZES:
            self._features([np.zeros(1, np.int32)] * number)

    def add_release(self, run: Run, release: Release) -> None:
        """Adds the router of another release; `run` must be opened by the calling thread."""
        self._routers[release.companions["router"]] = router_of(run, release)

    def route(self, prompt: np.ndarray, release: Release) -> tuple[int, np.ndarray]:
        """The path of a prompt, int32 [tokens], and the score of every path, float32 [P].

        The router reads text: what follows a start token, if anything does.
        """
        text = without_start(prompt, self._run.corpus.edges.tokens.start)
        prefix = text[: self._run.config.routing.prefix_tokens]
        return self._route_cached(prefix.tobytes(), release.companions["router"])

    def _route_uncached(self, prefix: bytes, router: str) -> tuple[int, np.ndarray]:
        features_D = self._batcher.compute(np.frombuffer(prefix, np.int32))
        (scores,) = self._routers[router].scores(features_D[None])
        return int(np.argmax(scores)), scores  # `assign` would compute the scores again

    def _features(self, prefixes: Sequence[np.ndarray]) -> np.ndarray:
        """Features, float32 [N, D], of N prefixes, int32 [tokens] each."""
        number = smallest_fitting(BATCH_SIZES, len(prefixes))
        return document_features(self._hidden, *prefixes_of(self._run, prefixes), batch_size=number)


def without_start(prompt: np.ndarray, start: int | None) -> np.ndarray:
    """The text of a prompt, int32 [tokens]: without the start token before it. A start token alone
    stays: something must be read.
    """
    text = np.asarray(prompt, np.int32)
    return text[1:] if len(text) > 1 and text[0] == start else text


@functools.partial(jax.jit, static_argnames=("config",))
def hidden_states(config: ModelConfig, prepared: Parts, tokens_BT: jax.Array) -> jax.Array:
    """float32 [B, T, D], as `model.lm.hidden_states` in three quarters of its time for one row of
    32 tokens (8.39 M parameters on two CPUs: 7.1 against 9.7 ms).
    """
    cache = empty_cache(config, *tokens_BT.shape)
    starts_B = cache.pop("length")
    x_DN, _ = extend(config, prepared, tokens_BT, starts_B, cache)
    return x_DN.T.reshape(*tokens_BT.shape, -1)


def dispatch(
    run: Run,
    release: Release,
    prompt: np.ndarray,
    path: int | None = None,
    dispatcher: Dispatcher | None = None,
) -> PathChoice:
    """Routes one prompt to a path of a release.

    Args:
      run: the run that the release is of.
      release: the release that is served.
      prompt: int32 [tokens].
      path: use this one and do not ask the router.
      dispatcher: None = one made for this prompt.

    Raises:
      ReleaseOfOtherRouter: the release was made with another router than its paths.
    """
    scores = None
    if path is None and len(release.paths) == 1:
        path = 0
    if path is None:
        path, scores = (dispatcher or Dispatcher(run, release)).route(prompt, release)
    return PathChoice(path, tuple(release.paths[path]), scores)
