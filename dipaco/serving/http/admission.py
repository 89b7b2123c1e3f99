"""A bounded number of choices at once. Each waits until its path is in memory."""

import contextlib
from collections.abc import AsyncGenerator, Generator

from dipaco.serving.errors import QueueFull
from dipaco.serving.fairness import ClientPlaces
from dipaco.serving.http.errors import ApiError
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.releases import ServedRelease
from dipaco.serving.service import Service


class RequestAdmission:
    """One for all requests of a service. It is used in the event loop only.

    Attributes:
      paths: admits to the service's cache.
    """

    def __init__(self, service: Service):
        self._service = service
        self.paths = PathAdmission(service.cache)
        self._places = ClientPlaces()  # places of choices

    @contextlib.contextmanager
    def admitted(self, num_choices: int, client: str) -> Generator[None]:
        """Gives the choices of a client's request places while the context is open: the loop takes
        each of them then, whatever other clients ask for meanwhile.

        Raises:
          QueueFull: there are too many now, and the client has its share of them.
          ApiError: there are more than fit at any time.
        """
        if num_choices > (capacity := self._service.loop.capacity):
            problem = f"{num_choices} choices are more than the {capacity} that this server takes"
            raise ApiError(
                400, f"{problem} at once. Ask for fewer, or in several requests.", param="n"
            )
        if not self._places.take(client, num_choices, capacity):
            raise QueueFull(waiting=self._places.num_held, retry_after_seconds=1)
        try:
            yield
        finally:
            self._places.give_back(client, num_choices)

    @contextlib.asynccontextmanager
    async def pinned(self, served: ServedRelease, path: int, client: str) -> AsyncGenerator[None]:
        """Keeps a path in memory for a client. Waits until it fits.

        Raises:
          ApiError: it cannot be served, for a reason that is known already.
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: it cannot be read.
        """
        if problem := self._service.problem_of(served, path):
            raise ApiError(503, problem, param="path", code="path_not_whole")
        async with self.paths.pinned(served.modules_of(path), client):
            yield
