"""Clients share the memory for paths, and the threads that read them."""

import asyncio
import contextlib
import threading

from dipaco.receipt import Receipt
from dipaco.serving import path_admission
from dipaco.serving.path_admission import READERS, PathAdmission
from dipaco.serving.path_cache import PathCache
from dipaco.topology import ModuleId
from tests.support.serving_rig import until

SIZE = 100  # bytes of a path
MANY = 12  # paths that the client "flood" asks for


def path(name):
    return {ModuleId("all", 0): Receipt(name, name, SIZE)}


def paths_of(client):
    return [path(f"{client} {number}") for number in range(MANY)]


def memory_for(num_paths):
    return PathCache(lambda receipt: {"head": receipt.digest}, num_paths * SIZE)


class Requests:
    """Requests for paths; each notes when its path is in memory, and keeps it for a moment."""

    def __init__(self, cache):
        self.cache, self.admission, self.order = cache, PathAdmission(cache), []

    async def use(self, client, modules, seconds=0.01):
        async with self.admission.pinned(modules, client):
            self.order.append(client)
            await asyncio.sleep(seconds)

    def begin(self, client, modules, seconds=0.01):
        return asyncio.create_task(self.use(client, modules, seconds))


async def test_a_client_with_two_requests_waits_for_no_more_than_one_of_another_between_them():
    requests = Requests(memory_for(1))
    flood = [requests.begin("flood", each) for each in paths_of("flood")]
    await asyncio.sleep(0)
    others = [requests.begin("other", path(f"other {number}")) for number in range(2)]
    await asyncio.gather(*flood, *others)
    assert requests.order[:5] == ["flood", "other", "flood", "other", "flood"]


async def test_a_client_that_asks_for_much_gets_its_turn_however_many_others_come():
    """A connection is a client: others may come without end, each with one request."""
    requests, tasks = Requests(memory_for(1)), []
    with contextlib.ExitStack() as keeps:
        keeps.enter_context(requests.cache.pin(path("first")))
        tasks += [requests.begin("flood", each) for each in paths_of("flood")]
        await asyncio.sleep(0)
    for number in range(30):
        tasks.append(requests.begin(f"new {number}", path(f"new {number}")))
        await asyncio.sleep(0.01)
    so_far = list(requests.order)
    await asyncio.gather(*tasks)
    assert so_far.count("flood") >= 2


async def test_a_client_that_waits_for_long_holds_back_only_those_that_have_more_than_it(
    monkeypatch,
):
    monkeypatch.setattr(path_admission, "STARVED_SECONDS", 0.0)
    requests = Requests(memory_for(3))
    keeps = [requests.begin("flood", each, 60) for each in paths_of("flood")[:2]]
    keeps.append(requests.begin("two", path("two"), 60))
    await until(lambda: len(requests.order) == 3)
    waits = requests.begin("two", path("too much"))
    await asyncio.sleep(0.01)
    # Warm paths: of a client with nothing at once, of one with more than "two" not yet.
    await requests.use("one", path("two"))
    more = requests.begin("flood", path("two"))
    await asyncio.sleep(0.2)
    assert not waits.done()
    assert not more.done()
    keeps[0].cancel()
    await waits
    await more
    for each in keeps:
        each.cancel()


async def test_many_requests_of_a_client_for_one_path_are_those_for_one_path(monkeypatch):
    monkeypatch.setattr(path_admission, "STARVED_SECONDS", 0.0)
    monkeypatch.setattr(path_admission, "RETRY_SECONDS", 60.0)  # they need no later try
    requests = Requests(memory_for(3))
    keeps = [requests.begin("flood", each, 60) for each in paths_of("flood")[:2]]
    leaves = requests.begin("two", path("two"), 60)
    await until(lambda: len(requests.order) == 3)
    waits = requests.begin("flood", path("too much"))
    await asyncio.sleep(0.01)
    keeps += [requests.begin("one", path("one"), 60) for _ in range(8)]
    await asyncio.sleep(0.2)
    leaves.cancel()
    await asyncio.wait_for(until(lambda: len(requests.order) == 3 + 8), 5)
    assert requests.order[3:] == ["one"] * 8
    for each in (waits, *keeps):
        each.cancel()


class SlowDisk:
    """Reads a path, or only the one that is slow, when it may, and notes the order."""

    def __init__(self, slow=None):
        self.may_read, self.order, self._slow = threading.Semaphore(0), [], slow

    def load(self, receipt):
        self.order.append(receipt.digest)
        if self._slow in (None, receipt.digest):
            assert self.may_read.acquire(timeout=30)
        return {"head": receipt.digest}


