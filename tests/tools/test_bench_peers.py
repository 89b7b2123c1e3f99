"""`tools/bench_peers.py` without the rivals: a report of the load generator, servers that are made
up, and what is said of those that fail.
"""

import http.server
import itertools
import json
import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import bench_peers
import pytest
from rivals import peers
from rivals.contest import Contest, Running, lines, same_texts, start, summary
from rivals.installed import Installed, NotInstalled
from rivals.load_generator import LoadFailed, LoadGenerator, read_report
from rivals.peers import Peer
from rivals.server_process import ServerFailed, ServerProcess
from support.http_thread import HttpThread

NEW_TOKENS = 8


def report(answered=4, tokens=None, errors=(), rate=100.0):
    return {
        "request_count": {"avg": float(answered)},
        "total_output_tokens": {"avg": float(answered * NEW_TOKENS if tokens is None else tokens)},
        "output_token_throughput": {"unit": "tokens/sec", "avg": rate},
        "time_to_first_token": {"unit": "ms", "p50": 10.0, "p95": 30.0},
        "error_summary": list(errors),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps(report(answered=3)), "3 of 4 requests were answered"),
        (
            json.dumps(report(errors=[{"count": 2, "error_details": {"message": "full"}}])),
            "2 times .*full",
        ),
        (json.dumps(report(tokens=31)), "answered with 31 in all, not 32"),
        (json.dumps(report(rate=0.0)), "0.0 tokens a second"),
        ("{", "not as expected"),
        (json.dumps({**report(), "time_to_first_token": {}}), "not as expected: KeyError"),
    ],
)
def test_a_load_that_was_not_answered_as_asked_is_refused(text, says):
    with pytest.raises(LoadFailed, match=says):
        read_report(text, 4, NEW_TOKENS)


FAKE_AIPERF = f"""\
    #!{sys.executable}
    import json, pathlib, sys
    words = dict(zip(sys.argv, sys.argv[1:]))
    if "broken" in words["--url"]:
        sys.exit("cannot reach the server")
    requests = [json.loads(line) for line in open(words["--input-file"])]
    number = int(words["--request-count"])
    assert number + int(words["--warmup-request-count"]) == len(requests)
    tokens = number * requests[0]["output_length"]
    rate = 200.0 if "ours" in words["--url"] else 50.0
    report = {{
        "request_count": {{"avg": number}},
        "total_output_tokens": {{"avg": tokens}},
        "output_token_throughput": {{"avg": rate}},
        "time_to_first_token": {{"p50": 1.0, "p95": 2.0}},
    }}
    out = pathlib.Path(words["--output-artifact-dir"])
    (out / "profile_export_aiperf.json").write_text(json.dumps(report))
"""


@pytest.fixture
def generator(tmp_path):
    program = tmp_path / "aiperf"
    program.write_text(textwrap.dedent(FAKE_AIPERF))
    program.chmod(0o755)
    return LoadGenerator(program, tmp_path, tmp_path / "loads", NEW_TOKENS, limit_seconds=60)


class Process:
    """A server's, made up: it says whether it is held."""

    def __init__(self, url):
        self.url, self.log, self._seconds = url, [], 0.0

    def cpu_seconds(self):
        self._seconds += 2.0
        return self._seconds

    def go_on(self):
        self.log.append("go on")

    def hold(self):
        self.log.append("hold")


def running(name, url):
    peer = Peer(name, "m", lambda port, threads: [], fields=lambda path: {"path": path})
    return Running(peer, Process(url), 1)


def draw(number):
    return [str(each) for each in range(number)]


def test_servers_are_asked_in_turn_and_one_that_fails_is_left_out(generator, tmp_path):
    ours, theirs = running("ours", "http://ours"), running("theirs", "http://theirs")
    broken = running("broken", "http://broken")
    contest = Contest([ours, theirs, broken], generator, 3, draw)
    loads = contest.rounds(at_once=2, num_requests=4, number=2)
    assert {name: len(own) for name, own in loads.items()} == {"ours": 2, "theirs": 2}
    assert "exit code 1" in contest.left_out["broken"]
    assert "cannot reach the server" in contest.left_out["broken"]
    assert ours.process.log == ["go on", "hold"] * 2
    sent = (tmp_path / "loads" / "001" / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line)["extra"]["path"] for line in sent] == [0, 1, 2, 0, 1, 2]

    told = summary(loads)
    assert told["theirs"]["ours_to_theirs"] == [4.0, 4.0, 4.0]
    assert told["theirs"]["ours_to_theirs_cpu"] == [1.0, 1.0, 1.0]
    assert told["ours"]["tokens_per_second"] == 200.0
    assert told["ours"]["tokens_per_cpu_second"] == 6 * NEW_TOKENS / 2.0
    shown = lines(3, 2, told, {"ours": 0, "theirs": 2})
    assert "200" in shown[0]
    assert "4.00 [4.00, 4.00]" in shown[1]


def test_ours_is_not_left_out(generator):
    contest = Contest([running("ours", "http://broken")], generator, 1, draw)
    with pytest.raises(LoadFailed, match="cannot reach the server"):
        contest.rounds(at_once=1, num_requests=1, number=1)


