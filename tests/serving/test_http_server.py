"""`dipaco serve` as a process: signals, clients that disconnect, and requests that are not HTTP."""

import contextlib
import http.client
import json
import re
import resource
import signal
import socket
import sys
import threading
import time

import httpx
import pytest

from tests.support.server_process import LONG, Server, until
from tests.support.tiny_run import TOY

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.applications import Starlette

from dipaco.serving.http import connection_limit

REQUEST = {"model": "toy", "prompt": "jiji", "max_tokens": 4, "temperature": 0}


@pytest.fixture
def server(tiny, command_cache):
    server = Server(tiny.folder, command_cache, "--rows", "2")
    yield server
    server.process.kill()
    server.process.communicate()


def test_a_disconnected_client_frees_its_rows_and_sigterm_finishes_running_requests(server):
    connection, answer, line = server.begin(LONG)
    assert line.startswith(b"data: {")
    answer.close()
    connection.close()  # most of the answer is still to be made
    until(lambda: server.metric("hang_ups_total") == 1)
    until(lambda: server.metric("rows") == server.metric("waiting_requests") == 0)
    assert server.metric("cache_paths_in_use") == 0
    assert server.metric("completion_tokens_total") < LONG["n"] * LONG["max_tokens"]

    dashboard = server.connect()
    dashboard.request("GET", "/dashboard/")
    assert b"<title>" in dashboard.getresponse().read()
    dashboard.request("GET", "/dashboard/recording")
    recording = json.loads(dashboard.getresponse().read())
    assert (recording["name"], recording["seed"]) == ("toy", 0), "the run that is served"
    dashboard.request("GET", "/dashboard/changes?after=0")
    changes = dashboard.getresponse()  # an open page, which is not waited for
    assert changes.status == 200

    connection, answer, line = server.begin(LONG)
    server.process.send_signal(signal.SIGTERM)
    text = (line + answer.read()).decode()
    connection.close()
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    ended = [c["index"] for e in events for c in e["choices"] if c["finish_reason"]]
    assert text.endswith("data: [DONE]\n\n")
    assert sorted(ended) == list(range(LONG["n"]))
    assert server.end() == 0
    changes.read()
    dashboard.close()
    assert "running requests are finished first" in server.stderr
    done, total = re.findall(r": (\d+) of (\d+) programs", server.stderr, re.M)[-1]
    assert done == total
    assert "Traceback" not in server.stderr
    with pytest.raises(ConnectionRefusedError):
        server.connect().connect()


def test_a_second_signal_ends_open_requests_with_an_error(server):
    connection, answer, _ = server.begin(LONG | {"n": 128})
    late = server.connect()  # queued behind 128 texts on two rows
    kind = {"Content-Type": "application/json"}
    late.request("POST", "/v1/completions", json.dumps(LONG | {"n": 128}), kind)
    slow = server.connect()  # it never sends the rest
    slow.putrequest("POST", "/v1/completions")
    slow.putheader("Content-Type", "application/json")
    slow.putheader("Content-Length", "1000")
    slow.endheaders(b'{"model": ')
    # By the time of this later request, the head of `slow` has been read.
    until(lambda: server.metric("waiting_requests") > 128)
    server.process.send_signal(signal.SIGTERM)
    server.stderr += server.process.stderr.readline()
    server.process.send_signal(signal.SIGTERM)
    response = late.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (503, "stopping")
    response = slow.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (503, "stopping")
    answer.read()
    slow.close()
    late.close()
    connection.close()
    assert server.end() == 0
    assert "Traceback" not in server.stderr


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


def test_what_prevents_serving_is_a_sentence(dipaco, tiny, tmp_path):
    def error_of(*options, code=2):
        ended = dipaco("serve", *options)
        assert (ended.code, ended.out) == (code, "")
        return ended.err

    (tmp_path / "keys").write_text("\ufeff\n \n")
    run = ("--run", tiny.folder)
    assert "NoSuchRun" in error_of("--run", tmp_path / "nothing")
    assert "there is no key in it" in error_of(*run, "--api-key-file", tmp_path / "keys")
    assert "NoSuchRelease" in error_of(*run, "--release", 99)
    assert "`--path-bytes` is '3 apples'" in error_of(*run, "--path-bytes", "3 apples")
    assert "PathCacheTooSmall" in error_of(*run, "--path-bytes", "1K", "--port", 0)
    assert "`--rows` is 1000000000. Expected at most" in error_of(
        *run, "--rows", 10**9, "--port", 0
    )
    assert "`--replicas` is '4'. Expected `--engine ray` beside it" in error_of(
        *run, "--replicas", "4"
    )
    assert "`--connections` is 1000000000. Expected at most" in error_of(
        *run, "--connections", 10**9
    )
    assert "CannotListen" in error_of(*run, "--host", "203.0.113.1")


