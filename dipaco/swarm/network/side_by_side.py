"""Coroutines that run concurrently and end together."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable
from typing import Any


@contextlib.asynccontextmanager
async def side_by_side(
    *turns: Awaitable[Any],
) -> AsyncGenerator[tuple[asyncio.Task[Any], ...]]:
    """Runs coroutines as tasks, and cancels the unfinished ones at the end of the block."""
    tasks = tuple(asyncio.ensure_future(turn) for turn in turns)
    try:
        yield tasks
    finally:
        await cancelled(*tasks)


async def first_of(*tasks: asyncio.Task[Any]) -> None:
    """Waits until one task has ended."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits until they have ended. Their exceptions are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
