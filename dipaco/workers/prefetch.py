"""The next thing is loaded in a thread while this one is used.

The thread belongs to the one loop that it serves: what it loads is handed over and not looked at
again, and it has ended when the loop has, whichever way that ends.
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
    """`load` of every item, in order, as an iterator that is one item ahead of who asks.

    What `load` raises is raised in the item's turn. Two loaded items are alive at a time: the one
    in use, and the next.
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
