"""Paths spread over the devices of one process: placed evenly, and the texts are the same."""

import asyncio
import threading

import jax
import numpy as np
import pytest

from dipaco.errors import BadSetting
from dipaco.model.config import part_names
from dipaco.model.spec import describe
from dipaco.receipt import Receipt
from dipaco.serving import path_admission
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.decoding.stream import Finish
from dipaco.serving.engine import EngineSpec, InProcessEngine, level_shapes
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.path_cache import PathCache
from dipaco.serving.releases import ReleaseHealth
from dipaco.serving.several_devices import (
    MOST_OTHERS,
    PathsOfDevices,
    Placement,
    SeveralDevices,
)
from dipaco.serving.warm_up import WarmUp, WarmUpProgram
from dipaco.store.address import Address
from dipaco.store.tensors import save_tree
from dipaco.topology import ModuleId, grid
from tests.support.serving_rig import CONFIG, request

NUM_DEVICES, NEW_TOKENS = 8, 12
PROGRAMS = lambda meet: [WarmUpProgram("a", meet.wait)]  # noqa: E731
LIMITS = LoopLimits(rows=2, rows_per_path=1)
PATHS = 1, 2  # that are asked for
WARM = SamplingSettings(temperature=1.0)


def receipt_of(name):
    return Receipt(f"objects/{name}", f"digest of {name}", 100)


def made_by(loop, path):
    """The tokens that follow a prompt of one token."""
    stream, tokens = loop.submit(request([5], path, NEW_TOKENS, sampling=WARM)), []
    while not isinstance(item := stream.get(timeout_seconds=None), Finish):
        tokens.append(item.id)
    assert item.error is None
    return tokens


@pytest.fixture
def spec(tmp_path):
    """Of a 2x2 of random modules."""
    topology, address = grid(part_names(CONFIG), (2, 2)), Address.of(tmp_path)
    objects, specs, rng = address.objects(), describe(CONFIG), np.random.default_rng(0)
    draw = lambda spec: rng.normal(0, 0.3, spec.shape).astype(np.float32)  # noqa: E731
    stored = {
        module: save_tree(
            objects,
            "module",
            {part: jax.tree.map(draw, specs[part]) for part in topology.parts_of(module)},
        )
        for module in topology.modules
    }
    paths = [{m: stored[m] for m in topology.modules_of(path)} for path in range(4)]
    return EngineSpec(
        address=address,
        objects=objects,
        model=CONFIG,
        limits=LIMITS,
        path_bytes=None,
        topology=topology,
        modules_of=lambda _, path: paths[path],
        health=ReleaseHealth(),
    )


def test_paths_beside_each_other_have_one_device():
    topology = grid(part_names(CONFIG), (4, 4))
    placement = Placement(topology.modules_by_path, 2)
    devices = [placement.device_of(dict.fromkeys(own)) for own in topology.modules_by_path]
    assert devices == [0] * 8 + [1] * 8  # an `early` is on one device
    assert placement.paths == [list(range(8)), list(range(8, 16))]
    assert Placement(topology.modules_by_path[:2], 4).paths == [[0], [], [1], []]


def test_a_path_has_its_device_in_whatever_order_its_modules_come():
    """Those of a release are in the order of their names."""
    parts = ("embed", "block_00", "block_01", "block_02", "final_norm", "head")
    topology = grid(parts, (2, 2, 2))
    for modules in topology.modules_by_path:
        named = {module: receipt_of(str(module)) for module in sorted(modules, key=str)}
        assert list(named) != list(modules)
        assert Placement(topology.modules_by_path, 2).device_of(named) == modules[0].expert


def test_of_the_newer_releases_of_other_models_only_the_latest_are_remembered():
    placement = Placement(grid(part_names(CONFIG), (2, 2)).modules_by_path, 2)
    kept, *others = ({ModuleId("all", 0): receipt_of(str(phase))} for phase in range(1000))
    device = placement.device_of(kept)
    devices = []
    for modules in others:
        devices.append(placement.device_of(modules))
        assert placement.device_of(kept) == device, "it is asked for all the time"
    assert devices == [1, 0] * 499 + [1], "still in turn"
    assert [placement.device_of(modules) for modules in others[-9:]] == devices[-9:]
    assert len(placement._others) == MOST_OTHERS


