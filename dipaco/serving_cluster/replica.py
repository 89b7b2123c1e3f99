"""An engine that others ask: a request comes with its modules, and tokens go back as they are made.

What it is asked says everything, so it knows no ledger and no release: a newer one is another set
of modules. It compiles with parameters that are all 0, because what was whole when it was ordered
may be swept away when it starts.
"""

import collections
import logging
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from dipaco.errors import DipacoError
from dipaco.model.config import ModelConfig
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.meter import LoopStats
from dipaco.serving.decoding.stream import Finish, GenerationRequest, Token
from dipaco.serving.decoding.waiting_requests import PathKey
from dipaco.serving.engine import EngineSpec, InProcessEngine
from dipaco.serving.event_bridge import EventBridge
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.path_cache import CacheStats, Modules
from dipaco.serving.releases import ReleaseHealth
from dipaco.serving_cluster.errors import ReplicaError, RunFolderNotVisible
from dipaco.store.address import Address

log = logging.getLogger(__name__)


class ReplicaStats(NamedTuple):
    """A replica at one moment, and since it began."""

    replica: str
    loop: LoopStats
    cache: CacheStats
    max_bytes: int  # of its cache
    cold_seconds: tuple[float, ...]  # that paths took which were not in memory, since the last one


class ReplicaUpdate(NamedTuple):
    """A piece of an answer."""

    items: list[Token | Finish]
    prompt_logprobs: list[Token] | None = None  # with the first piece, where they were asked for
    picture: ReplicaStats | None = None  # with the last


class ReplicaSpec(NamedTuple):
    """What a replica is told when it starts."""

    run: str  # folder or URL
    model: ModelConfig
    limits: LoopLimits
    path_bytes: int | None  # None = half of what is free


class _PathModules:
    """The modules of a path, while a request wants them."""

    def __init__(self, modules: Modules):
        self.modules = modules


class Replica:
    """See the module.

    Args:
      order: what it serves.
      name: what it is called in pictures and sentences.
      machine: where it is.

    Raises:
      RunFolderNotVisible: it cannot see the run's files.
    """

    def __init__(self, order: ReplicaSpec, name: str, machine: str):
        self.name = name
        address = Address.parse(order.run)
        if address.url is None and not address.folder.is_dir():
            raise RunFolderNotVisible(machine=machine, folder=address.folder)
        self._wanted: weakref.WeakValueDictionary[PathKey, _PathModules] = (
            weakref.WeakValueDictionary()
        )
        self._cold_seconds: collections.deque[float] = collections.deque(maxlen=1000)
        self._engine = InProcessEngine(
            EngineSpec(
                address=address,
                objects=address.objects(),
                model=order.model,
                limits=order.limits,
                path_bytes=order.path_bytes,
                modules_of=lambda release, path: self._wanted[release, path].modules,
                health=ReleaseHealth(),
                on_cold=self._cold_seconds.append,
            )
        )
        self._room = PathAdmission(self._engine.cache)
        self._engine.start()

    @property
    def is_alive(self) -> bool:
        """Whether it can make tokens."""
        return self._engine.loop.is_alive

    async def generate(
        self, request: GenerationRequest, modules: Modules
    ) -> AsyncGenerator[ReplicaUpdate]:
        """Answers one request; whoever stops listening frees its row.

        Args:
          request: what is wanted.
          modules: what its path is made of in its release.

        Yields:
          Tokens in pieces; the last item of the last piece is a `Finish`, whatever happens.
        """
        try:
            async for told in self._made(request, modules):
                yield told
        except DipacoError as error:
            yield self._last([Finish("error", error)])
        except Exception as error:
            yield self._last([Finish("error", self._broke(error))])

    async def _made(
        self, request: GenerationRequest, modules: Modules
    ) -> AsyncGenerator[ReplicaUpdate]:
        key = request.release, request.path
        wanted = self._wanted.setdefault(key, _PathModules(modules))
        bridge: EventBridge[Token | Finish] = EventBridge()
        async with self._room.holding(wanted.modules):
            stream = self._engine.loop.submit(request, _holding(wanted, bridge.put))
            try:
                said = False
                while True:
                    items = await bridge.take()
                    logprobs, said = (None if said else stream.prompt_logprobs), True
                    if isinstance(end := items[-1], Finish):
                        if end.error is not None and not isinstance(end.error, DipacoError):
                            items[-1] = Finish("error", self._broke(end.error))
                        yield self._last(items, logprobs)
                        return
                    yield ReplicaUpdate(items, logprobs)
            finally:
                stream.cancel()

    def _broke(self, error: Exception) -> ReplicaError:
        """What went wrong, as a sentence that can travel."""
        log.error("an answer failed", exc_info=error)
        problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        return ReplicaError(problem=problem, replica=self.name)

    def _last(
        self, items: list[Token | Finish], prompt_logprobs: list[Token] | None = None
    ) -> ReplicaUpdate:
        return ReplicaUpdate(items, prompt_logprobs, self._picture())

    def _picture(self) -> ReplicaStats:
        cold = [self._cold_seconds.popleft() for _ in range(len(self._cold_seconds))]
        cache = self._engine.cache
        return ReplicaStats(
            self.name, self._engine.loop.stats(), cache.stats(), cache.max_bytes, tuple(cold)
        )


def _holding(
    wanted: _PathModules, put: Callable[[Token | Finish], None]
) -> Callable[[Token | Finish], None]:
    """`put`, which keeps the modules known as long as the loop's stream does."""

    def told(item: Token | Finish, wanted: _PathModules = wanted) -> None:
        put(item)

    return told
