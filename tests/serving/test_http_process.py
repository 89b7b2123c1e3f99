"""The real thing: `dipaco serve` as a process, a client that hangs up, SIGTERM in mid-stream."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from tiny_run import HOME

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

# Far more rows than are decoded at once, so that it takes a while.
LONG = {"model": "tiny", "prompt": "jiji", "n": 96, "max_tokens": 50, "temperature": 1.0}


class Server:
    """A process, and the port that it says it listens on."""

    def __init__(self, folder, cache, *options):
        command = [sys.executable, "-m", "dipaco.cli.main", "serve", "--run", folder, "--port", "0"]
        environment = os.environ | {
            "XLA_FLAGS": "",
            "PYTHONPATH": str(HOME),
            "DIPACO_CACHE": str(cache),
        }
        self.process = subprocess.Popen(
            [*map(str, command), *options], stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stderr
        self.said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", self.said)):
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.said}"
            self.said += line
        self.port = int(found[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def begin(self, body):
        """A stream, after its first line."""
        connection = self.connect()
        connection.request(
            "POST",
            "/v1/completions",
            json.dumps(body | {"stream": True}),
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return connection, answer, answer.readline()

    def metric(self, name):
        connection = self.connect()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return float(re.search(rf"^dipaco_{name} (\S+)$", text, re.MULTILINE)[1])

    def end(self):
        """Waits; the exit code."""
        self.said += self.process.communicate(timeout=60)[1]
        return self.process.returncode


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def server(tiny, cache):
    server = Server(tiny.folder, cache, "--rows", "2")
    yield server
    server.process.kill()
    server.process.communicate()


def until(is_so):
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError("it never came to that")


def test_a_client_that_hangs_up_frees_its_rows_and_sigterm_finishes_what_runs(server):
    connection, answer, line = server.begin(LONG)
    assert line.startswith(b"data: {")
    answer.close()
    connection.close()  # the reader is gone; the server has most of it still to do
    until(lambda: server.metric("hang_ups_total") == 1)
    until(lambda: server.metric("rows") == server.metric("waiting_requests") == 0)
    assert server.metric("cache_paths_in_use") == 0
    assert server.metric("completion_tokens_total") < LONG["n"] * LONG["max_tokens"]

    connection, answer, line = server.begin(LONG)
    server.process.send_signal(signal.SIGTERM)
    told = (line + answer.read()).decode()
    connection.close()
    events = [json.loads(line[6:]) for line in told.split("\n") if line.startswith("data: {")]
    ended = [c["index"] for e in events for c in e["choices"] if c["finish_reason"]]
    assert told.endswith("data: [DONE]\n\n")
    assert sorted(ended) == list(range(LONG["n"]))
    assert server.end() == 0
    assert "the requests that run are finished first" in server.said
    assert "Traceback" not in server.said
    with pytest.raises(ConnectionRefusedError):
        server.connect().connect()


def test_what_makes_serving_impossible_is_a_sentence(dipaco, tiny, tmp_path):
    def said(*options, code=2):
        ended = dipaco("serve", *options)
        assert (ended.code, ended.out) == (code, "")
        return ended.err

    (tmp_path / "keys").write_text("\n \n")
    run = ("--run", tiny.folder)
    assert "NoSuchRun" in said("--run", tmp_path / "nothing")
    assert "there is no key in it" in said(*run, "--api-key-file", tmp_path / "keys")
    assert "NotYet" in said(*run, "--release", 99)
    assert "`--path-bytes` is '3 apples'" in said(*run, "--path-bytes", "3 apples")
    assert "PathCacheTooSmall" in said(*run, "--path-bytes", "1K", "--port", 0)
    assert "CannotListen" in said(*run, "--host", "203.0.113.1")
