"""The path cache: shared modules once, never more bytes than allowed, no pinned path evicted."""

import contextlib
import functools
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco.receipt import Receipt
from dipaco.serving.errors import NoRoomForPath, PathCacheTooSmall
from dipaco.serving.path_cache import PathCache
from dipaco.store.errors import ObjectMissing
from dipaco.topology import Level, Topology
from tests.support.waiting import until

SIZE = 100  # bytes of a module
TOPOLOGY = Topology(
    levels=(
        Level(name="early", parts=("embed", "block_00"), experts=3),
        Level(name="late", parts=("head",), experts=3),
    )
)


def modules_of(path, version=""):
    return {
        module: Receipt(f"objects/{module}{version}", f"{module}{version}", SIZE)
        for module in TOPOLOGY.modules_of(path)
    }


class Disk:
    """Reads modules, and counts."""

    def __init__(self):
        self.reads = Counter()
        self.missing = set()

    def load(self, receipt):
        if receipt.digest in self.missing:
            raise ObjectMissing(file=receipt.name)
        self.reads[receipt.digest] += 1
        level = receipt.digest.partition("/")[0]
        parts = ("embed", "block_00") if level == "early" else ("head",)
        return {part: f"{part} of {receipt.digest}" for part in parts}


def use(cache, *paths):
    """Each path is in use for a moment, one after the other."""
    for path in paths:
        with cache.pin(modules_of(path)):
            pass


def at_once(do, paths):
    """What a call for each path gives, each in a thread of its own."""
    with ThreadPoolExecutor(len(paths)) as threads:
        return list(threads.map(do, paths))


def test_a_module_that_paths_or_releases_share_is_read_and_held_once():
    disk = Disk()
    cache = PathCache(disk.load, 1000)
    use(cache, 0, 1, 2, 0)
    assert disk.reads == {"early/0000": 1, "late/0000": 1, "late/0001": 1, "late/0002": 1}
    newer = modules_of(0) | {m: r for m, r in modules_of(0, "-new").items() if m.level == "late"}
    with cache.pin(newer) as parts:
        assert parts["head"] == "head of late/0000-new"
    stats = cache.stats()
    assert (stats.modules, stats.num_bytes) == (5, 5 * SIZE)


def test_the_least_recently_used_path_is_evicted_first():
    disk = Disk()
    cache = PathCache(disk.load, 4 * SIZE)  # two paths that share nothing
    use(cache, 0, 4, 0, 8)
    assert cache.contains(modules_of(0))
    assert not cache.contains(modules_of(4))
    assert cache.stats().evictions == 1


def test_a_path_that_finds_no_room_evicts_nothing():
    cache = PathCache(Disk().load, 4 * SIZE)  # paths 0 and 4 share nothing, nor do 8 and they
    use(cache, 4)
    with cache.pin(modules_of(0)), cache.pin(modules_of(1)):  # three modules in use, one not
        use(cache, 4)  # early/0001 with late/0001
        with pytest.raises(NoRoomForPath, match="All 2 paths"):
            use(cache, 8)
        assert cache.contains(modules_of(4))
    assert cache.stats().evictions == 0


def test_paths_of_modules_that_are_kept_are_not_evicted_for_another():
    disk = Disk()
    cache = PathCache(disk.load, 4 * SIZE)
    use(cache, 0, 4)
    kept = {receipt.digest for receipt in modules_of(0).values()}
    others = {receipt.digest for receipt in modules_of(4).values()}
    with pytest.raises(NoRoomForPath):
        cache.reserve(modules_of(8), kept | others)
    assert cache.stats().evictions == 0
    pin = cache.reserve(modules_of(8), kept)
    pin.read()
    pin.close()
    assert cache.contains(modules_of(0))
    assert not cache.contains(modules_of(4))


def test_a_path_that_takes_more_in_memory_than_on_disk_evicts_none_that_is_kept():
    cache = PathCache(Disk().load, 6 * SIZE, num_bytes_of=lambda parts: 2 * SIZE)
    use(cache, 0)
    kept = {receipt.digest for receipt in modules_of(0).values()}
    pin = cache.reserve(modules_of(4), kept)
    with pytest.raises(NoRoomForPath):
        pin.read()
    pin.close()
    assert cache.contains(modules_of(0))
    assert cache.stats().num_bytes == 4 * SIZE


def test_a_path_that_is_larger_than_the_cache_is_refused_with_both_sizes():
    cache = PathCache(Disk().load, SIZE)
    with pytest.raises(PathCacheTooSmall, match=r"takes 200 bytes.*may take 100"):
        use(cache, 0)


def test_modules_count_with_the_bytes_that_they_take_in_memory():
    cache = PathCache(Disk().load, 6 * SIZE, num_bytes_of=lambda parts: 2 * SIZE)
    for path in (0, 4, 0):  # on disk, 4 modules of SIZE
        with cache.pin(modules_of(path)):
            stats = cache.stats()
            assert (stats.paths, stats.modules, stats.num_bytes) == (1, 2, 4 * SIZE)
    with cache.pin(modules_of(0)), pytest.raises(NoRoomForPath):
        use(cache, 4)
    assert cache.stats().num_bytes <= 6 * SIZE
    small = PathCache(Disk().load, 3 * SIZE, num_bytes_of=lambda parts: 2 * SIZE)
    with pytest.raises(PathCacheTooSmall, match="takes 400 bytes"):
        use(small, 0)
    assert small.stats().num_bytes == 0


