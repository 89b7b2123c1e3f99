"""A bound on peers that have not proved who they are yet. If there are too many, the oldest is
given up.
"""

import asyncio
import collections
import contextlib
from collections.abc import AsyncGenerator


class Unproven:
    """Unproven peers, oldest first.

    Args:
      most: the most at a time.
    """

    def __init__(self, most: int):
        self._most = most
        self._limits: collections.deque[asyncio.Timeout] = collections.deque()

    @contextlib.asynccontextmanager
    async def one(self, seconds: float) -> AsyncGenerator[None]:
        """Admits one more, for so long.

        Raises:
          TimeoutError: it took longer, or too many came after it.
        """
        async with asyncio.timeout(seconds) as limit:
            self._limits.append(limit)
            if len(self._limits) > self._most:
                first = self._limits.popleft()
                if not first.expired():
                    first.reschedule(0)  # times out now
            try:
                yield
            finally:
                with contextlib.suppress(ValueError):
                    self._limits.remove(limit)
