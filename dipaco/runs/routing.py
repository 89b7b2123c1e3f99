"""Sends documents to paths: features of their first tokens under the base model, then the
router. DiPaCo section 2.4.
"""

from collections.abc import Sequence

import numpy as np

from dipaco.control.release import Release
from dipaco.data.corpus import Corpus
from dipaco.data.first_tokens import first_tokens
from dipaco.routing.features import document_features
from dipaco.routing.router import Router
from dipaco.runs.errors import ReleaseOfOtherRouter
from dipaco.runs.feature_cache import cached_features
from dipaco.runs.run import Run

BATCH_DOCUMENTS = 256  # whose features are computed at once
CHUNK_DOCUMENTS = 16_384  # whose features are in memory at once


def router_of(run: Run, release: Release) -> Router:
    """The router that a release was made with.

    Raises:
      ReleaseOfOtherRouter: the paths of that phase were trained under another one.
    """
    routing = run.routing_of(release.arm, release.phase)
    if release.companions["router"] != routing.artifacts["router"].digest:
        raise ReleaseOfOtherRouter(arm=release.arm, phase=release.phase)
    return run.router_of(routing)


def features(
    run: Run, tokens_NT: np.ndarray, lengths_N: np.ndarray, batch: int = BATCH_DOCUMENTS
) -> np.ndarray:
    """float32 [N, D] of the documents' first tokens, [N, prefix_tokens], padded with 0."""
    return document_features(run.base_hidden, tokens_NT, lengths_N, batch_size=batch)


def route_documents(
    run: Run, router: Router, corpus: Corpus, documents: np.ndarray, num_choices: int = 1
) -> np.ndarray:
    """The best paths of each document of a corpus, int32 [N, num_choices], chunk by chunk."""
    if run.config.num_paths == 1:
        return np.zeros((len(documents), 1), np.int32)
    paths = [np.zeros((0, num_choices), np.int32)]
    for start in range(0, len(documents), CHUNK_DOCUMENTS):
        chunk = documents[start : start + CHUNK_DOCUMENTS]
        paths.append(router.assign(features_of(run, corpus, chunk), num_choices))
    return np.concatenate(paths)


def features_of(run: Run, corpus: Corpus, documents: np.ndarray) -> np.ndarray:
    """Features float32 [N, D] of documents of a corpus, from the cache of the sweep if the run is
    part of one.
    """
    prefix = first_tokens(corpus, documents, run.config.routing.prefix_tokens)
    return cached_features(run, *prefix, lambda: features(run, *prefix))


def prefixes_of(run: Run, prompts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Prefixes of prompts (int32 [tokens] each), for the router: int32 [N, prefix_tokens], padded
    with 0, and their lengths int32 [N].

    A prompt shorter than the prefix is routed by the mean over the tokens it has.
    """
    prefix_tokens = run.config.routing.prefix_tokens
    tokens_NT = np.zeros((len(prompts), prefix_tokens), np.int32)
    lengths_N = np.array([min(prefix_tokens, len(prompt)) for prompt in prompts], np.int32)
    for row, prompt, length in zip(tokens_NT, prompts, lengths_N, strict=True):
        row[:length] = prompt[:length]
    return tokens_NT, lengths_N
