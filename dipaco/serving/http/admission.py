"""Who comes in: a bounded number at once, and each waits until its path is in memory."""

import contextlib
from collections.abc import AsyncGenerator, Generator

from dipaco.serving.errors import QueueFull
from dipaco.serving.http.errors import ApiError
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.releases import ServedRelease
from dipaco.serving.service import Service


class RequestAdmission:
    """One for all requests of a service; used in the event loop only."""

    def __init__(self, service: Service):
        self._service = service
        self._room = PathAdmission(service.cache)
        self.num_admitted = 0

    @contextlib.contextmanager
    def inside(self, num_choices: int) -> Generator[None]:
        """Counts the choices of a request while it lasts. Raises `QueueFull`, and `ApiError` where
        there will never be room for so many.
        """
        if num_choices > (most := self._service.loop.capacity):
            problem = f"{num_choices} choices are more than the {most} that this server takes"
            raise ApiError(
                400, f"{problem} at once. Ask for fewer, or in several requests.", param="n"
            )
        if self.num_admitted + num_choices > most:
            raise QueueFull(waiting=self.num_admitted, retry_after_seconds=1)
        self.num_admitted += num_choices
        try:
            yield
        finally:
            self.num_admitted -= num_choices

    @contextlib.asynccontextmanager
    async def holding(self, served: ServedRelease, path: int) -> AsyncGenerator[None]:
        """Keeps a path in memory; waits until there is room for it.

        Raises:
          Refusal: it cannot be served, for a reason that is known already.
          ObjectMissing, ObjectDamaged, PathCacheTooSmall: one that shows now.
        """
        if problem := self._service.problem_of(served, path):
            raise ApiError(503, problem, param="path", code="path_not_whole")
        async with self._room.holding(served.modules_of(path)):
            yield
