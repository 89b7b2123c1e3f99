"""Sends documents to paths: features of their first tokens under the base model, then the router
(DiPaCo section 2.4). Likelihood may choose among the router's best paths.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np

from dipaco.control.planning.release import Release
from dipaco.data.corpus import Corpus
from dipaco.data.windows import first_tokens
from dipaco.errors import BadSetting
from dipaco.evaluation.perplexity import score_tokens
from dipaco.routing.config import LIKELIHOOD, RULES, SMALL_MODELS, RoutingConfig
from dipaco.routing.drawn import deal
from dipaco.routing.features import document_features
from dipaco.routing.likelihood import likeliest, prefix_scores
from dipaco.routing.router import Router, fit_router
from dipaco.runs.errors import NotAllPaths, ReleaseOfOtherRouter
from dipaco.runs.run import Run
from dipaco.runs.small_models import small_config, small_scores
from dipaco.store.errors import ObjectDamaged, ObjectMissing

BATCH_DOCUMENTS = 256  # Features of so many are computed at once.
CHUNK_DOCUMENTS = 16_384  # Features of so many are in memory at once.
MOST_PATHS = 4  # on the device at once

LogLikelihoods = Callable[[Any, Any], Any]  # `ScoringPrograms.log_likelihoods` returns one.


class RecentPaths:
    """Paths of a release on the device. Reading one more drops the one used longest ago."""

    def __init__(self, run: Run, release: Release):
        self._run, self._release = run, release
        self._held: collections.OrderedDict[int, LogLikelihoods] = collections.OrderedDict()

    def log_likelihoods(self, path: int) -> LogLikelihoods:
        """`ScoringPrograms.log_likelihoods` of a path. Raises as `Run.path_of`."""
        if path not in self._held:
            while len(self._held) >= MOST_PATHS:
                self._held.popitem(last=False)
            parts = self._run.path_of(self._release, path)
            self._held[path] = self._run.scoring_programs.log_likelihoods(parts)
        self._held.move_to_end(path)
        return self._held[path]

    def held_first(self, paths: Iterable[int]) -> list[int]:
        """An order in which fewest have to be read."""
        return sorted(paths, key=lambda path: (path not in self._held, path))


def fitted_router(run: Run, features_ND: np.ndarray, label_N: np.ndarray | None = None) -> Router:
    """A router as the run's settings, or its own rule, fit it. A rule may read labels."""
    return fit_router(
        run.config.routing,
        features_ND,
        run.config.topology.choices,
        run.seed_for("router"),
        run.router_functions,
        label_N,
    )


def router_of(run: Run, release: Release) -> Router:
    """The router that a release was made with.

    Raises:
      ReleaseOfOtherRouter: the paths of that phase were trained under another one.
    """
    routing = run.routing_of(release.arm, release.phase)
    if release.companions["router"] != routing.artifacts["router"].digest:
        raise ReleaseOfOtherRouter(arm=release.arm, phase=release.phase)
    return run.router_of(routing)


def routing_by(run: Run, rule: str | None) -> RoutingConfig:
    """The run's settings, with this rule if one is given. Raises `BadSetting`."""
    if rule is None:
        return run.config.routing
    if rule not in RULES:
        raise BadSetting(name="rule", value=rule, expected=f"one of {', '.join(RULES)}")
    return dataclasses.replace(run.config.routing, rule=rule)


def check_all_paths(run: Run, release: Release) -> None:
    """Raises `NotAllPaths` if a release has fewer paths than its arm."""
    given, expected = len(release.paths), run.plan.arm(release.arm).topology.num_paths
    if given < expected:
        problem = f"it has {given} paths of {expected}"
        raise NotAllPaths(arm=release.arm, phase=release.phase, problem=problem)


@contextlib.contextmanager
def reading_path(release: Release, path: int) -> Generator[None]:
    """Inside, a path of a release that is missing or damaged raises `NotAllPaths`."""
    try:
        yield
    except (ObjectMissing, ObjectDamaged) as error:
        problem = f"path {path} cannot be read ({error})"
        raise NotAllPaths(arm=release.arm, phase=release.phase, problem=problem) from error


