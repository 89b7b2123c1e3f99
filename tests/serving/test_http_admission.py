"""Coming in: paths larger than the memory take turns, and a busy few do not keep the others out."""

import asyncio
import http.client
import json
import socket
import time

import httpx
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.serving import path_admission as room
from dipaco.serving.http.admission import RequestAdmission
from dipaco.serving.http.app import make_app
from dipaco.serving.service import Service, ServiceSettings

ASKED = {"model": "toy", "prompt": "jiji", "max_tokens": 4, "temperature": 0}


@pytest.fixture
def tight(tiny, limits):
    """A service with room for one path at a time, of four."""
    with Service(tiny.folder, say=lambda _: None) as roomy:
        modules = roomy.releases.now.modules_of(0)
    most = sum(receipt.num_bytes for receipt in modules.values()) + 1000
    settings = ServiceSettings(limits=limits, path_bytes=most)
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        service.start()
        yield service


def in_process(service):
    transport = httpx.ASGITransport(make_app(service))
    return httpx.AsyncClient(transport=transport, base_url="http://here", timeout=60)


def test_a_run_that_is_larger_than_the_memory_is_served_whole(tight, client):
    def expected(path):
        told = client.post("/v1/completions", json=ASKED | {"path": path}).json()
        return told["choices"][0]["text"]

    async def all_at_once():
        async with in_process(tight) as asking:
            answers = await asyncio.gather(
                *(asking.post("/v1/completions", json=ASKED | {"path": i % 4}) for i in range(12))
            )
            return [answer.json()["choices"][0]["text"] for answer in answers]

    assert asyncio.run(all_at_once()) == [expected(i % 4) for i in range(12)]
    stats = tight.cache.stats()
    assert stats.num_bytes <= tight.cache.max_bytes
    assert (stats.paths, stats.pinned) == (1, 0)
    assert stats.evictions >= 3


def test_one_request_may_need_more_paths_than_fit(tight, prompts):
    async def one():
        async with in_process(tight) as asking:
            return await asking.post("/v1/completions", json=ASKED | {"prompt": prompts})

    answer = asyncio.run(one())
    assert answer.status_code == 200, answer.text
    assert len({choice["path"] for choice in answer.json()["choices"]}) > 1


def test_a_busy_path_lets_another_in_when_it_has_waited_long(tight, monkeypatch):
    monkeypatch.setattr(room, "PATIENCE_SECONDS", 0.05)
    door, served = RequestAdmission(tight), tight.releases.now

    async def crowd():
        is_over = False

        async def keep_busy():
            while not is_over:
                async with door.holding(served, 0):
                    await asyncio.sleep(0.01)

        async def come_in():
            async with door.holding(served, 3):
                pass

        busy = []
        for _ in range(4):  # in turn, so that one of them is always inside
            busy.append(asyncio.create_task(keep_busy()))
            await asyncio.sleep(0.0025)
        try:
            await asyncio.wait_for(come_in(), 5)
        finally:
            is_over = True
            await asyncio.gather(*busy)

    asyncio.run(crowd())


def test_whoever_leaves_while_a_path_is_read_leaves_no_pin_behind(tight):
    door = RequestAdmission(tight)
    served = tight.releases.now

    async def leave():
        async with door.holding(served, 0):
            waiting = asyncio.create_task(_hold(door, served, 3))
            await asyncio.sleep(0.02)  # it waits for room
            waiting.cancel()
        reading = asyncio.create_task(_hold(door, served, 3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reading.cancel()
        async with door.holding(served, 1):
            assert tight.cache.stats().pinned == 1

    asyncio.run(leave())
    assert tight.cache.stats().pinned == 0


async def _hold(door, served, path):
    async with door.holding(served, path):
        await asyncio.sleep(60)


def test_who_asks_nothing_or_without_end_is_sent_away(narrow_port):
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as silent:
        assert silent.recv(100) == b""
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as endless:
        endless.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\nX-Long: " + b"z" * 70_000)
        assert endless.recv(100).startswith(b"HTTP/1.1 4")


def test_who_begins_a_second_request_and_goes_no_further_is_sent_away(narrow_port):
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
        slow.sendall(b"G")
        while slow.recv(1000):
            pass


@pytest.mark.parametrize("size", [50_000, 66_000, 130_000, 200_000, 3_000_000])
def test_a_large_body_is_no_head_however_it_comes(narrow_port, size):
    body = json.dumps(ASKED | {"max_tokens": 1}).encode().ljust(size)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {size}\r\n"
    head = head.encode() + b"Content-Type: application/json\r\n\r\n"
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as client:
        for pieces in ([head + body], [head, body], [head + body[:100], body[100:]], [head + body]):
            for piece in pieces:
                client.sendall(piece)
                time.sleep(0.05)
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert (answer.status, json.loads(answer.read())["object"]) == (200, "text_completion")


def test_many_requests_in_one_piece_are_no_long_head(narrow_port):
    one = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as client:
        client.sendall(3000 * one)
        found = b""
        while found.count(b"HTTP/1.1 200") < 3000:
            found += (more := client.recv(1 << 20))
            assert more, found[-500:]


def test_an_offer_to_go_on_in_http_2_is_not_taken_and_costs_nothing(narrow_port):
    url = f"http://127.0.0.1:{narrow_port}/v1/completions"
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAM"}
    read = httpx.post(url, json=ASKED | {"max_tokens": 1}, headers=offer, timeout=60)
    assert (read.status_code, read.json()["usage"]["completion_tokens"]) == (200, 1)


def test_a_client_that_reads_nothing_is_one_that_hung_up(narrow_port):
    asked = ASKED | {"n": 30, "max_tokens": 50, "temperature": 1, "logprobs": 5, "stream": True}
    url = f"http://127.0.0.1:{narrow_port}"
    read = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
    assert read.text.endswith("[DONE]\n\n")
    assert "dipaco_hang_ups_total 0.0" in httpx.get(f"{url}/metrics").text
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n"
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect(("127.0.0.1", narrow_port))
        idle.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        for _ in range(60):
            told = httpx.get(f"{url}/metrics").text
            if "dipaco_hang_ups_total 1.0" in told:
                break
            time.sleep(0.25)
        else:
            raise AssertionError(told)
        said = idle.recv(1000)  # what had been sent before
        assert said.startswith(b"HTTP/1.1 200 OK")
