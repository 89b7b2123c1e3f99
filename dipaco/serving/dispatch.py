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
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

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
from dipaco.serving.fairness import FairThreads
from dipaco.serving.memory import free_bytes
from dipaco.serving.models import ServedRelease, is_routed
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.path_cache import Modules, PathCache
from dipaco.serving.prefix_scores import PathComparison, score_prefix
from dipaco.serving.rerouting import Rerouter
from dipaco.serving.warm_up import WarmUpProgram
from dipaco.store.errors import ObjectDamaged, ObjectMissing, StoreFault
from dipaco.store.tensors import load_for_jax

Input = TypeVar("Input")
Output = TypeVar("Output")


class MicroBatcher(Generic[Input, Output]):
    """Batches calls without a thread: one of the waiting callers computes for all."""

    def __init__(self, function: Callable[[Sequence[Input]], Iterable[Output]], max_batch: int):
        self._function, self._max_batch = function, max_batch
        self._waiting: deque[tuple[Input, Future[Output]]] = deque()
        self._lock = threading.Lock()  # held by the caller that computes

    def compute(self, value: Input) -> Output:
        """Any thread. Raises what `function` raised for the batch of this input."""
        future: Future[Output] = Future()
        self._waiting.append((value, future))
        while not future.done():
            with self._lock:
                if not future.done():
                    self._compute_batch()
        return future.result()

    def _compute_batch(self) -> None:
        size = min(self._max_batch, len(self._waiting))
        batch = [self._waiting.popleft() for _ in range(size)]
        try:
            outputs = self._function([value for value, _ in batch])
            for (_, future), output in zip(batch, outputs, strict=True):
                future.set_result(output)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise


MAX_CACHED_PREFIXES = 4096  # prompts of one application often share them
BATCH_SIZES = (1, 2, 4)  # prefixes: in a batch of four, one costs 0.65 of alone (eight: 0.6)


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
        return [int(path) for path in ranked if np.isfinite(self.scores[path])]

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
    other one. Caches the prefixes it has routed. Any thread may call it.

    Args:
      release: the first that is served.
      rule: None = `routing.rule`.
      cache: keeps the paths that read prefixes. None = a new cache.

    Attributes:
      cache: the same. None = no path reads a prefix.
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
        # Keys are phases. Releases whose paths are compared.
        self._releases: dict[int, Release] = {}
        self.add_release(run, release)
        self._score: Callable[[np.ndarray, Modules], float] | None = None
        self.cache: PathCache | None = None
        if self._routing.rule == LIKELIHOOD:
            self.cache = cache or _own_cache(run)
            given = run.config.model, self.prefix_tokens, self.cache
            self._score = functools.partial(score_prefix, *given)
        self.stats, self._lock = RoutingStats(), threading.Lock()
        self._comparing: weakref.WeakValueDictionary[tuple, PathComparison] = (
            weakref.WeakValueDictionary()
        )
        if self._routing.kind == SMALL_MODELS:
            _ = run.small_models  # read here: the ledger's connection belongs to this thread
            self._features_of = functools.partial(features, run)
        else:
            self._features_of = functools.partial(document_features, _base_hidden(run))
        self._batcher = MicroBatcher(self._features, BATCH_SIZES[-1])
        self._begin_cached = functools.lru_cache(MAX_CACHED_PREFIXES)(self._begin_uncached)

    def programs(self) -> list[WarmUpProgram]:
        """The compiled programs: features for every batch size, and likelihoods."""
        programs = [
            WarmUpProgram(
                f"routing of {counted(number, 'prompt')}",
                functools.partial(self._features, [np.zeros(1, np.int32)] * number),
                is_first=number == 1,
            )
            for number in BATCH_SIZES
        ]
        if self._score is not None:
            programs.append(WarmUpProgram("likelihood of a prefix", self._score_nothing, True))
        return [*programs, *(each for one in self.rerouters.values() for each in one.programs())]

    def add_release(self, run: Run, release: Release) -> None:
        """Adds the router of another release. `run` must be opened by the calling thread."""
        if self._routing.rule == LIKELIHOOD:
            check_all_paths(run, release)
            self._releases[release.phase] = release
        self._routers[release.companions["router"]] = router_of(run, release)

    def begin(
        self, prompt: np.ndarray, release: Release, salt: str = ""
    ) -> PathChoice | PathComparison:
        """The path of a prompt, int32 [tokens], or the paths that must read it first. What was
        routed with another salt takes as long as what never was.
        """
        prefix = self.text_of(prompt)[: self.prefix_tokens]
        # Features alone send a prefix to the same path in all releases of one router.
        phase = release.phase if self._score is not None else None
        begun = self._begin_cached(prefix.tobytes(), release.companions["router"], phase, salt)
        return begun if isinstance(begun, PathComparison) else self.end(release, *begun)

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

    def _begin_uncached(
        self, prefix: bytes, digest: str, phase: int | None, salt: str
    ) -> tuple[int, np.ndarray] | PathComparison:
        started, text = time.monotonic(), np.frombuffer(prefix, np.int32)
        router = self._routers[digest]
        features_1D = self._batcher.compute(text)[None]
        if self._score is None or phase is None:
            (scores_P,) = router.scores(features_1D)
            begun = int(np.argmax(scores_P)), scores_P  # `assign` would compute the scores again
        else:
            (shortlist_n,) = router.assign(
                features_1D, self._routing.num_compared(router.num_paths)
            )
            counted = functools.partial(self._count, prefills=1, path_tokens=len(text))
            given = self._score, self._routing, self._releases[phase], text, shortlist_n
            comparison = PathComparison(*given, router.num_paths, counted)
            with self._lock:  # several that begin at once all get the first
                begun = self._comparing.setdefault((prefix, digest, phase, salt), comparison)
        self._count(prompts=1, base_tokens=len(text), seconds=time.monotonic() - started)
        return begun

    def _score_nothing(self) -> None:
        """Scores two tokens under the first whole path. Without one, requests say so."""
        assert self._score is not None
        (release, *_) = self._releases.values()
        with contextlib.suppress(DipacoError):
            for path in range(len(release.paths)):
                with contextlib.suppress(ObjectMissing, ObjectDamaged):
                    self._score(np.zeros(2, np.int32), release.modules_of(path))
                    return

    def _count(self, seconds: float, **more: float) -> None:
        more["seconds"] = seconds
        with self._lock:
            before = self.stats._asdict()
            self.stats = self.stats._replace(
                **{name: before[name] + number for name, number in more.items()}
            )

    def _features(self, prefixes: Sequence[np.ndarray]) -> np.ndarray:
        """Features, float32 [N, D], of N prefixes, int32 [tokens] each."""
        number = smallest_fitting(BATCH_SIZES, len(prefixes))
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
    begun = dispatcher.begin(prompt, release)
    if not isinstance(begun, PathComparison):
        return begun
    for path in begun.missing:
        begun.score(path)
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
        cache = None if dispatcher is None else dispatcher.cache
        self._paths = paths if cache in (None, paths.cache) else PathAdmission(cache)

    async def route(
        self, served: ServedRelease, prompt: np.ndarray, path: int | None, client: str
    ) -> PathChoice:
        """The path of a prompt, int32 [tokens]: what the request gives, or the router's choice in
        the client's turn. Raises `NotAllPaths`: a path that is to be compared cannot be read.
        """
        if path is not None or not served.is_routed or (dispatcher := self._dispatcher) is None:
            return _given(served.release, path)
        # What another API key has routed takes as long as what none has.
        salt = client if client.startswith(API_KEY) else ""
        begun = await self._threads.run(client, dispatcher.begin, prompt, served.release, salt)
        if not isinstance(begun, PathComparison):
            return begun
        while missing := begun.missing:
            with reading_path(begun.release, missing[0]):
                async with self._paths.pinned(begun.release.modules_of(missing[0]), client):
                    await self._threads.run(client, begun.score, missing[0])
        return dispatcher.end(served.release, *begun.result())

    async def reroute(
        self, served: ServedRelease, text: np.ndarray, client: str
    ) -> NextPath | None:
        """The path that continues a text, int32 [tokens]: prompt and generated tokens. None: the
        text keeps its path, as those that are to be compared cannot be read now.
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