def test_a_module_that_cannot_be_read_leaves_the_cache_as_it_was():
    disk = Disk()
    disk.missing = {"late/0001"}
    cache = PathCache(disk.load, 4 * SIZE)
    with pytest.raises(ObjectMissing):
        use(cache, 1)
    use(cache, 0, 3)  # early/0000 and early/0001, both with late/0000
    assert cache.stats().paths == 2
    disk.missing = set()
    use(cache, 1)


def test_the_load_time_of_a_cold_path_is_reported():
    seconds = []
    cache = PathCache(Disk().load, 1000, on_cold=seconds.append)
    use(cache, 0, 0)
    assert len(seconds) == 1


@given(
    st.lists(st.tuples(st.sampled_from(["pin", "unpin"]), st.integers(0, 8)), max_size=40),
    st.integers(2, 7),
)
def test_bytes_stay_within_the_limit_and_pins_hold_for_any_sequence(steps, most_modules):
    cache = PathCache(Disk().load, most_modules * SIZE)
    pins = []
    for action, path in steps:
        if action == "pin":
            pin = contextlib.ExitStack()
            try:
                pins.append((path, pin, pin.enter_context(cache.pin(modules_of(path)))))
            except NoRoomForPath:
                held = {m for p, _, _ in pins for m in TOPOLOGY.modules_of(p)}
                needed = held | set(TOPOLOGY.modules_of(path))
                assert len(needed) > most_modules, "it would have fit"
        elif pins:
            pins.pop(path % len(pins))[1].close()
        stats = cache.stats()
        assert stats.num_bytes == stats.modules * SIZE <= most_modules * SIZE
        assert stats.pinned == len({p for p, _, _ in pins})
        held = {path: parts for path, _, parts in pins}
        for path_held, _, parts in pins:
            assert cache.contains(modules_of(path_held))
            assert parts is held[path_held], "they are what all who have the path have"


def test_many_threads_may_pin_at_once():
    disk = Disk()
    cache = PathCache(disk.load, 6 * SIZE)
    wrong = []

    def pin_many(first):
        for i in range(200):
            path = (first + i) % 9
            with contextlib.suppress(NoRoomForPath), cache.pin(modules_of(path)) as parts:
                early, late = TOPOLOGY.modules_of(path)
                if parts["head"] != f"head of {late}" or parts["embed"] != f"embed of {early}":
                    wrong.append(path)

    at_once(pin_many, range(4))
    assert not wrong
    assert cache.stats().pinned == 0


def test_paths_are_read_at_once_and_a_module_of_both_is_read_once():
    disk, both_read = Disk(), threading.Barrier(2)

    def load(receipt):
        if receipt.digest.startswith("late"):
            both_read.wait(30)
        return disk.load(receipt)

    cache = PathCache(load, 1000)

    def parts_of(path):
        with cache.pin(modules_of(path)) as parts:
            return parts

    found = at_once(parts_of, (0, 1))
    assert disk.reads == {"early/0000": 1, "late/0000": 1, "late/0001": 1}
    assert found[0]["embed"] is found[1]["embed"]


def one_after_the_other(disk, paths, own):
    """What `early/0000`, which is missing, does to two paths. The second begins while the first one
    reads that, and waits for a module that both have once it has read its `own`. Returns the error
    of each or None, and the cache.
    """
    began, may_fail = threading.Event(), threading.Event()
    disk.missing = {"early/0000"}

    def load(receipt):
        if receipt.digest == "early/0000":
            began.set()
            assert may_fail.wait(30)
        return disk.load(receipt)

    cache = PathCache(load, 1000)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(use, cache, paths[0])
        assert began.wait(30)
        second = threads.submit(use, cache, paths[1])
        until(lambda: disk.reads[own])
        may_fail.set()
        return [first.exception(30), second.exception(30)], cache


def test_a_module_that_cannot_be_read_fails_all_paths_that_wait_for_it():
    errors, cache = one_after_the_other(Disk(), (0, 1), own="late/0001")
    assert [type(error) for error in errors] == [ObjectMissing] * 2
    assert (cache.stats().pinned, cache.stats().num_bytes) == (0, 0)


def test_a_path_that_is_whole_does_not_fail_with_one_that_waited_to_read_its_module_too():
    """The damaged one's turn ends before it comes to the module of `late` that both have."""
    disk = Disk()
    (_, error), _ = one_after_the_other(disk, (0, 3), own="early/0001")
    assert error is None
    assert disk.reads["late/0000"] == 1


def test_modules_that_are_read_at_once_take_no_more_memory_than_allowed():
    disk, lock, now, most = Disk(), threading.Lock(), [0], [0]

    def load(receipt):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.001)
        with lock:
            now[0] -= 1
        return disk.load(receipt)

    cache = PathCache(load, 1000, reading_bytes=2 * SIZE)

    at_once(functools.partial(use, cache), range(9))
    assert most[0] == 2
    assert sum(disk.reads.values()) == 6


def test_room_is_reserved_before_a_path_is_read_and_given_back_if_it_is_not():
    disk = Disk()
    cache = PathCache(disk.load, 4 * SIZE)
    pins = [cache.reserve(modules_of(path)) for path in (0, 4)]
    assert cache.stats().num_bytes == 4 * SIZE
    assert not disk.reads
    with pytest.raises(NoRoomForPath):
        cache.reserve(modules_of(8))
    assert cache.has_room(modules_of(1))  # early/0000 and late/0001
    pins[0].close()
    with cache.pin(modules_of(8)) as parts:
        assert parts["head"] == "head of late/0002"
    pins[1].close()
    assert set(disk.reads) == {"early/0002", "late/0002"}
    assert cache.stats().num_bytes == 2 * SIZE
