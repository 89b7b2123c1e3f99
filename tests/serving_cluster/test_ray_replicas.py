"""`dipaco serve --engine ray` on a cluster: a path is on one replica, under load on two, and
killing one changes no text.
"""

import concurrent.futures
import http.client
import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")

from dipaco.cli.main import main
from tests.launch.conftest import is_alive, wait_until
from tests.support.server_process import LONG, Server

TEXT = {"model": "toy", "prompt": "jiji", "max_tokens": 40, "temperature": 1.0, "seed": 5}


class FrontEnd(Server):
    """The process that listens, and its replicas."""

    def __init__(self, cluster, folder, cache, *options):
        more = ("--engine", "ray", "--address", cluster.address, "--rows", "4", *options)
        super().__init__(folder, cache, *more)

    def replicas(self):
        """Process numbers. Ray writes what an actor is into its command line."""
        name = f"ray::ServeReplica:dipaco-{os.uname().nodename}-{self.process.pid}:paths"
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if words.startswith(name[:50]) and str(self.process.pid) in words:
                found.append(int(folder.name))
        return found

    def post(self, body):
        """Status, headers and body of the response."""
        connection = self.connect()
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), kind)
        answer = connection.getresponse()
        content = json.loads(answer.read())
        connection.close()
        return answer.status, answer.headers, content

    def text(self, **body):
        status, _, content = self.post(TEXT | body)
        assert status == 200, content
        return content["choices"][0]["text"]


@pytest.fixture
def front_end(cluster, tiny, command_cache):
    front_end = FrontEnd(cluster, tiny.folder, command_cache, "--replicas", "1..2")
    yield front_end
    front_end.process.kill()
    front_end.process.communicate()
    for pid in front_end.replicas():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def expected(tiny):
    """The text of each path from a single process."""
    from starlette.testclient import TestClient

    from dipaco.serving.decoding.limits import LoopLimits
    from dipaco.serving.http.app import make_app
    from dipaco.serving.service import Service, ServiceSettings

    settings = ServiceSettings(limits=LoopLimits(rows=8, rows_per_path=4, waiting=32))
    with Service(tiny.folder, settings, say=lambda _: None) as service:
        service.start()
        with TestClient(make_app(service)) as client:
            return [
                client.post("/v1/completions", json=TEXT | {"path": path}).json()["choices"][0][
                    "text"
                ]
                for path in range(4)
            ]


def stream_of(front_end, body):
    """The text of a stream, to its end."""
    connection, answer, line = front_end.begin(body)
    content = (line + answer.read()).decode()
    connection.close()
    return text_of(content)


def text_of(content):
    """The text of all its events."""
    assert content.endswith("data: [DONE]\n\n"), content[-300:]
    events = [json.loads(line[6:]) for line in content.split("\n") if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in event["choices"])


@pytest.mark.timeout(900)  # as long as the waits in it
def test_paths_stay_on_their_replicas_and_killing_one_changes_no_text(front_end, expected):
    assert front_end.metric("replicas") == 1
    # Every module is read once, by the only replica, and a path gives the text of a single process.
    for _ in range(2):
        assert [front_end.text(path=path) for path in range(4)] == expected
    # Both modules for path 0, one more each for paths 1 and 2; then path 3 has all it needs.
    assert front_end.metric("cache_misses_total") == 3
    assert stream_of(front_end, TEXT | {"path": 1}) == expected[1]

    # One path under load: a second replica starts, and reads that path and no other.
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        is_over = False

        def load():
            while not is_over:
                stream_of(front_end, LONG | {"path": 2, "n": 8})

        crowd = [pool.submit(load) for _ in range(3)]

        def under_load(name):
            for client in crowd:
                assert not client.done(), client.result()  # raises the error that ended it
            return front_end.metric(name)

        try:
            wait_until(lambda: under_load("replicas") == 2, "a second replica")
            # Each choice that waits for it is a miss.
            wait_until(lambda: under_load("cache_misses_total") > 3, "it has read the path too")
        finally:
            is_over = True
        for client in crowd:
            client.result()
    assert len(front_end.replicas()) == 2

    # With two idle replicas, a path goes to the same one each time.
    assert [front_end.text(path=path) for path in range(4)] == expected
    misses = front_end.metric("cache_misses_total")
    for _ in range(5):
        assert [front_end.text(path=path) for path in range(4)] == expected
    assert front_end.metric("cache_misses_total") == misses

    # One replica is killed while requests run.
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = [pool.submit(front_end.text, path=number % 4) for number in range(40)]
        os.kill(front_end.replicas()[0], signal.SIGKILL)
        assert [text.result() for text in texts] == [expected[n % 4] for n in range(40)]
    wait_until(
        lambda: front_end.metric("rows") == front_end.metric("waiting_requests") == 0,
        "every request has ended",
    )

    # A client that disconnects frees its rows.
    before = front_end.metric("completion_tokens_total")
    connection, answer, line = front_end.begin(LONG | {"n": 90})
    assert line.startswith(b"data: {")
    answer.close()
    connection.close()
    wait_until(lambda: front_end.metric("hang_ups_total") == 1, "the disconnection is counted")
    wait_until(
        lambda: front_end.metric("rows") == front_end.metric("waiting_requests") == 0,
        "rows are free",
    )
    assert front_end.metric("completion_tokens_total") - before < 90 * LONG["max_tokens"]

    # SIGTERM finishes running requests, and the replicas are deleted.
    connection, answer, line = front_end.begin(LONG)
    front_end.process.send_signal(signal.SIGTERM)
    content = (line + answer.read()).decode()
    connection.close()
    events = [json.loads(line[6:]) for line in content.split("\n") if line.startswith("data: {")]
    ended = [c["index"] for e in events for c in e["choices"] if c["finish_reason"]]
    assert sorted(ended) == list(range(LONG["n"]))
    assert front_end.end() == 0
    assert "Traceback" not in front_end.stderr, front_end.stderr
    wait_until(lambda: not front_end.replicas(), "the replicas are gone")


