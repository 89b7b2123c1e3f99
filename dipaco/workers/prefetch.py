"""Prefetching: a thread loads the next item while this one is used.

The thread belongs to one loop: it hands over what it loads, and ends with the loop, however that
ends.
"""

import collections
import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Loaded = TypeVar("Loaded")


@contextlib.contextmanager
def one_ahead(load: Callable[[Item], Loaded], items: Iterable[Item]) -> Generator[Iterator[Loaded]]:
    """Yields an iterator over `load(item)` for each item in order, loading one ahead.

    An error of `load` is raised in the item's turn. Two loaded items exist at a time: the one in
    use and the next.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as thread:

        def in_turn() -> Iterator[Loaded]:
            waiting = collections.deque()
            for item in items:
                waiting.append(thread.submit(load, item))
                if len(waiting) == 2:
                    yield waiting.popleft().result()
            if waiting:
                yield waiting.popleft().result()

        yield in_turn()
