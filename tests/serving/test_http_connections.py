"""Clients that send or read badly, over a socket, and connections beyond the limit."""

import asyncio
import contextlib
import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import httpx
import pytest

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from dipaco.serving.http import server
from tests.support.serving_rig import error_of, post
from tests.support.waiting import until

REQUEST = {"model": "toy", "prompt": "jiji", "max_tokens": 4, "temperature": 0}


@pytest.mark.slow
def test_a_client_that_sends_nothing_or_endless_headers_is_disconnected(narrow_port):
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as silent:
        assert silent.recv(100) == b""
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as endless:
        endless.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\nX-Long: " + b"z" * 70_000)
        assert endless.recv(100).startswith(b"HTTP/1.1 4")


def test_a_second_request_without_a_complete_head_is_disconnected(narrow_port):
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
        slow.sendall(b"G")
        while slow.recv(1000):
            pass


@pytest.mark.parametrize("size", [66_000, 3_000_000])
def test_a_large_body_does_not_count_as_headers_however_it_arrives(narrow_port, size):
    head, body = post(REQUEST | {"max_tokens": 1}, size)
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as client:
        for pieces in ([head + body], [head, body], [head + body[:100], body[100:]], [head + body]):
            for piece in pieces:
                client.sendall(piece)
                time.sleep(0.05)
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert (answer.status, json.loads(answer.read())["object"]) == (200, "text_completion")


def test_many_requests_in_one_packet_do_not_count_as_long_headers(narrow_port):
    one = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as client:
        client.sendall(3000 * one)
        found = b""
        while found.count(b"HTTP/1.1 200") < 3000:
            found += (more := client.recv(1 << 20))
            assert more, found[-500:]


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.3, foo"])
def test_an_offer_to_upgrade_is_ignored(narrow_port, protocol):
    url = f"http://127.0.0.1:{narrow_port}/v1/completions"
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": protocol, "HTTP2-Settings": "AAM"}
    read = httpx.post(url, json=REQUEST | {"max_tokens": 1}, headers=offer, timeout=60)
    assert (read.status_code, read.json()["usage"]["completion_tokens"]) == (200, 1)


