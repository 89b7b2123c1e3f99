"""Routing: the path that takes a prompt, and the reason. DiPaCo section 2.4: a prompt is routed
once, by its prefix.

The router reads the base model's features of the first `data.prefix_tokens` (32) tokens. A
shorter prompt is routed by the mean over the tokens it has. A start token before it is not read.
By likelihood (`routing.rule`), the best paths by features read the same tokens, and the one under
which they are likeliest takes the prompt, as in evaluation. In an event loop clients take turns,
and no thread waits for a path.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from dipaco.control.planning.release import Release
from dipaco.errors import DipacoError
from dipaco.model.config import block_names
from dipaco.model.inference import prepare
from dipaco.model.spec import Parts
from dipaco.plural import counted
from dipaco.receipt import Receipt
from dipaco.routing.config import FEATURES, LIKELIHOOD, SMALL_MODELS
from dipaco.routing.features import document_features
from dipaco.routing.router import Router
from dipaco.runs.errors import NotAllPaths
from dipaco.runs.routing import (
    check_all_paths,
    features,
    prefixes_of,
    reading_path,
    router_of,
    routing_by,
)
from dipaco.runs.run import Run
from dipaco.serving.decoding.decode import hidden_states, smallest_fitting
from dipaco.serving.errors import PathCacheTooSmall
from dipaco.serving.fairness import FairBatches, FairThreads
from dipaco.serving.memory import free_bytes
from dipaco.serving.models import ServedRelease, is_routed
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.path_cache import Modules, PathCache
from dipaco.serving.prefix_scores import PathComparison, log_likelihoods
from dipaco.serving.rerouting import Rerouter
from dipaco.serving.warm_up import WarmUpProgram
from dipaco.store.errors import ObjectDamaged, ObjectMissing, StoreFault
from dipaco.store.tensors import load_for_jax

MAX_CACHED_PREFIXES = 4096  # prompts of one application often share them
# Prefixes that are read together. On a CPU, one of four costs 0.65 of one alone (of eight: 0.6).
CPU_BATCHES, ACCELERATOR_BATCHES = (1, 2, 4, 8), (1, 8, 32)


class PathChoice(NamedTuple):
    """A path, its modules, and the scores of paths: higher is better, None = none were compared."""

    path: int
    modules: tuple[str, ...]
    # [P] by features or, in nats, by likelihood: minus infinity = not read.
    scores: np.ndarray | None
    rule: str = FEATURES  # scores are made by it

    def ranking(self) -> list[int]:
        """The paths that were compared, the best first."""
        if self.scores is None:
            return []
        ranked = np.argsort(-self.scores, kind="stable")
        return ranked[np.isfinite(self.scores[ranked])].tolist()

    def describe(self) -> str:
        """Two lines for a person."""
        lines = [f"path {self.path} = {' + '.join(self.modules)}"]
        if self.scores is not None:
            ranked = self.ranking()
            listed = ", ".join(f"path {path} {self.scores[path]:.2f}" for path in ranked[:8])
            more = f", and {len(ranked) - 8} more" if len(ranked) > 8 else ""
            whose = "log-likelihoods plus prior" if self.rule == LIKELIHOOD else "router's scores"
            lines.append(f"{whose}, the best first: {listed}{more}")
        return "\n".join(lines)


ANY_PHASE = -1
_Scored = tuple[int, np.ndarray]  # a path, and the scores of all
_Asked = tuple[np.ndarray, Release, str]  # a prompt, int32 [tokens], its release and its salt


class _Prefix(NamedTuple):
    """What is routed once."""

    tokens: bytes
    router: str  # its digest
    phase: int
    salt: str


class RoutingStats(NamedTuple):
    """The cost of routing since the start. Prompts whose prefix was cached cost nothing."""

    prompts: int = 0  # routed, not from the cache
    base_tokens: int = 0  # read by the base model
    prefills: int = 0  # prefixes read under paths
    path_tokens: int = 0  # read in them
    seconds: float = 0.0


class Dispatcher:
    """The routers of the releases that are served, and the base model that gives their features.

    Prompts that arrive together share a batch. It is smaller than the batch in which documents are
    routed, so it answers far sooner. Rounding may send a prompt on the border of two paths to the
    other one. Caches the prefixes it has routed. One thread may route at a time.

    Args:
      release: the first that is served.
      rule: None = `routing.rule`.
      cache: keeps the paths that read prefixes. None = a new cache.

    Attributes:
      cache: the same. None = no path reads a prefix.
      batch_sizes: prompts that are read together: one of these, the rest being padding.
      stats: the cost of routing so far.
      rerouters: those of releases that have one, by digest. Others are re-routed as prompts are.

    Raises:
      ReleaseOfOtherRouter: the release was made with another router than its paths.
      NotAllPaths: it has fewer paths than are to be compared.
    """

    def __init__(
        self, run: Run, release: Release, rule: str | None = None, cache: PathCache | None = None
    ):
        self._run, self._routing = run, routing_by(run, rule)
        self.prefix_tokens = run.config.data.prefix_tokens
        self.rerouters: dict[str, Rerouter] = {}
        self._routers: dict[str, Router] = {}  # keys are digests: an alternation fits a new one
        self._first = release
        self.add_release(run, release)
        is_compared = self._routing.rule == LIKELIHOOD
        self.cache = (cache or _own_cache(run)) if is_compared else None
        self.stats = RoutingStats()
        self._begun: dict[_Prefix, _Scored | PathComparison] = {}  # the latest used are at the end
        if self._routing.kind == SMALL_MODELS:
            _ = run.small_models  # read here: the ledger's connection belongs to this thread
            self._features_of = functools.partial(features, run)
        else:
            self._features_of = functools.partial(document_features, _base_hidden(run))
        is_cpu = jax.default_backend() == "cpu"
        self.batch_sizes = CPU_BATCHES if is_cpu else ACCELERATOR_BATCHES

    def programs(self) -> list[WarmUpProgram]:
        """The compiled programs: features for every batch size, and likelihoods."""
        kinds: dict[str, Callable[[Sequence[np.ndarray]], object]] = {"routing": self._features}
        if self.cache is not None:
            kinds["likelihoods"] = self._score_by_any
        programs = [
            WarmUpProgram(
                f"{name} of {counted(number, 'prompt')}",
                functools.partial(run, [np.zeros(2, np.int32)] * number),
                is_first=number == 1,
            )
            for name, run in kinds.items()
            for number in self.batch_sizes
        ]
        return [*programs, *(each for one in self.rerouters.values() for each in one.programs())]

    def add_release(self, run: Run, release: Release) -> None:
        """Adds the router of another release. `run` must be opened by the calling thread."""
        if self._routing.rule == LIKELIHOOD:
            check_all_paths(run, release)
        self._routers[release.companions["router"]] = router_of(run, release)

    def begin_all(self, prompts: Sequence[_Asked]) -> list[PathChoice | PathComparison]:
        """The path of each prompt, or the paths that must read it first and are not in memory. At
        most a batch of prompts, which are read together. What was routed with another salt takes as
        long as what never was.
        """
        prefixes = [self._prefix(*prompt) for prompt in prompts]
        if new := [each for each in dict.fromkeys(prefixes) if each not in self._begun]:
            self._read(new)
        if self.cache is not None:
            self._compare(dict(zip(prefixes, (release for _, release, _ in prompts), strict=True)))
        told: list[PathChoice | PathComparison] = []
        for prefix, (_, release, _) in zip(prefixes, prompts, strict=True):
            begun = self._begun.pop(prefix)
            if isinstance(begun, PathComparison) and not begun.missing:
                begun = begun.result()
            self._begun[prefix] = begun
            is_over = not isinstance(begun, PathComparison)
            told.append(self.end(release, *begun) if is_over else begun)
        while len(self._begun) > MAX_CACHED_PREFIXES:
            del self._begun[next(iter(self._begun))]
        return told

    def _prefix(self, prompt: np.ndarray, release: Release, salt: str) -> _Prefix:
        tokens = self.text_of(prompt)[: self.prefix_tokens].tobytes()
        # Features alone send a prefix to the same path in all releases of one router.
        phase = release.phase if self.cache is not None else ANY_PHASE
        return _Prefix(tokens, release.companions["router"], phase, salt)

    def end(self, release: Release, path: int, scores_P: np.ndarray) -> PathChoice:
        """The choice of a path in a release, as `PathComparison.result` gives it."""
        return PathChoice(path, tuple(release.paths[path]), scores_P, self._routing.rule)

    def text_of(self, prompt: np.ndarray) -> np.ndarray:
        """The tokens that the router may read: without a start token before them."""
        return without_start(prompt, self._run.corpus.edges.tokens.start)

    def score_meaning(self, release: Release) -> str:
        """The meaning of a path's score in words."""
        if self._routing.rule == LIKELIHOOD:
            return "the log-likelihood of the text under the path, in nats"
        return self._routers[release.companions["router"]].score_meaning

    def _read(self, prefixes: Sequence[_Prefix]) -> None:
        """Routes prefixes that are not cached."""
        started = time.monotonic()
        texts = [np.frombuffer(prefix.tokens, np.int32) for prefix in prefixes]
        features_ND = self._features(texts)
        for digest in {prefix.router for prefix in prefixes}:
            rows = [row for row, prefix in enumerate(prefixes) if prefix.router == digest]
            router, features_nD = self._routers[digest], features_ND[rows]
            if self.cache is None:
                scores_nP = router.scores(features_nD)  # `assign` would compute the scores again
                begun = list(zip(scores_nP.argmax(axis=1).tolist(), scores_nP, strict=True))
            else:
                most = self._routing.num_compared(router.num_paths)
                begun = [
                    PathComparison(self._routing, texts[row], shortlist_n, router.num_paths)
                    for row, shortlist_n in zip(rows, router.assign(features_nD, most), strict=True)
                ]
            self._begun |= zip((prefixes[row] for row in rows), begun, strict=True)
        self._count(started, prompts=len(prefixes), base_tokens=sum(map(len, texts)))

    def _compare(self, releases: Mapping[_Prefix, Release]) -> None:
        """Scores prefixes, given with their releases, under the paths that they lack and that are
        in memory: all of them under one path, then under the next.
        """
        assert self.cache is not None
        lacking: dict[tuple[int, int], list[PathComparison]] = {}
        of_phase = {release.phase: release for release in releases.values()}
        for prefix in releases:
            if isinstance(comparison := self._begun[prefix], PathComparison):
                for path in comparison.missing:
                    lacking.setdefault((prefix.phase, path), []).append(comparison)
        for phase, path in sorted(lacking):
            if self.cache.contains(modules := of_phase[phase].modules_of(path)):
                with contextlib.suppress(DipacoError):  # It has just left: callers wait for it.
                    self.score(lacking[phase, path], path, modules)

    def score(self, comparisons: Sequence[PathComparison], path: int, modules: Modules) -> None:
        """Scores prefixes under a path, in one batch. Raises as `PathCache.pin`."""
        started, texts = time.monotonic(), [each.prefix for each in comparisons]
        for comparison, nats in zip(comparisons, self._nats(texts, modules), strict=True):
            comparison.nats[path] = nats
        self._count(started, prefills=len(texts), path_tokens=sum(map(len, texts)))

    def _nats(self, texts: Sequence[np.ndarray], modules: Modules) -> list[float]:
        """Log-likelihoods of prefixes under a path. Empty ones fill up the batch."""
        assert self.cache is not None
        num_rows, empty = smallest_fitting(self.batch_sizes, len(texts)), np.zeros(0, np.int32)
        tokens_BT, lengths_B = prefixes_of(self._run, [*texts, *[empty] * (num_rows - len(texts))])
        with self.cache.pin(modules) as parts:
            nats_BT = np.asarray(log_likelihoods(self._run.config.model, parts, tokens_BT), float)
        is_scored_BT = np.arange(1, tokens_BT.shape[1]) < lengths_B[:, None]
        return np.where(is_scored_BT, nats_BT, 0.0).sum(axis=1)[: len(texts)].tolist()

    def _score_by_any(self, texts: Sequence[np.ndarray]) -> None:
        """Scores texts under the first whole path. Without one, requests say so."""
        with contextlib.suppress(DipacoError):
            for path in range(len(self._first.paths)):
                with contextlib.suppress(ObjectMissing, ObjectDamaged):
                    self._nats(texts, self._first.modules_of(path))
                    return

    def _count(self, started_seconds: float, **more: int) -> None:
        before = self.stats._asdict()
        told = {name: before[name] + number for name, number in more.items()}
        seconds = self.stats.seconds + time.monotonic() - started_seconds
        self.stats = self.stats._replace(seconds=seconds, **told)

    def _features(self, prefixes: Sequence[np.ndarray]) -> np.ndarray:
        """Features, float32 [N, D], of N prefixes, int32 [tokens] each."""
        number = smallest_fitting(self.batch_sizes, len(prefixes))
        return self._features_of(*prefixes_of(self._run, prefixes), batch_size=number)