def paths_of_prefixes(
    run: Run,
    release: Release,
    routing: RoutingConfig,
    tokens_NT: np.ndarray,
    lengths_N: np.ndarray,
    recent: RecentPaths | None = None,
) -> np.ndarray:
    """The path of each document of a release by its first tokens: int32 [N].

    Args:
      recent: paths of the release that the caller goes on with. None: read for this call.

    Raises:
      ReleaseOfOtherRouter: the paths were trained under another router.
      NotAllPaths: a path that is to be compared is missing or damaged.
    """
    router, features_ND = router_of(run, release), features(run, tokens_NT, lengths_N)
    if routing.rule != LIKELIHOOD:
        return router.assign(features_ND)[:, 0]
    check_all_paths(run, release)
    shortlist_Nn = router.assign(features_ND, routing.num_compared(router.num_paths))
    prefix_NP = np.zeros((len(tokens_NT), router.num_paths))
    recent = recent or RecentPaths(run, release)
    for path in recent.held_first(np.unique(shortlist_Nn).tolist()):
        mine = (shortlist_Nn == path).any(axis=1)
        with reading_path(release, path):
            log_likelihoods = recent.log_likelihoods(path)
        prefix_NP[mine, path] = _of_prefixes(run, log_likelihoods, tokens_NT[mine], lengths_N[mine])
    return likeliest(prefix_scores(prefix_NP, shortlist_Nn, routing.prior_nats), shortlist_Nn)


def prefix_log_likelihoods(
    run: Run, parts: Any, tokens_NT: np.ndarray, lengths_N: np.ndarray
) -> np.ndarray:
    """Nats of the first tokens of documents but the very first, under one path: float64 [N]."""
    return _of_prefixes(run, run.scoring_programs.log_likelihoods(parts), tokens_NT, lengths_N)


def _of_prefixes(
    run: Run, log_likelihoods: LogLikelihoods, tokens_NT: np.ndarray, lengths_N: np.ndarray
) -> np.ndarray:
    scores = score_tokens(
        log_likelihoods,
        tokens_NT,
        lengths_N,
        prefix_tokens=tokens_NT.shape[1],
        batch_size=run.config.evaluation.batch_size,
    )
    return scores.prefixes


def features(
    run: Run, tokens_NT: np.ndarray, lengths_N: np.ndarray, batch_size: int = BATCH_DOCUMENTS
) -> np.ndarray:
    """float32 [N, D] of the documents' first tokens, [N, prefix_tokens], padded with 0: of the base
    model, or what small models say of them.
    """
    if run.config.routing.kind == SMALL_MODELS:
        model = small_config(run.config.model, tokens_NT.shape[1])
        return small_scores(model, run.small_models, tokens_NT, lengths_N, batch_size)
    return base_features(run, tokens_NT, lengths_N, batch_size)


def base_features(
    run: Run, tokens_NT: np.ndarray, lengths_N: np.ndarray, batch_size: int = BATCH_DOCUMENTS
) -> np.ndarray:
    """The features that the base model gives documents of these first tokens: float32 [N, D]."""
    return document_features(run.base_hidden(), tokens_NT, lengths_N, batch_size=batch_size)


def features_of(run: Run, corpus: Corpus, documents: np.ndarray) -> np.ndarray:
    """Features float32 [N, D] of documents of a corpus."""
    return features(run, *first_tokens(corpus, documents, run.config.data.prefix_tokens))


FeaturesOf = Callable[[Run, Corpus, np.ndarray], np.ndarray]


def route_documents(
    run: Run,
    router: Router,
    corpus: Corpus,
    documents: np.ndarray,
    num_choices: int = 1,
    features_of: FeaturesOf = features_of,
) -> np.ndarray:
    """The best paths of each document of a corpus, int32 [N, num_choices], chunk by chunk.

    A router that draws paths deals `documents` out by their numbers, to equal parts, without
    looking at their text.
    """
    if run.config.num_paths == 1:
        return np.zeros((len(documents), 1), np.int32)
    if router.seed is not None:
        return deal(documents, router.num_paths, num_choices, router.seed)
    paths = [np.zeros((0, num_choices), np.int32)]
    for start in range(0, len(documents), CHUNK_DOCUMENTS):
        chunk = documents[start : start + CHUNK_DOCUMENTS]
        paths.append(router.assign(features_of(run, corpus, chunk), num_choices))
    return np.concatenate(paths)


def prefixes_of(run: Run, prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Prefixes of prompts (int32 [tokens] each), for the router: int32 [N, prefix_tokens], padded
    with 0, and their lengths int32 [N].

    A prompt shorter than the prefix is routed by the mean over the tokens it has.
    """
    prefix_tokens = run.config.data.prefix_tokens
    tokens_NT = np.zeros((len(prompts), prefix_tokens), np.int32)
    lengths_N = np.array([min(prefix_tokens, len(prompt)) for prompt in prompts], np.int32)
    for row, prompt, length in zip(tokens_NT, prompts, lengths_N, strict=True):
        row[:length] = prompt[:length]
    return tokens_NT, lengths_N
