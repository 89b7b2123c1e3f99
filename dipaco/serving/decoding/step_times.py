"""How long a block of steps takes on this device, by its shape; measured at the start.

Whether rows of several paths are sooner together or in turn depends on the machine: 64 rows of a
2x2 of the quickstart's size take 0.75 of the time together on one CPU (Intel), and 1.25 on another
(AMD). A block of a shape always takes the same, so each shape is run a few times.

Every tile has a module of its own, as it has in use: one module in all of them would be read from
the processor's cache. Modules larger than that cache are not copied, since they are read from
memory anyway.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from dipaco import trees
from dipaco.model.spec import Parts

CACHE_BYTES = 128 << 20  # more than a processor's cache holds
MOST_COPIES = 8
ROUNDS = 3
MOST_SECONDS = 3.0  # after which no other round begins

Key = TypeVar("Key", bound=Hashable)


def distinct_copies(prepared: Parts) -> list[Parts]:
    """The parameters of a path and copies of them, as many as make a cache overflow."""
    number = min(MOST_COPIES, CACHE_BYTES // trees.num_bytes(prepared))
    return [prepared, *(jax.tree.map(jnp.copy, prepared) for _ in range(number - 1))]


def measure(
    blocks: Mapping[Key, Sequence[Callable[[], object]]], wait: Callable[[], object]
) -> dict[Key, float]:
    """Seconds of one block of each kind, the least of a few rounds.

    Args:
      blocks: of each kind some that are started one after the other, as a loop does. All are
        compiled.
      wait: waits until the device has finished what was started.
    """
    seconds: dict[Key, float] = {}
    began = time.perf_counter()
    for each in range(ROUNDS):
        if each and time.perf_counter() - began > MOST_SECONDS:
            break
        for key, starts in blocks.items():
            starts[0]()  # gathers what the next ones need
            wait()
            started = time.perf_counter()
            for start in starts:
                start()
            wait()
            own = (time.perf_counter() - started) / len(starts)
            seconds[key] = min(own, seconds.get(key, own))
    return seconds
