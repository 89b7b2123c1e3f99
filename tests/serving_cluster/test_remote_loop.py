"""The remote loop: requests continue when their replica is lost, and no request hangs."""

import asyncio
import collections
import contextlib
import itertools
import queue
import threading
import time
from types import SimpleNamespace

import pytest

from dipaco.receipt import Receipt
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.decoding.stream import EventBridge, Finish, Token
from dipaco.serving.engine import EngineSpec
from dipaco.serving.errors import EmptyPrompt, LoopStopping, NoReplica, ReplicaLost
from dipaco.serving.path_cache import CacheStats
from dipaco.serving.releases import ReleaseHealth
from dipaco.serving_cluster import remote_loop
from dipaco.serving_cluster.errors import ReplicaError
from dipaco.serving_cluster.remote_cache import RemoteCache
from dipaco.serving_cluster.remote_loop import RemoteLoop, ReplicaUnavailable
from dipaco.serving_cluster.replica import ReplicaStats, ReplicaUpdate
from dipaco.store.errors import ObjectDamaged
from dipaco.topology import ModuleId
from tests.support.serving_rig import CONFIG, make_loop, request

MODULES = {ModuleId("all", 0): Receipt("modules/1", "digest", 10)}
DRAWN = {"sampling": SamplingSettings(temperature=1.0), "seed": 3, "max_new_tokens": 20}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(remote_loop, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(remote_loop, "CHECK_SECONDS", 0.01)


@pytest.fixture
def health():
    return ReleaseHealth()


@pytest.fixture
def remote(health):
    """`remote(generate)` -> a running remote loop that sends its requests to `generate`."""
    with contextlib.ExitStack() as stack:

        def make(generate, replicas=1):
            spec = EngineSpec(
                address=None,
                objects=None,
                model=CONFIG,
                limits=LoopLimits(rows=2, waiting=3),
                modules_of=lambda release, path: MODULES,
                health=health,
            )
            loop = RemoteLoop(spec, generate)
            loop.set_num_replicas(replicas)
            loop.run()
            stack.callback(loop.stop, 0.0)
            return loop

        yield make


@pytest.fixture(scope="module")
def real():
    """A loop that makes tokens in its own thread."""
    loop = make_loop()
    loop.run()
    yield loop
    loop.stop(0.0)


def replicas_of(loop, dies_after=()):
    """Sends requests to a real loop; the nth replica dies after so many tokens."""
    left = list(dies_after)
    requests = []

    async def generate(request, modules, tried):
        requests.append(request)
        dies = left.pop(0) if left else None
        bridge = EventBridge()
        stream = loop.submit(request, bridge.put)
        num_tokens = 0
        try:
            while True:
                for item in itertools.chain(*await bridge.take()):
                    if dies is not None and num_tokens == dies:
                        raise ReplicaUnavailable
                    yield ReplicaUpdate([item], stream.prompt_logprobs if not num_tokens else None)
                    num_tokens += isinstance(item, Token)
                    if isinstance(item, Finish):
                        return
        finally:
            stream.cancel()

    generate.requests = requests
    return generate


def read(stream):
    """The tokens and the end of a stream."""
    tokens = []
    while not isinstance(item := stream.get(timeout_seconds=30), Finish):
        tokens.append(item)
    return tokens, item


async def never(request, modules, tried):
    await asyncio.sleep(3600)
    yield ReplicaUpdate([])


def test_a_request_whose_replica_dies_continues_where_it_stopped(real, remote):
    undisturbed = read(real.submit(request(**DRAWN)))
    generate = replicas_of(real, dies_after=(5, 0, 7))
    loop = remote(generate)
    assert read(loop.submit(request(**DRAWN))) == undisturbed
    assert [len(one.prompt_ids) for one in generate.requests] == [3, 8, 8, 15]
    assert loop.num_lost == 3
    assert loop.stats().num_requests == {"length": 1}


def test_prompt_logprobs_are_sent_once(real, remote):
    scored = request(max_new_tokens=6, num_logprobs=2, prompt_logprobs=True)
    loop = remote(replicas_of(real, dies_after=(2,)))
    stream = loop.submit(scored)
    tokens, finish = read(stream)
    assert (len(tokens), finish.reason) == (6, "length")
    assert len(stream.prompt_logprobs) == len(scored.prompt_ids)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_replica_that_dies_after_the_last_token_has_finished(real, remote, is_stopped):
    tokens, _ = read(real.submit(request(max_new_tokens=4)))
    stops = {"stop_ids": frozenset({tokens[3].id})} if is_stopped else {"max_new_tokens": 4}
    if is_stopped and tokens[3].id in [token.id for token in tokens[:3]]:
        pytest.skip("this token came before")
    loop = remote(replicas_of(real, dies_after=(4, 4, 4, 4)))
    received, finish = read(loop.submit(request(**stops)))
    assert received == tokens
    assert finish.reason == ("stop" if is_stopped else "length")


def test_it_waits_longer_after_each_loss_in_a_row(real, remote, monkeypatch):
    waits = []

    async def sleep(seconds, sleep=asyncio.sleep):
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(remote_loop, "RETRY_SECONDS", (0.2, 1.0, 3.0))
    monkeypatch.setattr(remote_loop, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    loop = remote(replicas_of(real, dies_after=(0, 0, 2, 0, 0, 0)))
    _, finish = read(loop.submit(request()))
    assert isinstance(finish.error, ReplicaLost)
    waits = [seconds for seconds in waits if seconds != remote_loop.CHECK_SECONDS]
    assert waits == [0.2, 1.0, 0.2, 1.0, 3.0]
    assert loop.stats().num_requests == {"error": 1}


def test_replicas_that_could_not_finish_a_request_are_named_to_the_router(real, remote):
    asked = []
    names = iter("abc")

    async def generate(request, modules, tried):
        asked.append(set(tried))
        stats = ReplicaStats(next(names), real.stats(), CacheStats(*[0] * 7), 1000, ())
        end = Finish("error", LoopStopping()) if len(asked) < 3 else Finish("length")
        yield ReplicaUpdate([end], stats=stats)

    assert read(remote(generate).submit(request())) == ([], Finish("length"))
    assert asked == [set(), {"a"}, {"a", "b"}]


FAILED = Finish("error", ReplicaError(problem="RuntimeError: CUDA_ERROR", replica="a"))


def test_a_request_that_fails_on_a_replica_goes_on_at_another(real, remote):
    undisturbed = read(real.submit(request(**DRAWN)))
    whole, asked = replicas_of(real), []

    async def generate(request, modules, tried):
        asked.append(request)
        async for update in whole(request, modules, tried):
            yield update
            if len(asked) == 1:
                yield ReplicaUpdate([FAILED])

    assert read(remote(generate).submit(request(**DRAWN))) == undisturbed
    assert [len(one.prompt_ids) for one in asked] == [3, 4]


def test_a_request_that_fails_wherever_it_is_tried_ends_with_its_error(remote):
    asked = []

    async def generate(request, modules, tried):
        asked.append(request)
        yield ReplicaUpdate([FAILED])

    assert read(remote(generate).submit(request())) == ([], FAILED)
    assert len(asked) == 4


def test_a_cancelled_request_is_closed_at_once(remote):
    is_closed = queue.SimpleQueue()

    async def generate(request, modules, tried):
        try:
            yield ReplicaUpdate([Token(1)])
            await asyncio.sleep(3600)
        finally:
            is_closed.put(True)

    loop = remote(generate)
    stream = loop.submit(request())
    assert stream.get(10) == Token(1)
    stream.cancel()
    assert is_closed.get(timeout=60)
    assert read(stream) == ([], Finish("cancelled"))


def test_waiting_requests_fail_when_there_is_no_replica_for_a_while(remote, monkeypatch):
    monkeypatch.setattr(remote_loop, "NO_REPLICA_SECONDS", 0.2)
    loop = remote(never, replicas=0)
    _, finish = read(loop.submit(request()))
    assert isinstance(finish.error, NoReplica)
    assert not loop.is_alive
    with pytest.raises(NoReplica):
        loop.submit(request())
    loop.set_num_replicas(1)
    assert loop.is_alive
    loop.submit(request())


def test_requests_go_on_while_ray_cannot_be_asked_for_its_replicas(remote, monkeypatch):
    monkeypatch.setattr(remote_loop, "NO_REPLICA_SECONDS", 0.1)

    async def generate(request, modules, tried):
        for _ in range(10 if request.seed else 0):
            await asyncio.sleep(0.03)
            yield ReplicaUpdate([Token(1)])
        yield ReplicaUpdate([Finish("length")])

    loop = remote(generate)  # nothing tells it the number again
    long = loop.submit(request(seed=1))
    assert read(long) == ([Token(1)] * 10, Finish("length"))
    time.sleep(0.2)
    assert loop.is_alive
    assert read(loop.submit(request())) == ([], Finish("length"))


def test_a_request_hangs_on_no_replica_that_says_nothing_for_a_minute(remote, monkeypatch):
    monkeypatch.setattr(remote_loop, "NO_REPLICA_SECONDS", 0.2)
    loop = remote(never)
    time.sleep(0.5)
    _, finish = read(loop.submit(request()))
    assert isinstance(finish.error, NoReplica)


def test_the_capacity_is_the_rows_of_all_replicas_and_the_waiting_limit(remote):
    loop = remote(never, replicas=2)
    assert loop.capacity == 2 * 2 + 3
    with pytest.raises(EmptyPrompt):
        loop.submit(request(prompt=()))


def test_clients_take_turns_and_a_new_one_does_not_wait_for_a_flood(remote):
    sent, may_end = [], collections.defaultdict(threading.Event)

    async def generate(request, modules, tried):
        sent.append(request.seed)
        while not may_end[request.seed].is_set():
            await asyncio.sleep(0.001)
        yield ReplicaUpdate([Finish("length")])

    loop = remote(generate)  # one replica of two rows, so four requests are sent
    flood = [loop.submit(request(client="flood", seed=n)) for n in range(7)]
    until(lambda: len(sent) == 4)
    other = [loop.submit(request(client="other", seed=10 + n)) for n in range(4)]
    until(lambda: len(sent) == 6)  # its share: half of the places
    flood[6].cancel()  # it waits
    assert read(flood[6]) == ([], Finish("cancelled"))
    assert len(sent) == 6
    assert sent == [0, 1, 2, 3, 10, 11]
    # The room of what ends goes to the client that has less.
    for ends, begins in (((0, 1, 2), [4]), ((10, 11), [12, 13]), ((3,), [5])):
        before = len(sent)
        for seed in ends:
            may_end[seed].set()
        until(lambda before=before, begins=begins: sent[before:] == begins)
    for seed in range(20):
        may_end[seed].set()
    for stream in (*flood[:6], *other):
        assert read(stream) == ([], Finish("length"))


def test_a_replica_more_is_sent_what_waits(remote):
    sent = []

    async def generate(request, modules, tried):
        sent.append(request.seed)
        await asyncio.sleep(3600)
        yield ReplicaUpdate([])

    loop = remote(generate)
    for n in range(7):
        loop.submit(request(seed=n))
    until(lambda: len(sent) == 4)
    loop.set_num_replicas(2)
    until(lambda: len(sent) == 7)


def until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_a_replica_holds_counts_until_it_is_gone_and_what_it_has_done_for_ever(real, remote):
    names = iter(["old", "new", "newer", "new"])

    async def generate(request, modules, tried):
        name = next(names)
        cache = CacheStats(1, 0, 2, 100, 3, 4, 5)
        stats = ReplicaStats(name, real.stats()._replace(num_prompt_tokens=7), cache, 1000, ())
        yield ReplicaUpdate([Finish("length")], stats=stats)

    loop = remote(generate, replicas=2)
    cache = RemoteCache(loop)
    for _ in range(4):
        read(loop.submit(request()))
    assert (cache.max_bytes, cache.stats().paths, cache.stats().num_bytes) == (2000, 2, 200)
    assert (cache.stats().hits, cache.stats().misses, cache.stats().evictions) == (9, 12, 15)
    assert loop.stats().num_prompt_tokens == 21
    loop.set_num_replicas(1)
    assert (cache.max_bytes, loop.present()[0].replica) == (1000, "new")


def test_a_replica_that_has_answered_nothing_for_a_minute_has_no_speed(real, remote, monkeypatch):
    async def generate(request, modules, tried):
        loop = real.stats()._replace(tokens_per_second=50.0)
        stats = ReplicaStats(f"replica {request.seed}", loop, CacheStats(*[0] * 7), 1000, ())
        yield ReplicaUpdate([Finish("length")], stats=stats)

    loop = remote(generate, replicas=2)
    for seed in range(2):
        read(loop.submit(request(seed=seed)))
    assert loop.stats().tokens_per_second == 100.0
    monkeypatch.setattr(remote_loop, "RATE_SECONDS", 0.0)
    assert loop.stats().tokens_per_second == 0.0


def test_stop_finishes_running_requests_and_takes_no_new_ones(real, remote):
    loop = remote(replicas_of(real))
    stream = loop.submit(request(max_new_tokens=30))
    loop.stop(drain_seconds=30.0)
    tokens, finish = read(stream)
    assert (len(tokens), finish.reason) == (30, "length")
    with pytest.raises(LoopStopping):
        loop.submit(request())


def test_requests_that_outlast_the_drain_time_are_cancelled(remote):
    loop = remote(never)
    stream = loop.submit(request())
    started = time.monotonic()
    loop.stop(drain_seconds=0.1)
    assert time.monotonic() - started < 25
    assert read(stream) == ([], Finish("cancelled"))


def test_a_module_that_a_replica_could_not_read_is_recorded(remote, health):
    error = ObjectDamaged(file="/run/modules/1", name="modules/1", problem="it is short")

    async def generate(request, modules, tried):
        yield ReplicaUpdate([Finish("error", error)])

    _, finish = read(remote(generate).submit(request()))
    assert finish.error is error
    assert "it is short" in health.problem_of(MODULES)


@pytest.mark.parametrize("finish", [Finish("error", LoopStopping()), Finish("cancelled")])
def test_requests_of_a_stopping_replica_move_to_another(real, remote, finish):
    left = [replicas_of(real)]

    async def generate(request, modules, tried):
        if len(left) == 1:
            left.append(None)
            yield ReplicaUpdate([finish])
            return
        async for update in left[0](request, modules, tried):
            yield update

    tokens, end = read(remote(generate).submit(request()))
    assert (len(tokens), end.reason) == (10, "length")


def test_the_remote_cache_holds_nothing_and_admits_every_path(remote):
    cache = RemoteCache(remote(never))
    assert cache.contains(MODULES)
    with cache.pin(MODULES):
        pass
    assert set(cache.stats()) == {0}
    assert cache.max_bytes == 0