@pytest.fixture
def rewound_front_end(cluster, rewound, command_cache):
    """A front end of a run that appears to be still training."""
    front_end = FrontEnd(
        cluster, rewound.folder, command_cache, "--replicas", "1", "--waiting", "10"
    )
    yield front_end
    front_end.process.kill()
    front_end.process.communicate()
    wait_until(lambda: not front_end.replicas(), "the replicas are gone")


@pytest.mark.timeout(900)
def test_a_newer_release_is_served_and_a_damaged_path_leaves_the_others_serving(
    rewound_front_end, rewound, expected
):
    front_end = rewound_front_end
    assert front_end.text(path=0) != expected[0]

    # A running request finishes on the release it began in; the next gets the newer one.
    body = LONG | {"n": 1, "path": 0, "seed": 3}
    alone = stream_of(front_end, body)
    connection, answer, line = front_end.begin(body)
    rewound.publish()
    wait_until(lambda: front_end.metric("release_phase") == 2, "the newer release is served")
    content = (line + answer.read()).decode()
    connection.close()
    assert text_of(content) == alone
    assert front_end.text(path=0) == expected[0]

    # A module of paths 1 and 3 is damaged after it was verified and before it is read.
    damaged = rewound.file_of(path=3, module="late/0001")
    damaged.write_bytes(damaged.read_bytes()[:-9] + b"otherbyte")
    status, _, refused = front_end.post(TEXT | {"path": 3})
    assert status == 503
    assert damaged.name in refused["error"]["message"]
    assert [front_end.text(path=path) for path in (0, 2)] == [expected[0], expected[2]]

    # One client holds all 14 places. Another is refused beyond half of them, and told when to
    # retry; within its half it is served.
    connection, answer, _ = front_end.begin(LONG | {"n": 14, "path": 0})
    status, headers, refused = front_end.post(LONG | {"n": 8, "path": 0})
    assert front_end.post(LONG | {"n": 1, "path": 0})[0] == 200
    answer.read()
    connection.close()
    assert (status, refused["error"]["type"]) == (429, "rate_limit_error")
    assert int(headers["Retry-After"]) >= 1


@pytest.mark.timeout(600)
def test_replicas_do_not_outlive_a_killed_front_end(cluster, tiny, command_cache, dipaco):
    front_end = FrontEnd(cluster, tiny.folder, command_cache, "--replicas", "1")
    (replica,) = front_end.replicas()
    front_end.process.kill()
    front_end.process.communicate()
    wait_until(lambda: not is_alive(replica), "the replica is deleted")
    with pytest.raises((ConnectionRefusedError, http.client.HTTPException)):
        front_end.connect().connect()


