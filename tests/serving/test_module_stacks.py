"""Modules side by side on the device: each is copied once, and none is kept in memory."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dipaco.model.config import part_names
from dipaco.serving.decoding import mixing
from dipaco.serving.decoding.decode import LoopLimits
from dipaco.serving.decoding.mixing import LevelStack, ModuleStacks
from dipaco.serving.engine import InProcessEngine
from dipaco.serving.models import ReleaseHealth
from dipaco.store.address import Address
from dipaco.topology import grid
from tests.support.serving_rig import CONFIG, prepared


def module(seed, part="block_00"):
    return {part: prepared(seed)[part]}


def test_a_module_is_copied_into_a_stack_once_and_takes_the_place_of_one_that_is_gone(monkeypatch):
    copied, put = [], mixing._put
    copying = lambda stack, own, place: (copied.append(place), put(stack, own, place))[1]  # noqa: E731
    monkeypatch.setattr(mixing, "_put", copying)
    fresh = lambda seed: jax.tree.map(jnp.array, module(seed))  # noqa: E731
    stack, own = LevelStack(3), {seed: fresh(seed) for seed in range(4)}

    def put_in(*seeds):
        places = stack.put([own[seed] for seed in seeds])
        for seed, place in zip(seeds, places, strict=True):
            jax.tree.map(
                lambda all, one: np.testing.assert_array_equal(all[place], one),  # noqa: B023
                stack.modules.parts,
                own[seed],
            )
        return places

    first, second = put_in(0, 1)
    assert first != second
    assert put_in(1, 0) == [second, first]
    assert len(copied) == 2
    (third,) = put_in(2)
    leaf = weakref.ref(jax.tree.leaves(own[0])[0])
    del own[0]
    assert leaf() is None, "a stack keeps no module in memory"
    assert put_in(1, 3, 2) == [second, first, third]
    own[0] = fresh(0)  # read again: another object, in a place that this step does not need
    assert put_in(0, 1, 3)[0] == third
    assert len(copied) == 5


def test_a_module_is_put_in_one_place_only():
    own = module(0)
    with pytest.raises(AssertionError, match="the same module"):
        LevelStack(3).put([own, dict(own)])


def test_the_two_releases_that_were_used_last_have_stacks():
    stacks, parts = ModuleStacks(), ("block_00",)
    a, b = (stacks.of(release, parts, 3) for release in "ab")
    assert stacks.of("a", parts, 3) is a
    stacks.of("c", parts, 3)
    assert stacks.of("a", parts, 3) is a
    assert stacks.of("b", parts, 3) is not b


def test_an_engine_leaves_memory_for_the_stacks_of_two_releases(tmp_path, monkeypatch):
    monkeypatch.setattr("dipaco.serving.engine.free_bytes", lambda *_: 10**9)
    address, topology = Address.of(tmp_path), grid(part_names(CONFIG), (3, 3))
    given = address.objects(), CONFIG, LoopLimits(rows=64), ReleaseHealth()
    monkeypatch.setattr("dipaco.serving.decoding.mixing.tokens_are_rows", lambda: False)
    without = InProcessEngine(*given, topology=topology).cache.max_bytes
    monkeypatch.setattr("dipaco.serving.decoding.mixing.tokens_are_rows", lambda: True)
    engine = InProcessEngine(*given, topology=topology)
    levels = [level for level in engine.loop.mixer.levels if level.num_modules == 3]
    module_bytes = sum(level.module_bytes for level in levels)
    assert without - engine.cache.max_bytes == 2 * 3 * module_bytes > 0
