"""The real thing: `dipaco serve` as a process, a client that hangs up, SIGTERM in mid-stream."""

import json
import signal
import threading

import pytest

from tests.support.server_process import LONG, Server, until

pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from starlette.applications import Starlette


@pytest.fixture
def server(tiny, command_cache):
    server = Server(tiny.folder, command_cache, "--rows", "2")
    yield server
    server.process.kill()
    server.process.communicate()


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


def test_at_the_second_signal_who_is_not_done_is_told_that_it_stops(server):
    connection, answer, _ = server.begin(LONG | {"n": 128})
    late = server.connect()  # behind the first: 128 texts with two rows
    kind = {"Content-Type": "application/json"}
    late.request("POST", "/v1/completions", json.dumps(LONG | {"n": 128}), kind)
    slow = server.connect()  # it never sends the rest
    slow.putrequest("POST", "/v1/completions")
    slow.putheader("Content-Type", "application/json")
    slow.putheader("Content-Length", "1000")
    slow.endheaders(b'{"model": ')
    # Asked after it, in the same event loop: by then its head has been read.
    until(lambda: server.metric("waiting_requests") > 128)
    server.process.send_signal(signal.SIGTERM)
    server.said += server.process.stderr.readline()
    server.process.send_signal(signal.SIGTERM)
    told = late.getresponse()
    assert (told.status, json.loads(told.read())["error"]["code"]) == (503, "stopping")
    told = slow.getresponse()
    assert (told.status, json.loads(told.read())["error"]["code"]) == (503, "stopping")
    answer.read()
    slow.close()
    late.close()
    connection.close()
    assert server.end() == 0
    assert "Traceback" not in server.said


def test_a_signal_in_the_middle_of_another_is_the_second():
    from dipaco.serving.http.server import _Server, http_config

    said, is_cut_off = [], threading.Event()

    def say(sentence):
        said.append(sentence)
        server._stop(signal.SIGTERM, None)  # the handler is not done with the first

    server = _Server(http_config(Starlette()), 3600, say, is_cut_off.set)
    server._stop(signal.SIGTERM, None)
    server._stop(signal.SIGTERM, None)  # the third changes nothing
    assert is_cut_off.wait(60)
    until(lambda: server.force_exit)
    assert server.should_exit
    assert len(said) == 1


def test_what_makes_serving_impossible_is_a_sentence(dipaco, tiny, tmp_path):
    def said(*options, code=2):
        ended = dipaco("serve", *options)
        assert (ended.code, ended.out) == (code, "")
        return ended.err

    (tmp_path / "keys").write_text("\ufeff\n \n")
    run = ("--run", tiny.folder)
    assert "NoSuchRun" in said("--run", tmp_path / "nothing")
    assert "there is no key in it" in said(*run, "--api-key-file", tmp_path / "keys")
    assert "NoSuchRelease" in said(*run, "--release", 99)
    assert "`--path-bytes` is '3 apples'" in said(*run, "--path-bytes", "3 apples")
    assert "PathCacheTooSmall" in said(*run, "--path-bytes", "1K", "--port", 0)
    assert "`--rows` is 1000000000. Expected at most" in said(*run, "--rows", 10**9, "--port", 0)
    assert "`--replicas` is '4'. Expected `--engine ray` beside it" in said(*run, "--replicas", "4")
    assert "CannotListen" in said(*run, "--host", "203.0.113.1")