class Completions(http.server.BaseHTTPRequestHandler):
    """Continues a prompt by its model's name; refuses those of path 9."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        refused = body.get("path") == 9
        tokens = len(body["prompt"].split()) + (body["model"] == "longer")
        told = {
            "choices": [{"text": "x" if body["model"] != "other" else "y"}],
            "usage": {"prompt_tokens": tokens},
        }
        data = b"no such path" if refused else json.dumps(told).encode()
        self.send_response(404 if refused else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


def test_a_server_with_another_model_or_tokenizer_is_refused():
    with HttpThread(Completions) as server:

        def of(model, path=0):
            peer = Peer(model, model, lambda *_: [], fields=lambda _: {"path": path})
            return Running(peer, Process(server.url), 1)

        assert same_texts(of("ours"), of("same"), ["a b", "c"], 1) == 2
        with pytest.raises(ServerFailed, match="reads 3 tokens of a prompt of 2"):
            same_texts(of("ours"), of("longer"), ["a b"], 1)
        with pytest.raises(ServerFailed, match="another model"):
            same_texts(of("ours"), of("other"), ["a b"], 1)
        with pytest.raises(ServerFailed, match="404: no such path"):
            same_texts(of("ours"), of("same", path=9), ["a b"], 1)


def served_by(words):
    return Peer("a server", "m", lambda port, _: [*words, str(port)], ready="/")


def test_a_server_is_held_until_it_may_go_on_and_is_ended_with_its_children(tmp_path):
    words = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1"]
    own = start(served_by(words), 1, tmp_path, limit_seconds=60)
    number = own.process._process.pid
    state = Path(f"/proc/{number}/stat")
    try:
        assert _becomes(lambda: state.read_text().rpartition(")")[2].split()[0] == "T")
        with own.going_on():
            assert _becomes(lambda: state.read_text().rpartition(")")[2].split()[0] != "T")
    finally:
        own.process.stop()
    assert not state.exists()


def test_processor_time_is_that_of_its_children_too(tmp_path):
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    words = [sys.executable, "-c"]
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}]).wait(); "
    process = ServerProcess(
        [*words, parent + "import time; time.sleep(600)"], {}, "", "/", tmp_path / "log"
    )
    try:
        assert _becomes(lambda: process.cpu_seconds() >= 0.3)
    finally:
        process.stop()


def test_a_server_that_ends_says_its_last_lines(tmp_path):
    words = [sys.executable, "-c", "import sys; sys.exit('no room for the cache')"]
    with pytest.raises(ServerFailed, match=r"(?s)exit code 1.*no room for the cache"):
        start(served_by(words), 1, tmp_path, limit_seconds=60)


def test_a_server_that_is_never_ready_is_ended(tmp_path):
    words = [sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(600)"]
    process = ServerProcess(words, {}, "http://127.0.0.1:9", "/", tmp_path / "log")
    with pytest.raises(ServerFailed, match=r"not ready after 0 s \(--start-seconds\)"):
        process.wait_until_ready(0)
    process.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(process._process.pid, signal.SIGCONT)


def _becomes(is_so, within_seconds=30):
    deadline = time.monotonic() + within_seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def test_what_is_installed_is_taken_and_what_cannot_be_is_said(tmp_path):
    program = tmp_path / "python" / "bin" / "aiperf"
    program.parent.mkdir(parents=True)
    program.touch()
    installed = Installed(tmp_path, limit_seconds=60)
    assert installed.aiperf() == program
    with pytest.raises(NotInstalled, match=r"no wheel for this machine \(log: .*vllm.log\)"):
        installed._run(
            "vllm", [sys.executable, "-c", "raise SystemExit('no wheel for this machine')"]
        )
    slow = Installed(tmp_path, limit_seconds=0.01)
    with pytest.raises(NotInstalled, match="--install-seconds"):
        slow._run("vllm", [sys.executable, "-c", "import time; time.sleep(600)"])


def test_rivals_are_started_in_float32_with_the_threads_that_are_tried(tmp_path):
    for name in ("python/bin/transformers", "vllm/bin/vllm", "llama.cpp/build/bin/llama-server"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    exported = tmp_path / "path_0000"
    exported.mkdir()
    for name in ("config.json", "generation_config.json"):
        (exported / name).write_text(json.dumps({"eos_token_id": 0, "bos_token_id": 0}))
    installed = Installed(tmp_path, limit_seconds=1)

    theirs = peers.transformers(installed, exported, context=128, at_once=32)
    copied = json.loads((Path(theirs.model) / "generation_config.json").read_text())
    assert copied == {"eos_token_id": None, "bos_token_id": 0}
    assert "float32" in theirs.words(1, 2)
    assert theirs.variables(2)["OMP_NUM_THREADS"] == "2"

    vllm = peers.vllm(installed, exported, context=128, at_once=32)
    assert "float32" in vllm.words(1, 2)
    assert vllm.variables(2)["OMP_NUM_THREADS"] == "2"

    router = peers.llama_router(installed, tmp_path, num_paths=16, context=128, at_once=32)
    words = router.words(1, 2)
    pairs = dict(itertools.pairwise(words))
    assert (pairs["--parallel"], pairs["--ctx-size"], pairs["--threads"]) == ("4", "512", "2")
    assert pairs["--cache-type-k"] == pairs["--cache-type-v"] == "f32"
    assert router.request("a", 3).fields["model"] == "path_0003"


def test_nothing_is_measured_without_a_load_generator(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench_peers.py", "--rivals-env", str(tmp_path)])

    def fails(self, name, words):
        raise NotInstalled("no network")

    monkeypatch.setattr(Installed, "_run", fails)
    with pytest.raises(SystemExit, match="without aiperf: no network"):
        bench_peers.main()