def test_bad_options_are_refused_before_a_cluster_is_used(dipaco, tiny, capsys):
    def error_of(*options):
        assert main(["serve", "--run", str(tiny.folder), "--engine", "ray", *options]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    for given in ("0", "0..3", "3..2", "many", "1.."):
        assert f"`--replicas` is {given!r}" in error_of("--replicas", given)
    assert "--cpus-per-replica" in error_of("--cpus-per-replica", "0")
    ended = dipaco("serve", "--run", tiny.folder, "--engine", "ray", "--address", "127.0.0.1:1")
    assert (ended.code, ended.out) == (2, "")
    assert "no answer" in ended.err


def test_a_replica_that_does_not_see_the_run_folder_fails(tmp_path):
    from dipaco.serving.decoding.limits import LoopLimits
    from dipaco.serving_cluster.errors import RunFolderNotVisible
    from dipaco.serving_cluster.replica import Replica, ReplicaSpec
    from tests.support.serving_rig import CONFIG

    spec = ReplicaSpec(str(tmp_path / "nothing"), CONFIG, LoopLimits(), None)
    with pytest.raises(RunFolderNotVisible, match="The machine x cannot see"):
        Replica(spec, "one", "The machine x")


def test_an_error_of_ray_is_said_once_and_the_number_of_replicas_is_asked_for_on(monkeypatch):
    import itertools
    import warnings
    from types import SimpleNamespace

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own, of pydantic
        from dipaco.launch.ray import WorkerResources
        from dipaco.serving_cluster import ray_replicas
        from dipaco.serving_cluster.ray_replicas import RayReplicas, ReplicaRange

    def status():
        answer = next(answers)
        if answer is None:
            raise ValueError("no such actor")
        return SimpleNamespace(num_running=answer)

    said, answers = [], itertools.chain([1, None, None, 2, None], itertools.repeat(3))
    spec = SimpleNamespace(limits=SimpleNamespace(rows=1, waiting=1))
    replicas = RayReplicas(spec, ReplicaRange(1, 3), WorkerResources(), said.append)
    monkeypatch.setattr(replicas, "_status", status)
    monkeypatch.setattr(ray_replicas, "POLL_SECONDS", 0.001)
    replicas._watching.start()
    try:
        wait_until(lambda: replicas.loop.num_replicas == 3, "it asks on", 10)
        assert len(said) == 2
        assert "no such actor" in said[0]
    finally:
        replicas._is_closed.set()
        replicas._watching.join()
        replicas.loop._events.close()


def test_a_replica_whose_device_makes_no_tokens_fails_its_health_check(monkeypatch):
    import asyncio
    import warnings
    from types import SimpleNamespace

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own, of pydantic
        from dipaco.serving_cluster.ray_replicas import RayReplica

    replica, loop = object.__new__(RayReplica), SimpleNamespace(problem=None)
    replica._engine = SimpleNamespace(loop=loop)
    monkeypatch.setattr(replica, "_check_owner", lambda: None)
    asyncio.run(replica.check_health())
    loop.problem = "the device makes no tokens"
    with pytest.raises(RuntimeError, match="the device makes no tokens"):
        asyncio.run(replica.check_health())


@pytest.fixture
def ranked():
    """`ranked(path, queues)` -> names of the replicas, in the order in which they are tried."""
    import asyncio
    import warnings
    from types import SimpleNamespace

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own, of pydantic
        from dipaco.serving_cluster.path_router import PathRouter

    def order(path, queues):
        router = object.__new__(PathRouter)
        router.initialize_state(busy=4)
        ids = {name: SimpleNamespace(unique_id=name) for name in queues}
        router._replica_queue_len_cache = SimpleNamespace(get=lambda id: queues[id.unique_id])
        candidates = [SimpleNamespace(replica_id=id) for id in ids.values()]
        pending = SimpleNamespace(
            routing_context=SimpleNamespace(should_backoff=False),
            metadata=SimpleNamespace(multiplexed_model_id=path),
        )
        chosen = asyncio.run(router.choose_replicas(candidates, pending))
        assert pending.routing_context.should_backoff
        return [replica.replica_id.unique_id for (replica,) in chosen]

    return order


def test_a_path_has_a_fixed_order_of_replicas_and_busy_ones_come_last(ranked):
    idle = dict.fromkeys("abcdef")
    order = ranked("7", idle)
    assert ranked("7", idle) == order
    assert ranked("7", idle | {order[0]: 4}) == [*order[1:], order[0]]
    assert ranked("7", idle | {order[0]: 3}) == order
    assert ranked("7", dict.fromkeys("abcdef", 9)) == order  # all are busy
    assert ranked("7", dict.fromkeys("abcdef", 9) | {order[5]: 7}) == [order[5], *order[:5]]
    # Removing a replica moves only the paths that rank it first.
    for path in map(str, range(50)):
        before, after = ranked(path, idle), ranked(path, dict.fromkeys("abcde"))
        assert after == [name for name in before if name != "f"]
    assert len({ranked(str(path), idle)[0] for path in range(50)}) == 6


def test_replicas_that_could_not_finish_a_request_come_last(ranked):
    idle = dict.fromkeys("abcdef")
    order = ranked("7", idle)
    assert ranked(f"7 {order[0]} {order[2]}", idle) == [
        *(order[1], *order[3:]),
        *(order[0], order[2]),
    ]
    assert ranked(f"7 {order[0]}", idle | {order[1]: 9}) == [*order[2:], order[1], order[0]]
    assert ranked("7 gone", idle) == order