async def test_a_path_is_not_read_after_all_those_of_a_client_that_asks_for_many():
    disk = SlowDisk()
    requests = Requests(PathCache(disk.load, 100 * SIZE))
    flood = [requests.begin("flood", each) for each in paths_of("flood")]
    await until(lambda: len(disk.order) == READERS)
    # One of its own, and one that the other waits for already, far back.
    others = [requests.begin("other", each) for each in (path("own"), path("flood 11"))]
    await asyncio.sleep(0.01)
    for num_begun in range(READERS, MANY + 1):  # one by one: else the threads race
        await until(lambda n=num_begun: len(disk.order) == n)
        disk.may_read.release()
    disk.may_read.release(READERS)
    await asyncio.gather(*flood, *others)
    assert {*disk.order[:READERS]} == {f"flood {number}" for number in range(READERS)}
    in_turn = ["flood 4", "own", "flood 5", "flood 11"]
    in_turn += [f"flood {number}" for number in range(6, 11)]
    assert disk.order[READERS:] == in_turn


async def test_a_client_that_waits_for_a_path_that_another_has_begun_keeps_its_turn(monkeypatch):
    monkeypatch.setattr(path_admission, "READERS", 1)
    disk = SlowDisk()
    requests = Requests(PathCache(disk.load, 100 * SIZE))
    tasks = [requests.begin("first", path("first"))]
    await until(lambda: disk.order)
    asked_for = [("one", "both's"), ("two", "both's"), ("two", "two's"), ("three", "three's")]
    tasks += [requests.begin(client, path(name)) for client, name in asked_for]
    for num_read in range(1, 5):
        await until(lambda n=num_read: len(disk.order) == n)
        await asyncio.sleep(0.01)
        disk.may_read.release()
    await asyncio.gather(*tasks)
    assert disk.order == ["first", "both's", "two's", "three's"]


async def test_a_path_whose_requests_are_all_gone_before_its_turn_is_not_read():
    disk = SlowDisk()
    requests = Requests(PathCache(disk.load, 100 * SIZE))
    keeps = [requests.begin("flood", each) for each in paths_of("flood")[:READERS]]
    await until(lambda: len(disk.order) == READERS)
    gone = [requests.begin(client, path("gone")) for client in ("one", "two")]
    await asyncio.sleep(0.01)
    for each in gone:
        each.cancel()
    await asyncio.wait(gone)
    assert requests.cache.stats().pinned == READERS
    disk.may_read.release(100)
    await asyncio.gather(*keeps)
    assert len(disk.order) == READERS


async def test_a_path_that_is_asked_for_is_a_hit_or_a_miss_of_the_cache_once():
    """The warm path twice, then one that is read, from a thread and by the request itself."""
    requests = Requests(memory_for(2))
    requests.cache.preload(path("warm"))
    for name in ("warm", "warm", "cold"):
        await requests.use("client", path(name))
    with requests.cache.pin(path("cold")):  # as the loop does for the request
        stats = requests.cache.stats()
    assert (stats.hits, stats.misses) == (2, 1)


async def test_requests_for_a_path_that_is_read_take_no_thread_even_when_they_are_gone():
    disk = SlowDisk("slow")
    requests = Requests(PathCache(disk.load, 3 * SIZE))
    for _ in range(50):
        gone = requests.begin("client", path("slow"))
        await asyncio.sleep(0.002)
        gone.cancel()
    assert await asyncio.to_thread(lambda: 7) == 7
    await requests.use("client", path("cold"))
    disk.may_read.release()
    await until(lambda: not requests.cache.stats().pinned)
    assert disk.order == ["slow", "cold"]


async def test_a_path_that_is_being_read_is_given_to_a_later_request_while_another_waits_for_room(
    monkeypatch,
):
    """Else the path would be evicted for it, and read once more."""
    monkeypatch.setattr(path_admission, "STARVED_SECONDS", 60.0)  # also on a busy machine
    disk = SlowDisk("slow")
    requests = Requests(PathCache(disk.load, 3 * SIZE))
    pinned, jobs = requests.admission.pinned, requests.admission._readers._jobs
    async with pinned(path("warm"), "client"):
        first = requests.begin("client", path("slow"))
        async with pinned(path("third"), "client"):
            cold = requests.begin("client", path("cold"))
            later = requests.begin("client", path("slow"), 60)
            await until(lambda: "slow" in disk.order)
            first.cancel()
            disk.may_read.release()
            await until(lambda: ("slow",) not in jobs)
            await until(lambda: requests.cache.stats().pinned == 3)
            assert not cold.done()
        await cold
        later.cancel()
    assert disk.order.count("slow") == 1


async def test_a_request_that_waits_hears_of_room_that_no_other_request_gave_back():
    """The loop, too, unpins paths; and what waited in vain before is forgotten."""
    requests = Requests(memory_for(3))
    waiting = requests.admission._waiting
    with contextlib.ExitStack() as others:
        for name in ("one", "two", "three"):
            others.enter_context(requests.cache.pin(path(name)))
        for _ in range(2):
            waits = requests.begin("client", path("cold"))
            await until(lambda: waiting)
            waits.cancel()
            await asyncio.wait([waits])
            assert not waiting
        waits = requests.begin("client", path("cold"))
        await until(lambda: waiting)
        others.close()
        await waits
    assert requests.cache.stats().pinned == 0