@pytest.mark.parametrize(
    "sent",
    [
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"CONNECT /healthz HTTP/1.1\r\nHost: here\r\n\r\nabc",
        b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + bytes(100),  # TLS
        b"\x05\x01\x00",  # SOCKS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: here\r\nX: a\0b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_answered_in_json_and_not_logged(narrow_port, caplog, sent):
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as client:
        client.sendall(sent)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert (answer.status, json.loads(answer.read())["error"]["message"]) == (
            400,
            server.NO_HTTP,
        )
        assert client.recv(1) == b""
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_nonsense_behind_a_request_is_not_answered_in_its_place(narrow_port):
    one = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as client:
        client.sendall(one + b"NONSENSE\r\n\r\n")
        found = b"".join(iter(lambda: client.recv(1000), b""))
    assert b" 400 " not in found


def test_a_client_that_reads_nothing_counts_as_disconnected(narrow_port):
    body = REQUEST | {"n": 30, "max_tokens": 50, "temperature": 1, "logprobs": 5, "stream": True}
    url = f"http://127.0.0.1:{narrow_port}"
    read = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert read.text.endswith("[DONE]\n\n")
    assert "dipaco_hang_ups_total 0.0" in httpx.get(f"{url}/metrics").text
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect(("127.0.0.1", narrow_port))
        idle.sendall(b"".join(post(body)))
        until(lambda: "dipaco_hang_ups_total 1.0" in httpx.get(f"{url}/metrics").text)
        received = idle.recv(1000)  # what had been sent before
        assert received.startswith(b"HTTP/1.1 200 OK")


def test_of_too_many_connections_those_whose_clients_are_silent_go_first(crowded_port):
    head, body = post(REQUEST | {"n": 30, "max_tokens": 50, "stream": True})
    with contextlib.ExitStack() as opened:

        def connect(content=b""):
            client = socket.create_connection(("127.0.0.1", crowded_port), timeout=60)
            client.sendall(content)
            return opened.enter_context(client)

        reader = connect(head + body)
        assert reader.recv(15) == b"HTTP/1.1 200 OK"
        kept_alive = httpx.Client(base_url=f"http://127.0.0.1:{crowded_port}")
        opened.enter_context(kept_alive)
        assert kept_alive.get("/healthz").status_code == 200
        silent = [connect(start) for start in (b"", b"GET /he", head, head + body[:9]) * 10]
        for _ in range(3):
            url = f"http://127.0.0.1:{crowded_port}/healthz"
            assert httpx.get(url, timeout=10).json()["status"] == "ok"
        for client in silent[:18]:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(100) == b""
        received = b""
        while not received.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
            received += (more := reader.recv(1 << 20))
            assert more, received[-200:]


def test_a_refused_connection_is_told_why(crowded_port, monkeypatch):
    monkeypatch.setattr(server.ConnectionLimit, "waits", lambda *_: None)
    with contextlib.ExitStack() as opened:
        for _ in range(20):
            opened.enter_context(socket.create_connection(("127.0.0.1", crowded_port)))
        client = socket.create_connection(("127.0.0.1", crowded_port), timeout=30)
        answer = http.client.HTTPResponse(opened.enter_context(client))
        answer.begin()
        assert (answer.status, answer.getheader("Retry-After")) == (503, "1")
        assert json.loads(answer.read())["error"]["code"] == "too_many_connections"


def test_when_every_connection_is_being_answered_the_next_one_is_refused():
    class Client:
        end = None

        def shed(self):
            self.end = "shed"

        def refuse(self):
            self.end = "refused"

    limit, clients = server.ConnectionLimit(2), [Client() for _ in range(6)]
    for client in clients[:2]:
        limit.opened(client)
        limit.is_served(client)
    limit.opened(clients[2])
    limit.waits(clients[0])
    limit.waits(clients[1])
    limit.opened(clients[3])
    limit.closed(clients[1])
    limit.opened(clients[4])
    limit.opened(clients[5])
    assert [client.end for client in clients] == ["shed", None, "refused", "shed", None, None]


def test_a_signal_during_the_handling_of_another_counts_as_the_second():
    from dipaco.serving.http.server import _Server, http_config

    notices, is_cut_off = [], threading.Event()

    def say(sentence):
        notices.append(sentence)
        server._on_signal(signal.SIGTERM, None)  # the handler of the first is still running

    server = _Server(http_config(Starlette()), 3600, say, is_cut_off.set)
    server._on_signal(signal.SIGTERM, None)
    server._on_signal(signal.SIGTERM, None)  # a third changes nothing
    assert is_cut_off.wait(60)
    until(lambda: server.force_exit)
    assert server.should_exit
    assert len(notices) == 1


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("app.localhost", True),
        ("127.0.0.1:1", True),
        ("[::1]:8000", True),
        ("here.lan:8000", True),
        ("evil.example:8000", False),
        ("localhost.evil.example", False),
        ("0.0.0.0:8000", False),
        ("192.168.1.5", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_on_loopback_only_names_of_this_machine_are_answered(name, is_known):
    """A page of another site asks by its own name, which leads here."""
    from starlette.testclient import TestClient

    app = Starlette(routes=[Route("/", lambda request: Response("a text"))])
    with server.listen("127.0.0.1", 0) as listening:
        local = TestClient(server.app_of_known_hosts(app, listening, "here.lan"))
        answer = local.get("/", headers={"Host": name})
        if is_known:
            assert answer.text == "a text"
        else:
            assert "localhost" in error_of(answer, 403, code="unknown_host")
            twice = local.get("/", headers=[("Host", "localhost"), ("Host", name)])
            assert f"no host `{name}`" in error_of(twice, 403, code="unknown_host")
    with server.listen("0.0.0.0", 0) as listening:
        anywhere = TestClient(server.app_of_known_hosts(app, listening, "0.0.0.0"))
        assert anywhere.get("/", headers={"Host": name}).text == "a text"


def test_requests_that_were_sent_before_sigterm_are_answered():
    """They wait in the kernel, some in connections that nobody has accepted."""
    app = Starlette(routes=[Route("/", lambda request: Response("a text"))])
    with server.listen("127.0.0.1", 0) as listening, contextlib.ExitStack() as stack:
        clients = [socket.create_connection(listening.getsockname()) for _ in range(40)]
        for each in clients:
            stack.enter_context(each)
            each.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        ends = server._Server(server.http_config(app), 60.0, print, lambda: None)
        ends.should_exit = True
        asyncio.run(ends._serve([listening]))
        for each in clients:
            answer = b"".join(iter(lambda each=each: each.recv(1000), b""))
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"\r\nconnection: close\r\n" in answer.lower()
            assert answer.endswith(b"a text")


def test_a_server_that_starts_says_so_and_its_port_stays_open():
    with server.listen("127.0.0.1", 0) as listening:
        url = "http://{}:{}".format(*listening.getsockname())
        with server.answering_that_it_starts(listening):
            for path in ("/healthz", "/v1/models"):
                answer = httpx.get(f"{url}{path}")
                assert (answer.status_code, answer.json()["status"]) == (503, "starting")
                assert answer.json()["error"]["code"] == "starting"
                assert answer.headers["Retry-After"] == "5"
        with socket.create_connection(listening.getsockname()) as late:  # waits for what comes
            late.setblocking(False)
            with pytest.raises(BlockingIOError):
                late.recv(1)


@pytest.mark.parametrize("num_headers", [1, 100])
def test_large_headers_that_come_at_once_are_refused(url, num_headers):
    port = int(url.rpartition(":")[2])
    for size, status in ((60_000, b"200"), (100_000, b"400")):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            header = b"X-Long: " + b"z" * (size // num_headers - 10) + b"\r\n"
            head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + header * num_headers
            client.sendall(head + b"\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 " + status)


def test_with_a_certificate_it_speaks_https(service, serving, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("it makes the certificate")
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run([openssl, *made], check=True, capture_output=True)
    trusted = ssl.create_default_context(cafile=certificate)
    with serving(service, tls=server.TlsFiles(certificate, key)) as url:
        url = url.replace("http://127.0.0.1", "https://localhost") + "/v1/completions"
        assert httpx.post(url, json=REQUEST, verify=trusted, timeout=60).status_code == 200