def test_garbage_is_collected_of_requests_only(tiny, command_cache, tmp_path):
    """What is there when the programs are compiled is a lot, and is not looked at again."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, gc, sys\n"
        "say = lambda: print('kept', gc.get_freeze_count(), 'objects', file=sys.stderr)\n"
        "atexit.register(say)\n"
    )
    server = Server(tiny.folder, command_cache, "--rows", "2", path=(tmp_path,))
    server.metric("rows")  # it answers, so it notices signals
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    found = re.search(r"kept (\d+) objects", server.stderr)
    assert found, server.stderr
    assert int(found[1]) > 100_000


@pytest.mark.slow
def test_without_accelerators_paths_are_spread_over_parts_of_the_cpu(tiny, command_cache):
    server = Server(tiny.folder, command_cache, "--rows", "2", "--devices", "2")
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=300) as client:
            for path in range(TOY.topology.num_paths):
                answer = client.post("/v1/completions", json=REQUEST | {"path": path})
                assert answer.status_code == 200, answer.text
        assert server.metric("replicas") == 2
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    finally:
        server.process.kill()
    programs = re.findall(r": (\d+) of (\d+) programs", server.stderr, re.M)
    assert programs[-1][0] == programs[-1][1], server.stderr


@pytest.fixture
def many_files():
    """This process may open as many files as the system allows it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    connection_limit.raise_file_limit()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.slow
def test_half_open_connections_beyond_the_limit_of_open_files_do_not_stop_the_server(
    tiny, command_cache, many_files
):
    server = Server(tiny.folder, command_cache, "--rows", "2", max_files=(512, 1024))
    try:
        if sys.platform == "linux":
            raised = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
            assert raised == (1024, 1024)
        with contextlib.ExitStack() as half_open:
            for _ in range(1100):
                half_open.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            url = f"http://127.0.0.1:{server.port}"
            for _ in range(5):
                assert httpx.get(f"{url}/healthz", timeout=10).status_code == 200
            body = REQUEST | {"n": 4}
            assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "Too many open files" not in server.stderr
        assert "out of system resource" not in server.stderr
    finally:
        server.process.kill()
        server.process.communicate()


# --- clients that send or read badly, over a socket ---------------------------------------------


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


@pytest.mark.parametrize("size", [50_000, 66_000, 130_000, 200_000, 3_000_000])
def test_a_large_body_does_not_count_as_headers_however_it_arrives(narrow_port, size):
    body = json.dumps(REQUEST | {"max_tokens": 1}).encode().ljust(size)
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


def test_many_requests_in_one_packet_do_not_count_as_long_headers(narrow_port):
    one = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n"
    with socket.create_connection(("127.0.0.1", narrow_port), timeout=30) as client:
        client.sendall(3000 * one)
        found = b""
        while found.count(b"HTTP/1.1 200") < 3000:
            found += (more := client.recv(1 << 20))
            assert more, found[-500:]


def test_an_offer_to_upgrade_to_http_2_is_ignored(narrow_port):
    url = f"http://127.0.0.1:{narrow_port}/v1/completions"
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAM"}
    read = httpx.post(url, json=REQUEST | {"max_tokens": 1}, headers=offer, timeout=60)
    assert (read.status_code, read.json()["usage"]["completion_tokens"]) == (200, 1)


def test_a_client_that_reads_nothing_counts_as_disconnected(narrow_port):
    body = REQUEST | {"n": 30, "max_tokens": 50, "temperature": 1, "logprobs": 5, "stream": True}
    url = f"http://127.0.0.1:{narrow_port}"
    read = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert read.text.endswith("[DONE]\n\n")
    assert "dipaco_hang_ups_total 0.0" in httpx.get(f"{url}/metrics").text
    body = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n"
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.connect(("127.0.0.1", narrow_port))
        idle.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        for _ in range(60):
            metrics = httpx.get(f"{url}/metrics").text
            if "dipaco_hang_ups_total 1.0" in metrics:
                break
            time.sleep(0.25)
        else:
            raise AssertionError(metrics)
        received = idle.recv(1000)  # what had been sent before
        assert received.startswith(b"HTTP/1.1 200 OK")


def test_of_too_many_connections_those_whose_clients_are_silent_go_first(crowded_port):
    body = json.dumps(REQUEST | {"n": 30, "max_tokens": 50, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n"
    head = head.encode() + b"Content-Type: application/json\r\n\r\n"
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
    monkeypatch.setattr(connection_limit.ConnectionLimit, "waits", lambda *_: None)
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

    limit, clients = connection_limit.ConnectionLimit(2), [Client() for _ in range(6)]
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