def test_devices_compile_at_once_and_steps_are_timed_alone_and_once(spec, monkeypatch):
    spread = SeveralDevices(spec, 2)
    expected, said, timed = spread.num_programs, [], []
    meet = threading.Barrier(2, timeout=300)  # each waits until the other has begun, too
    for each in spread.engines:
        monkeypatch.setattr(each.loop._pool, "programs", lambda _: PROGRAMS(meet))
        monkeypatch.setattr(each.loop._pool, "_time_steps", lambda _, own=each: timed.append(own))
    spread.start(None, WarmUp(lambda *told: said.append(told[0])))
    spread.loop.stop(0)
    assert said == ["compiling a", "compiling a", "timing steps of several paths"]
    assert timed == spread.engines[:1], "the other has equal levels"
    assert expected == len(InProcessEngine(spec).loop._pool.programs({})) * 2 + 1


def test_a_device_that_fails_stops_the_others_after_the_program_at_hand(spec, monkeypatch):
    spread, began, has_failed = SeveralDevices(spec, 2), [], threading.Event()

    def fail():
        raise OSError("disk")

    def program(name):
        def run():
            began.append(name)
            assert has_failed.wait(300)

        return WarmUpProgram(name, run)

    class Stopping(WarmUp):
        def stop(self):
            super().stop()
            has_failed.set()

    first, second = spread.engines
    monkeypatch.setattr(first.loop._pool, "programs", lambda _: [program("a"), program("b")])
    monkeypatch.setattr(second.loop._pool, "programs", lambda _: [WarmUpProgram("c", fail)])
    with pytest.raises(OSError, match="disk"):
        spread.start(None, Stopping())
    assert began == ["a"]
    assert not spread.loop.is_alive


def test_a_device_has_tiles_for_the_modules_of_its_own_paths():
    topology = grid(part_names(CONFIG), (4, 4))
    numbers = lambda paths: [level.num_modules for level in level_shapes(CONFIG, topology, paths)]  # noqa: E731
    assert numbers(range(16)) == [4, 4]
    assert numbers(range(8)) == [2, 4]
    assert numbers([5]) == [1, 1]


@pytest.mark.slow
def test_paths_on_eight_devices_make_the_texts_of_one_device(spec):
    alone, spread = InProcessEngine(spec), SeveralDevices(spec, NUM_DEVICES)
    for number, device in enumerate(jax.local_devices()[::2]):
        with spread.cache.pin(spec.modules_of("", number)) as parts:
            assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(parts))
    assert spread.cache.stats().paths == 4
    for engine in (alone, *spread.engines):  # without compiling what is not asked for
        engine.loop.run()
    assert spread.loop.is_alive
    texts = [made_by(alone.loop, path) for path in PATHS]
    assert texts[0] != texts[1]
    assert [made_by(spread.loop, path) for path in PATHS] == texts
    for engine in (alone, spread):
        engine.loop.stop(0)
    assert not spread.loop.is_alive
    assert spread.loop.stats().num_tokens == len(PATHS) * NEW_TOKENS
    makes_tokens = [each.loop.stats().num_tokens > 0 for each in spread.engines]
    assert makes_tokens == [0, 0, 1, 0, 1, 0, 0, 0]


def test_a_device_without_room_keeps_no_path_of_another_device_waiting(monkeypatch):
    monkeypatch.setattr(path_admission, "STARVED_SECONDS", 0.02)
    load = lambda receipt: {"head": receipt.digest}  # noqa: E731
    caches = [PathCache(load, max_bytes=100) for _ in range(2)]
    paths = [
        {ModuleId("all", number): Receipt(f"objects/{number}", f"digest {number}", 100)}
        for number in range(4)
    ]
    store = PathsOfDevices(caches, Placement([tuple(path) for path in paths], 2))
    assert [store.memory_of(path) for path in paths] == [0, 0, 1, 1]

    async def run():
        admission = PathAdmission(store)
        async with admission.pinned(paths[0], "client"):
            without_room = asyncio.create_task(hold(admission, paths[1]))
            await asyncio.sleep(1.5 * path_admission.STARVED_SECONDS)
            await asyncio.wait_for(hold(admission, paths[2]), 30)  # cold
            await asyncio.wait_for(hold(admission, paths[2]), 30)  # warm
            assert not without_room.done()
        await asyncio.wait_for(without_room, 30)

    asyncio.run(run())


async def hold(admission, modules):
    async with admission.pinned(modules, "client"):
        pass


def test_more_devices_than_there_are_is_refused(spec):
    with pytest.raises(BadSetting, match="--devices"):
        SeveralDevices(spec, 1000)


def test_the_rows_of_all_devices_can_be_taken(spec):
    alone, spread = InProcessEngine(spec), SeveralDevices(spec, NUM_DEVICES)
    others = NUM_DEVICES - 1
    assert spread.loop.capacity == alone.loop.capacity + others * LIMITS.rows
