"""Modules of a level side by side on the device, for steps of many rows.

A stack is a copy. It has a place for each module that a release has, and keeps its content while
the modules stay the same, so that a step copies nothing. A module that is read again, or is newer,
takes the place of one that the step does not need.
"""

import collections
import functools
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from dipaco.model.mixed import ModuleStack
from dipaco.model.spec import Parts

RELEASES = 2  # releases with stacks: the newest, and the one that requests finish on


class LevelStack:
    """The modules of one level of a release.

    Args:
      num_places: modules that it holds at most.
    """

    def __init__(self, num_places: int):
        self._parts: Any = None
        # Weak references to an array of each module keep no module in memory.
        self._held: list[weakref.ref[Any] | None] = [None] * num_places

    @property
    def modules(self) -> ModuleStack:
        """The modules by their places, after `put`. The other places hold nothing of use."""
        return ModuleStack(self._parts)

    def put(self, modules: Sequence[Parts]) -> list[int]:
        """Gives places to different modules, no more than it has. Copies the modules that are not
        in it.
        """
        marks = [jax.tree.leaves(module)[0] for module in modules]
        assert len({*map(id, marks)}) == len(marks), "no two of them are the same module"
        held = [None if each is None else each() for each in self._held]
        place_of = {id(mark): place for place, mark in enumerate(held) if mark is not None}
        places = [place_of.get(id(mark)) for mark in marks]
        free = [place for place in range(len(held)) if place not in places]
        free.sort(key=lambda place: held[place] is not None)  # places without a module first
        return [
            self._copy(module, mark, free.pop(0)) if place is None else place
            for module, mark, place in zip(modules, marks, places, strict=True)
        ]

    def _copy(self, module: Parts, mark: Any, place: int) -> int:
        if self._parts is None:
            self._parts = _repeated(module, len(self._held))
        self._parts = _put(self._parts, module, place)
        self._held[place] = weakref.ref(mark)
        return place


class ModuleStacks:
    """The stacks of all levels, of the latest releases. Only the loop's thread uses them."""

    def __init__(self):
        self._releases: collections.OrderedDict[str, dict[tuple[str, ...], LevelStack]] = (
            collections.OrderedDict()  # the least recently used first
        )

    def of(self, release: str, parts: tuple[str, ...], num_places: int) -> LevelStack:
        """The stack of the level of a release that has these parts."""
        levels = self._releases.setdefault(release, {})
        self._releases.move_to_end(release)
        while len(self._releases) > RELEASES:
            self._releases.popitem(last=False)
        return levels.setdefault(parts, LevelStack(num_places))


@functools.partial(jax.jit, static_argnames=("number",))
def _repeated(module: Parts, number: int) -> Parts:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *leaf.shape)), module)


@functools.partial(jax.jit, donate_argnames=("stack",))
def _put(stack: Parts, module: Parts, place: int) -> Parts:
    return jax.tree.map(lambda all, one: all.at[place].set(one), stack, module)
