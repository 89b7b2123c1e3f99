"""`dipaco serve` as a process: signals, clients that disconnect, and what it refuses to begin."""

import contextlib
import json
import re
import resource
import signal
import socket
import sys

import httpx
import pytest

from dipaco.cli.main import main
from dipaco.files import raise_file_limit
from dipaco.runs import programs
from tests.support.server_process import LONG, Server
from tests.support.waiting import until

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")


REQUEST = {"model": "toy", "prompt": "jiji", "max_tokens": 4, "temperature": 0}


SAYS_WHAT_IS_KEPT = """\
import atexit, gc, sys
say = lambda: print('kept', gc.get_freeze_count(), 'objects', file=sys.stderr)
atexit.register(say)
"""


@pytest.fixture
def server(tiny, command_cache, tmp_path, monkeypatch):
    """It makes one text at a time, by few programs, compiled for a call or two."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    (tmp_path / "sitecustomize.py").write_text(SAYS_WHAT_IS_KEPT)
    options = ("--rows", "1", "--waiting", "2000")
    server = Server(tiny.folder, command_cache, *options, path=(tmp_path,))
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
    assert server.metric("generation_tokens_total") < LONG["n"] * LONG["max_tokens"]

    corpus = server.connect()  # what the model was trained on is not for those who may ask it
    for each in ("/dashboard/", "/dashboard/recording", "/dashboard/texts"):
        corpus.request("GET", each)
        answer = corpus.getresponse()
        assert (answer.status, b"corpus" in answer.read()) == (404, False)
    corpus.close()

    server.read_until("compiled for requests of any length")
    connection, answer, line = server.begin(LONG | {"n": 24})
    server.process.send_signal(signal.SIGTERM)
    text = (line + answer.read()).decode()
    connection.close()
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    ended = [c["index"] for e in events for c in e["choices"] if c["finish_reason"]]
    assert text.endswith("data: [DONE]\n\n")
    assert sorted(ended) == list(range(24))
    assert server.end() == 0
    assert "running requests are finished first" in server.stderr
    done, total = re.findall(r": (\d+) of (\d+) programs", server.stderr, re.M)[-1]
    assert done == total
    assert "Traceback" not in server.stderr
    with pytest.raises(ConnectionRefusedError):
        server.connect().connect()
    # What is there when the programs are compiled is a lot, and no garbage is looked for in it.
    found = re.search(r"kept (\d+) objects", server.stderr)
    assert found, server.stderr
    assert int(found[1]) > 100_000


def test_a_second_signal_ends_open_requests_with_an_error(server):
    connection, answer, _ = server.begin(LONG | {"n": 128})
    kind = {"Content-Type": "application/json"}
    late = [server.connect() for _ in range(7)]  # a thousand texts, one at a time
    for each in late:
        each.request("POST", "/v1/completions", json.dumps(LONG | {"n": 128}), kind)
    slow = server.connect()  # it never sends the rest
    slow.putrequest("POST", "/v1/completions")
    slow.putheader("Content-Type", "application/json")
    slow.putheader("Content-Length", "1000")
    slow.endheaders(b'{"model": ')
    # By the time of this later request, the head of `slow` has been read.
    until(lambda: server.metric("waiting_requests") > 6 * 128)
    server.process.send_signal(signal.SIGTERM)
    server.stderr += server.process.stderr.readline()
    server.process.send_signal(signal.SIGTERM)
    for each in (*late, slow):
        response = each.getresponse()
        assert (response.status, json.loads(response.read())["error"]["code"]) == (503, "stopping")
        each.close()
    answer.read()
    connection.close()
    assert server.end() == 0
    assert "Traceback" not in server.stderr


def test_what_prevents_serving_is_a_sentence(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(programs, "use_compilation_cache", lambda: None)
    monkeypatch.setattr("dipaco.files.raise_file_limit", lambda: None)

    def error_of(*options):
        assert main(["serve", *map(str, options), "--port", "0"]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    (tmp_path / "keys").write_text("\ufeff\n \n")
    run = ("--run", tiny.folder)
    assert "NoSuchRun" in error_of("--run", tmp_path / "nothing")
    assert "there is no key in it" in error_of(*run, "--api-key-file", tmp_path / "keys")
    assert "NoSuchRelease" in error_of(*run, "--release", 99)
    assert "`--path-bytes` is '3 apples'" in error_of(*run, "--path-bytes", "3 apples")
    assert "PathCacheTooSmall" in error_of(*run, "--path-bytes", "1K")
    assert "`--rows` is 1000000000. Expected at most" in error_of(*run, "--rows", 10**9)
    assert "`--paths` is '0,9'. Expected paths from 0 to 3" in error_of(*run, "--paths", "0,9")
    (tmp_path / "cells.yaml").write_text("0-2: {url: 'http://localhost:1'}")
    router = (*run, "--upstream", tmp_path / "cells.yaml")
    assert "paths 3 have none" in error_of(*router)
    (tmp_path / "cells.yaml").write_text("0-3: {url: 'http://localhost:1'}")
    assert "no upstream answers: http://localhost:1: Cannot connect" in error_of(*router)
    alone = "`--paths` is '0'. Expected left out beside `--upstream`"
    assert alone in error_of(*router, "--paths", "0")
    many = "`--connections` is 1000000000. Expected at most"
    assert many in error_of(*run, "--connections", 10**9)
    assert "CannotListen" in error_of(*run, "--host", "203.0.113.1")
    assert "`--tls-key`" in error_of(*run, "--tls-key", tmp_path / "keys")
    assert "a certificate in PEM" in error_of(*run, "--tls-cert", tmp_path / "keys")


@pytest.fixture
def many_files():
    """This process may open as many files as the system allows it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_file_limit()
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
