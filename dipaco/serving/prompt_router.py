"""Routing of prompts in an event loop: clients take turns, and no thread waits for a path.

Where prompts are routed by likelihood, a path of the shortlist may have to be read first. That is
awaited like the path of a request, in the threads that read paths.
"""

import asyncio
from typing import NamedTuple

import numpy as np

from dipaco.runs.errors import NotAllPaths
from dipaco.serving.dispatch import PathChoice
from dipaco.serving.errors import PathCacheTooSmall
from dipaco.serving.fairness import FairThreads
from dipaco.serving.models import ServedRelease
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.prefix_scores import PathComparison
from dipaco.serving.service import Service
from dipaco.store.errors import StoreFault

REROUTE_SECONDS = 10.0  # for reading paths, after which a text stays on its own


class NextPath(NamedTuple):
    """The path that continues a text."""

    path: int
    tokens_read: int  # tokens that the router read


class PromptRouter:
    """One for all requests of a service, used in one event loop only.

    Args:
      paths: admits to the service's main cache.
      threads: for work that takes processor time.
    """

    def __init__(self, service: Service, paths: PathAdmission, threads: FairThreads):
        self._service, self._threads = service, threads
        cache = service.routing_cache
        is_own = cache is not None and cache is not service.cache
        self._paths = PathAdmission(cache) if is_own and cache is not None else paths

    async def route(
        self,
        served: ServedRelease,
        prompt: np.ndarray,
        path: int | None,
        client: str,
    ) -> PathChoice:
        """The path of a prompt. `path` overrides it.

        Args:
          prompt: int32 [tokens].
          path: None = the router chooses.
          client: it takes this client's turn.

        Raises:
          NoSuchPath: there is none of that number.
          NotAllPaths: a path that is to be compared cannot be read.
        """
        service = self._service
        begun = await self._threads.run(client, service.begin_routing, served, prompt, path, client)
        if not isinstance(begun, PathComparison):
            return begun
        while missing := begun.missing:
            modules = begun.modules_of(missing[0])
            with begun.reading(missing[0]):
                async with self._paths.pinned(modules, client):
                    await self._threads.run(client, begun.score, missing[0])
        return service.end_routing(served, begun)

    async def reroute(
        self, served: ServedRelease, text: np.ndarray, client: str
    ) -> NextPath | None:
        """The path that continues a text, int32 [tokens]: prompt and generated tokens. None: paths
        that are to be compared cannot be read now, and the text keeps its path.
        """
        text = self._service.text_of(text)
        if rerouter := self._service.rerouter_of(served):
            path = await self._threads.run(client, rerouter.next_path, text)
            return NextPath(path, len(text))
        latest = text[-self._service.prefix_tokens :]
        try:
            async with asyncio.timeout(REROUTE_SECONDS):
                choice = await self.route(served, latest, None, client)
        except (NotAllPaths, PathCacheTooSmall, StoreFault, TimeoutError):
            return None
        return NextPath(choice.path, len(latest))
