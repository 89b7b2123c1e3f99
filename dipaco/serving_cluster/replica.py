"""A serving engine in a process of its own: requests come with their modules, tokens go back.

Each request names the modules of its path, so a replica knows no ledger and no release: a newer
release is another set of modules. A replica compiles with parameters that are all 0, because a
release may be garbage-collected before the replica starts.
"""

import asyncio
import collections
import logging
import weakref
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from dipaco.errors import DipacoError
from dipaco.model.config import ModelConfig
from dipaco.serving.decoding.grammar import Grammar, Grammars, GrammarVocabulary
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.meter import LoopStats
from dipaco.serving.decoding.stream import (
    EventBridge,
    Finish,
    GenerationRequest,
    OnItems,
    PathKey,
    Token,
)
from dipaco.serving.engine import EngineSpec, InProcessEngine
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.path_cache import CacheStats, Modules
from dipaco.serving.releases import ReleaseHealth
from dipaco.serving_cluster.errors import ReplicaError, RunFolderNotVisible
from dipaco.store.address import Address
from dipaco.topology import Topology

log = logging.getLogger(__name__)


class ReplicaStats(NamedTuple):
    """A replica now, and its totals since it began."""

    replica: str
    loop: LoopStats
    cache: CacheStats
    max_bytes: int  # of its cache
    cold_seconds: tuple[float, ...]  # of loads of uncached paths, since the last report


class ReplicaUpdate(NamedTuple):
    """Some tokens of a request, and with the last of them the replica's statistics."""

    items: list[Token | Finish]
    prompt_logprobs: list[Token] | None = None  # with the first update, if asked for
    stats: ReplicaStats | None = None  # with the last update


class ReplicaSpec(NamedTuple):
    """The run that a replica serves, and its limits."""

    run: str  # folder or URL
    model: ModelConfig
    limits: LoopLimits
    path_bytes: int | None  # None = what the rows leave free
    topology: Topology | None = None  # of the paths
    vocabulary: GrammarVocabulary | None = None


class _PathModules:
    """The modules of a path, kept while a request refers to this object."""

    def __init__(self, modules: Modules):
        self.modules = modules


class Replica:
    """An engine that answers requests.

    Args:
      spec: what it serves.
      name: in statistics and error messages.
      machine: in error messages.

    Raises:
      RunFolderNotVisible: it cannot see the run's files.
    """

    def __init__(self, spec: ReplicaSpec, name: str, machine: str):
        self.name = name
        address = Address.parse(spec.run)
        if address.url is None and not address.folder.is_dir():
            raise RunFolderNotVisible(machine=machine, folder=address.folder)
        self._path_modules: weakref.WeakValueDictionary[PathKey, _PathModules] = (
            weakref.WeakValueDictionary()
        )
        self._grammars = None if spec.vocabulary is None else Grammars(spec.vocabulary)
        self._cold_seconds: collections.deque[float] = collections.deque(maxlen=1000)
        self._engine = InProcessEngine(
            EngineSpec(
                address=address,
                objects=address.objects(),
                model=spec.model,
                limits=spec.limits,
                path_bytes=spec.path_bytes,
                topology=spec.topology,
                modules_of=lambda release, path: self._path_modules[release, path].modules,
                health=ReleaseHealth(),
                on_cold=self._cold_seconds.append,
                grammars=self._grammars,
            )
        )
        self._admission = PathAdmission(self._engine.cache)
        self._engine.start()

    @property
    def problem(self) -> str | None:
        """Why its loop makes no tokens, in words; None = it can."""
        return self._engine.loop.problem

    async def generate(
        self, request: GenerationRequest, modules: Modules
    ) -> AsyncGenerator[ReplicaUpdate]:
        """Answers one request; closing the generator frees its row.

        Args:
          request: what to generate.
          modules: of its path, in its release.

        Yields:
          Updates; the last item of the last one is a `Finish`, also after an error.
        """
        try:
            async for update in self._updates(request, modules):
                yield update
        except DipacoError as error:
            yield self._last_update([Finish("error", error)])
        except Exception as error:
            yield self._last_update([Finish("error", self._replica_error(error))])

    async def _updates(
        self, request: GenerationRequest, modules: Modules
    ) -> AsyncGenerator[ReplicaUpdate]:
        key = request.release, request.path
        kept = self._path_modules.setdefault(key, _PathModules(modules))
        bridge: EventBridge[Sequence[Token | Finish]] = EventBridge()
        grammar = None
        if request.schema is not None and self._grammars is not None:
            grammar = await asyncio.to_thread(self._grammars.compiled, request.schema)
        async with self._admission.pinned(kept.modules, request.client):
            # The front end sends as many as it is to have.
            put = _keeping((kept, grammar), bridge.put)
            stream = self._engine.loop.submit(request, put)
            try:
                is_first = True
                while True:
                    items = [item for some in await bridge.take() for item in some]
                    if not items:
                        continue  # taken before, with the item before it
                    logprobs, is_first = (stream.prompt_logprobs if is_first else None), False
                    if isinstance(end := items[-1], Finish):
                        if end.error is not None and not isinstance(end.error, DipacoError):
                            items[-1] = Finish("error", self._replica_error(end.error))
                        yield self._last_update(items, logprobs)
                        return
                    yield ReplicaUpdate(items, logprobs)
            finally:
                stream.cancel()

    def _replica_error(self, error: Exception) -> ReplicaError:
        """An error that can be pickled; the original goes to the log."""
        log.error("a request failed", exc_info=error)
        problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        return ReplicaError(problem=problem, replica=self.name)

    def _last_update(
        self, items: list[Token | Finish], prompt_logprobs: list[Token] | None = None
    ) -> ReplicaUpdate:
        return ReplicaUpdate(items, prompt_logprobs, self._stats())

    def _stats(self) -> ReplicaStats:
        cold = [self._cold_seconds.popleft() for _ in range(len(self._cold_seconds))]
        cache = self._engine.cache
        return ReplicaStats(
            self.name, self._engine.loop.stats(), cache.stats(), cache.max_bytes, tuple(cold)
        )


def _keeping(kept: tuple[_PathModules, Grammar | None], put: OnItems) -> OnItems:
    """`put` with references to what is kept as long as the loop's stream: modules, and the grammar,
    which the loop then need not compile.
    """

    def put_items(items: Sequence[Token | Finish], kept: object = kept) -> None:
        put(items)

    return put_items
