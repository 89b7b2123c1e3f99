"""Admission: paths that do not fit together take turns, and busy paths do not starve others."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.testclient import TestClient

from dipaco.serving import path_admission
from dipaco.serving.http.app import HttpSettings, make_app
from dipaco.serving.service import Service, ServiceSettings
from tests.support.serving_rig import (
    ask_and_leave,
    asked_by,
    completion,
    in_process,
    path_bytes,
    until,
)

REQUEST = {"model": "toy", "prompt": "jiji", "max_tokens": 4, "temperature": 0}


@pytest.fixture
def tight(tiny, limits):
    """A service with memory for one path at a time, of four."""
    settings = ServiceSettings(limits=limits, path_bytes=path_bytes(tiny.folder) + 1000)
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        service.start()
        yield service


@pytest.mark.slow
def test_a_run_larger_than_the_memory_is_served_with_every_path(tight, client, prompts):
    """Also if one request, and no other, needs more paths than fit at once."""

    async def at_once(bodies):
        async with in_process(tight) as http_client:
            asking = (http_client.post("/v1/completions", json=body) for body in bodies)
            answers = await asyncio.gather(*asking)
        assert [answer.status_code for answer in answers] == [200] * len(answers)
        return [answer.json()["choices"] for answer in answers]

    bodies = [*(REQUEST | {"path": i % 4} for i in range(12)), REQUEST | {"prompt": prompts}]
    choices = asyncio.run(at_once(bodies[:12])) + asyncio.run(at_once(bodies[12:]))
    assert choices == [completion(client, body)["choices"] for body in bodies]
    assert len({choice["path"] for choice in choices[-1]}) > 1
    stats = tight.cache.stats()
    assert stats.num_bytes <= tight.cache.max_bytes
    assert (stats.paths, stats.pinned) == (1, 0)
    assert stats.evictions >= 3


def test_every_request_for_a_path_in_memory_is_answered_while_another_path_is_read(
    held, monkeypatch
):
    """More requests for the path that is read than threads: its reading does not end, and no timer
    of admission does, before all the others have their whole answers.
    """
    monkeypatch.setattr(path_admission, "STARVED_SECONDS", 60.0)
    monkeypatch.setattr(path_admission, "RETRY_SECONDS", 3600.0)

    def ask(path, **more):
        body = REQUEST | {"path": path} | more
        return httpx.post(f"{held.url}/v1/completions", json=body, timeout=60)  # a client each

    with ThreadPoolExecutor(16) as threads:
        cold = [threads.submit(ask, 3) for _ in range(12)]
        assert held.began.wait(60)
        warm = [threads.submit(ask, 0, stream=number % 2 == 1) for number in range(24)]
        assert [each.result().status_code for each in warm] == [200] * 24
        assert all(each.result().text.endswith("[DONE]\n\n") for each in warm[1::2])
        assert httpx.get(f"{held.url}/healthz").status_code == 200
        assert not any(each.done() for each in cold)
        held.is_read.set()
        assert [each.result().status_code for each in cold] == [200] * 12


async def test_a_request_without_a_place_is_not_routed(service, monkeypatch):
    may_end, routed, begin_all = threading.Event(), [], service.dispatcher.begin_all

    def begin_late(prompts):
        routed.extend(prompts)
        assert may_end.wait(60)
        return begin_all(prompts)

    monkeypatch.setattr(service.dispatcher, "begin_all", begin_late)
    async with in_process(service) as http_client:

        async def ask(n):
            return await http_client.post("/v1/completions", json=REQUEST | {"n": n})

        flood = asyncio.create_task(ask(service.loop.capacity))
        await until(lambda: routed)
        refused = await ask(1)
        may_end.set()
        assert (refused.status_code, (await flood).status_code) == (429, 200)
    assert len(routed) == 1


async def test_a_client_that_leaves_while_its_prompt_waits_for_a_path_gives_its_places_back(
    tiny, limits
):
    settings = ServiceSettings(limits=limits, rule="likelihood")
    with Service(tiny.folder, settings, say=lambda _: None) as service:  # its loop does not run
        may_read, load, capacity = threading.Event(), service.cache._load, service.loop.capacity
        service.cache._load = lambda receipt: may_read.wait(60) and load(receipt)
        body = b'{"model": "toy", "prompt": "jiji", "n": %d}' % capacity
        app, leaves, leaves_later = make_app(service), asyncio.Event(), asyncio.Event()
        leaving = asyncio.create_task(ask_and_leave(app, body, leaves))
        await until(lambda: service.cache.stats().pinned)
        leaves.set()
        first = await leaving
        may_read.set()
        again = asyncio.create_task(ask_and_leave(app, body, leaves_later))
        await until(lambda: len(service.loop._queue) == capacity)
        leaves_later.set()
        assert (first, await again) == (499, 499)  # none was refused


@pytest.mark.parametrize("by", ["key", "connection"])
async def test_a_client_that_asks_for_all_does_not_keep_others_out(service, monkeypatch, by):
    """Clients are known by their keys, and without keys by their connections."""
    may_go_on, turn = threading.Event(), service.loop.run_once
    monkeypatch.setattr(service.loop, "run_once", lambda: may_go_on.wait() and turn())
    settings = HttpSettings(api_keys=("key 1", "key 2") if by == "key" else ())
    app, capacity = make_app(service, settings=settings), service.loop.capacity

    async def ask(who, n):
        body = REQUEST | {"max_tokens": 40, "temperature": 1, "n": n}
        headers = {"Authorization": f"Bearer key {who}"} if by == "key" else {}
        async with asked_by(app, port=0 if by == "key" else who) as client:
            return (await client.post("/v1/completions", json=body, headers=headers)).status_code

    def num_held():
        stats = service.loop.stats()
        return stats.num_waiting + sum(stats.rows_per_path.values())

    try:
        flood = asyncio.create_task(ask(1, capacity))
        await until(lambda: num_held() == capacity)
        assert await ask(1, 1) == 429
        other = asyncio.create_task(ask(2, capacity // 2))
        await until(lambda: num_held() == capacity + capacity // 2)
        may_go_on.set()
        assert await other == 200
        assert not flood.done()
        assert await flood == 200
    finally:
        may_go_on.set()


def test_one_key_learns_nothing_of_anothers_prompts_from_the_caches(service):
    """Neither of what a path has read, nor of what was routed."""
    settings = HttpSettings(api_keys=("one", "two"))
    body = {"model": "toy", "prompt": "what only one of them asks", "max_tokens": 1}
    with TestClient(make_app(service, settings=settings)) as client:

        def spared(key, **more):
            """How often a prompt was reused, and a prefix routed, for a request."""
            before = service.loop.stats().num_prompts_reused, service.routing_stats().prompts
            headers = {"Authorization": f"Bearer {key}"}
            completion(client, body | more, headers=headers)
            now = service.loop.stats().num_prompts_reused, service.routing_stats().prompts
            return now[0] - before[0], now[1] - before[1]

        assert spared("one") == (0, 1)
        assert spared("one") == (1, 0)
        assert spared("two") == (0, 1)
        assert spared("two", cache_salt="a chat of its own") == (0, 0)
        assert spared("two", cache_salt="a chat of its own") == (1, 0)
