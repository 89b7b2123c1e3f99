"""Admission: paths that do not fit together take turns, and busy paths do not starve others."""

import asyncio

import httpx
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.serving import path_admission
from dipaco.serving.http.admission import RequestAdmission
from dipaco.serving.http.app import make_app
from dipaco.serving.service import Service, ServiceSettings

REQUEST = {"model": "toy", "prompt": "jiji", "max_tokens": 4, "temperature": 0}


@pytest.fixture
def tight(tiny, limits):
    """A service with memory for one path at a time, of four."""
    with Service(tiny.folder, say=lambda _: None) as roomy:
        modules = roomy.releases.current.modules_of(0)
    most = sum(receipt.num_bytes for receipt in modules.values()) + 1000
    settings = ServiceSettings(limits=limits, path_bytes=most)
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        service.start()
        yield service


def in_process(service):
    transport = httpx.ASGITransport(make_app(service))
    return httpx.AsyncClient(transport=transport, base_url="http://here", timeout=60)


def test_a_run_larger_than_the_memory_is_served_with_every_path(tight, client):
    def expected(path):
        answer = client.post("/v1/completions", json=REQUEST | {"path": path}).json()
        return answer["choices"][0]["text"]

    async def all_at_once():
        async with in_process(tight) as http_client:
            answers = await asyncio.gather(
                *(
                    http_client.post("/v1/completions", json=REQUEST | {"path": i % 4})
                    for i in range(12)
                )
            )
            return [answer.json()["choices"][0]["text"] for answer in answers]

    assert asyncio.run(all_at_once()) == [expected(i % 4) for i in range(12)]
    stats = tight.cache.stats()
    assert stats.num_bytes <= tight.cache.max_bytes
    assert (stats.paths, stats.pinned) == (1, 0)
    assert stats.evictions >= 3


def test_one_request_may_need_more_paths_than_fit_at_once(tight, prompts):
    async def one():
        async with in_process(tight) as http_client:
            return await http_client.post("/v1/completions", json=REQUEST | {"prompt": prompts})

    answer = asyncio.run(one())
    assert answer.status_code == 200, answer.text
    assert len({choice["path"] for choice in answer.json()["choices"]}) > 1


def test_a_busy_path_does_not_starve_another(tight, monkeypatch):
    monkeypatch.setattr(path_admission, "STARVED_SECONDS", 0.05)
    admission, served = RequestAdmission(tight), tight.releases.current

    async def run():
        is_over = False

        async def keep_busy():
            while not is_over:
                async with admission.pinned(served, 0):
                    await asyncio.sleep(0.01)

        async def use_another():
            async with admission.pinned(served, 3):
                pass

        busy = []
        for _ in range(4):  # staggered, so one of them always holds the path
            busy.append(asyncio.create_task(keep_busy()))
            await asyncio.sleep(0.0025)
        try:
            await asyncio.wait_for(use_another(), 5)
        finally:
            is_over = True
            await asyncio.gather(*busy)

    asyncio.run(run())


def test_a_request_cancelled_while_its_path_is_read_leaves_no_pin(tight):
    admission = RequestAdmission(tight)
    served = tight.releases.current

    async def leave():
        async with admission.pinned(served, 0):
            waiting = asyncio.create_task(_hold(admission, served, 3))
            await asyncio.sleep(0.02)  # it waits for memory
            waiting.cancel()
        reading = asyncio.create_task(_hold(admission, served, 3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reading.cancel()
        async with admission.pinned(served, 1):
            assert tight.cache.stats().pinned == 1

    asyncio.run(leave())
    assert tight.cache.stats().pinned == 0


async def _hold(admission, served, path):
    async with admission.pinned(served, path):
        await asyncio.sleep(60)