def _base_hidden(run: Run) -> Callable[[np.ndarray], jax.Array]:
    """Hidden states under the base model: on one device, whatever mesh the run was trained on, and
    without the head, which features do not need.
    """
    config, parts = run.config.model, run.base_parts()
    below_head = {name: parts[name] for name in ("embed", *block_names(config))}
    return functools.partial(hidden_states, config, prepare(config, below_head))


def _own_cache(run: Run) -> PathCache:
    def load(receipt: Receipt) -> Parts:
        return prepare(run.config.model, load_for_jax(run.objects, receipt))

    return PathCache(load, free_bytes() // 2)


def without_start(prompt: np.ndarray, start: int | None) -> np.ndarray:
    """The text of a prompt, int32 [tokens]. A start token is left out, unless it is all."""
    text = np.asarray(prompt, np.int32)
    return text[1:] if len(text) > 1 and text[0] == start else text


def dispatch(
    run: Run,
    release: Release,
    prompt: np.ndarray,
    path: int | None = None,
    dispatcher: Dispatcher | None = None,
    rule: str | None = None,
) -> PathChoice:
    """Routes one prompt, int32 [tokens], to a path of a release. It waits while paths are read.

    Args:
      path: use this one and do not ask the router.
      dispatcher: None = one made for this prompt, with this rule or `routing.rule`.

    Raises:
      ReleaseOfOtherRouter: the release was made with another router than its paths.
      NotAllPaths: prompts are routed by likelihood, and a path is missing.
    """
    if path is not None or not is_routed(run, release):
        return _given(release, path)
    dispatcher = dispatcher or Dispatcher(run, release, rule)
    (begun,) = dispatcher.begin_all([(prompt, release, "")])
    if not isinstance(begun, PathComparison):
        return begun
    for path in begun.missing:
        with reading_path(release, path):
            dispatcher.score([begun], path, release.modules_of(path))
    return dispatcher.end(release, *begun.result())


def _given(release: Release, path: int | None) -> PathChoice:
    """The path that a request gives, or the first if there is no choice."""
    return PathChoice(path or 0, tuple(release.paths[path or 0]), None)


API_KEY = "key "  # with it begin the names of clients that have one
REROUTE_SECONDS = 10.0  # for reading paths, after which a text stays on its own


class NextPath(NamedTuple):
    """The path that continues a text."""

    path: int
    tokens_read: int  # tokens that the router read


class PromptRouter:
    """Routes the prompts of a server. It is used in one event loop only.

    Args:
      dispatcher: None = no model has a choice of path.
      paths: admits to the server's main cache.
      threads: for work that takes processor time.
    """

    def __init__(self, dispatcher: Dispatcher | None, paths: PathAdmission, threads: FairThreads):
        self._dispatcher, self._threads = dispatcher, threads
        cache = None
        if dispatcher is not None:
            cache, most = dispatcher.cache, dispatcher.batch_sizes[-1]
            self._batches = FairBatches(dispatcher.begin_all, most, "router")
        self._paths = paths if cache in (None, paths.cache) else PathAdmission(cache)

    async def route(
        self, served: ServedRelease, prompt: np.ndarray, path: int | None, client: str
    ) -> PathChoice:
        """The path of a prompt, int32 [tokens]: what the request gives, or the router's choice in
        the client's turn. Raises `NotAllPaths`: a path that is to be compared cannot be read.
        """
        if path is not None or not served.is_routed or self._dispatcher is None:
            return _given(served.release, path)
        # What another API key has routed takes as long as what none has.
        salt = client if client.startswith(API_KEY) else ""
        asked = prompt, served.release, salt
        begun = await self._batches.compute(client, asked)
        while isinstance(begun, PathComparison):
            path = begun.missing[0]
            with reading_path(served.release, path):
                async with self._paths.pinned(served.modules_of(path), client):
                    begun = await self._batches.compute(client, asked)
        return begun

    async def route_all(
        self, served: ServedRelease, prompts: Sequence[tuple[np.ndarray, int | None]], client: str
    ) -> list[int]:
        """The path of each prompt, as `route` chooses it. They wait together, for one batch."""
        tasks = [asyncio.create_task(self.route(served, *prompt, client)) for prompt in prompts]
        try:
            return [choice.path for choice in await asyncio.gather(*tasks)]
        finally:
            for task in tasks:
                task.cancel()

    async def reroute(
        self, served: ServedRelease, text: np.ndarray, client: str
    ) -> NextPath | None:
        """The path that continues a text, int32 [tokens]: prompt and generated tokens. None: the
        text keeps its path, as some path of the comparison cannot be read now.
        """
        if (dispatcher := self._dispatcher) is None:
            return None
        text = dispatcher.text_of(text)
        if rerouter := dispatcher.rerouters.get(served.digest):
            path = await self._threads.run(client, rerouter.next_path, text)
            return NextPath(path, len(text))
        latest = text[-dispatcher.prefix_tokens :]
        try:
            async with asyncio.timeout(REROUTE_SECONDS):
                choice = await self.route(served, latest, None, client)
        except (NotAllPaths, PathCacheTooSmall, StoreFault, TimeoutError):
            return None
        return NextPath(choice.path, len(latest))
