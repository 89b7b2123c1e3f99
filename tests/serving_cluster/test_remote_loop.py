"""Loops elsewhere: a request goes on when the one that answered it is lost, and nobody hangs."""

import asyncio
import contextlib
import queue
import time

import pytest

from dipaco.receipt import Receipt
from dipaco.serving.decoding.limits import LoopLimits
from dipaco.serving.decoding.sampling import SamplingSettings
from dipaco.serving.decoding.stream import Finish, Token
from dipaco.serving.engine import EngineSpec
from dipaco.serving.errors import ContextTooLong, LoopStopping, NoReplica, QueueFull, ReplicaLost
from dipaco.serving.event_bridge import EventBridge
from dipaco.serving.releases import ReleaseHealth
from dipaco.serving_cluster import remote_loop as elsewhere
from dipaco.serving_cluster.remote_loop import RemoteCache, RemoteLoop, ReplicaUnavailable
from dipaco.serving_cluster.replica import ReplicaUpdate
from dipaco.store.errors import ObjectDamaged
from dipaco.topology import ModuleId
from tests.support.serving_rig import CONFIG, make_loop, request

MODULES = {ModuleId("all", 0): Receipt("modules/1", "digest", 10)}
DRAWN = {"sampling": SamplingSettings(temperature=1.0), "seed": 3, "max_new_tokens": 20}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(elsewhere, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(elsewhere, "LOOK_SECONDS", 0.01)


@pytest.fixture
def health():
    return ReleaseHealth()


@pytest.fixture
def remote(health):
    """`remote(ask)` -> a loop that asks so; it runs."""
    with contextlib.ExitStack() as stack:

        def make(ask, replicas=1):
            spec = EngineSpec(
                address=None,
                objects=None,
                model=CONFIG,
                limits=LoopLimits(rows=2, waiting=3),
                modules_of=lambda release, path: MODULES,
                health=health,
            )
            loop = RemoteLoop(spec, ask)
            loop.set_num_replicas(replicas)
            loop.run()
            stack.callback(loop.stop, 0.0)
            return loop

        yield make


@pytest.fixture(scope="module")
def real():
    """A loop that makes tokens, in its own thread."""
    loop = make_loop()
    loop.run()
    yield loop
    loop.stop(0.0)


def asking(loop, dies_after=()):
    """Asks a real loop; the nth to be asked dies when it has told so many tokens."""
    left = list(dies_after)
    asked = []

    async def ask(wanted, modules):
        asked.append(wanted)
        dies = left.pop(0) if left else None
        bridge = EventBridge()
        stream = loop.submit(wanted, bridge.put)
        told = 0
        try:
            while True:
                for item in await bridge.take():
                    if dies is not None and told == dies:
                        raise ReplicaUnavailable
                    yield ReplicaUpdate([item], stream.prompt_logprobs if not told else None)
                    told += isinstance(item, Token)
                    if isinstance(item, Finish):
                        return
        finally:
            stream.cancel()

    ask.asked = asked
    return ask


def read(stream):
    """All that comes of a stream."""
    tokens = []
    while not isinstance(item := stream.get(timeout_seconds=30), Finish):
        tokens.append(item)
    return tokens, item


async def never(wanted, modules):
    await asyncio.sleep(3600)
    yield ReplicaUpdate([])


def test_a_request_whose_replica_dies_goes_on_where_it_stopped(real, remote):
    undisturbed = read(real.submit(request(**DRAWN)))
    ask = asking(real, dies_after=(5, 0, 7))
    loop = remote(ask)
    assert read(loop.submit(request(**DRAWN))) == undisturbed
    assert [len(one.prompt_ids) for one in ask.asked] == [3, 8, 8, 15]
    assert loop.num_lost == 3
    assert loop.stats().num_requests == {"length": 1}


def test_what_was_told_of_the_prompt_is_not_told_again(real, remote):
    wanted = request(max_new_tokens=6, num_logprobs=2, prompt_logprobs=True)
    loop = remote(asking(real, dies_after=(2,)))
    stream = loop.submit(wanted)
    tokens, finish = read(stream)
    assert (len(tokens), finish.reason) == (6, "length")
    assert len(stream.prompt_logprobs) == len(wanted.prompt_ids)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_one_that_dies_with_the_last_token_told_has_done_its_work(real, remote, is_stopped):
    tokens, _ = read(real.submit(request(max_new_tokens=4)))
    stops = {"stop_ids": frozenset({tokens[3].id})} if is_stopped else {"max_new_tokens": 4}
    if is_stopped and tokens[3].id in [token.id for token in tokens[:3]]:
        pytest.skip("this token came before")
    loop = remote(asking(real, dies_after=(4, 4, 4, 4)))
    told, finish = read(loop.submit(request(**stops)))
    assert told == tokens
    assert finish.reason == ("stop" if is_stopped else "length")


def test_whoever_loses_every_replica_is_told_so(real, remote):
    loop = remote(asking(real, dies_after=(0,) * 10))
    _, finish = read(loop.submit(request()))
    assert isinstance(finish.error, ReplicaLost)
    assert loop.stats().num_requests == {"error": 1}


def test_whoever_leaves_is_let_go_of_at_once(remote):
    is_closed = queue.SimpleQueue()

    async def ask(wanted, modules):
        try:
            yield ReplicaUpdate([Token(1)])
            await asyncio.sleep(3600)
        finally:
            is_closed.put(True)

    loop = remote(ask)
    stream = loop.submit(request())
    assert stream.get(10) == Token(1)
    stream.cancel()
    assert is_closed.get(timeout=60)
    assert read(stream) == ([], Finish("cancelled"))


def test_when_there_has_been_no_replica_for_a_while_those_who_wait_are_told(remote, monkeypatch):
    monkeypatch.setattr(elsewhere, "NO_REPLICA_SECONDS", 0.2)
    loop = remote(never, replicas=0)
    _, finish = read(loop.submit(request()))
    assert isinstance(finish.error, NoReplica)
    assert not loop.is_alive
    with pytest.raises(NoReplica):
        loop.submit(request())
    loop.set_num_replicas(1)
    assert loop.is_alive
    loop.submit(request())


def test_as_many_come_in_as_replicas_have_rows_and_may_wait(remote):
    loop = remote(never, replicas=2)
    assert loop.capacity == 2 * 2 + 3
    streams = [loop.submit(request()) for _ in range(7)]
    with pytest.raises(QueueFull):
        loop.submit(request())
    streams[0].cancel()
    read(streams[0])
    loop.submit(request())
    with pytest.raises(ContextTooLong):
        loop.submit(request(prompt=()))


def test_stopping_finishes_what_runs_and_takes_nothing_new(real, remote):
    loop = remote(asking(real))
    stream = loop.submit(request(max_new_tokens=30))
    loop.stop(drain_seconds=30.0)
    tokens, finish = read(stream)
    assert (len(tokens), finish.reason) == (30, "length")
    with pytest.raises(LoopStopping):
        loop.submit(request())


def test_what_is_not_finished_in_time_is_cancelled(remote):
    loop = remote(never)
    stream = loop.submit(request())
    started = time.monotonic()
    loop.stop(drain_seconds=0.1)
    assert time.monotonic() - started < 25
    assert read(stream) == ([], Finish("cancelled"))


def test_a_module_that_a_replica_could_not_read_is_known_here(remote, health):
    error = ObjectDamaged(file="/run/modules/1", name="modules/1", problem="it is short")

    async def ask(wanted, modules):
        yield ReplicaUpdate([Finish("error", error)])

    _, finish = read(remote(ask).submit(request()))
    assert finish.error is error
    assert "it is short" in health.problem_of(MODULES)


@pytest.mark.parametrize("finish", [Finish("error", LoopStopping()), Finish("cancelled")])
def test_one_that_is_stopping_hands_its_requests_on(real, remote, finish):
    asks = [asking(real)]

    async def ask(wanted, modules):
        if len(asks) == 1:
            asks.append(None)
            yield ReplicaUpdate([finish])
            return
        async for told in asks[0](wanted, modules):
            yield told

    tokens, end = read(remote(ask).submit(request()))
    assert (len(tokens), end.reason) == (10, "length")


def test_nothing_is_held_here_and_everything_may_come_in(remote):
    shares = RemoteCache(remote(never))
    assert shares.contains(MODULES)
    with shares.pin(MODULES):
        pass
    assert set(shares.stats()) == {0}
    assert shares.max_bytes == 0
