"""`dipaco serve --engine ray`, the real thing: a path lives on one replica, under load on two, and
one that is killed costs nobody his text.
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

from tests.launch.conftest import is_alive, wait_until
from tests.support.server_process import LONG, Server

TEXT = {"model": "toy", "prompt": "jiji", "max_tokens": 40, "temperature": 1.0, "seed": 5}


class Door(Server):
    """The process that listens, and the replicas behind it."""

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

    def tell(self, body):
        """Status, headers and answer."""
        connection = self.connect()
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), kind)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        connection.close()
        return answer.status, answer.headers, told

    def ask(self, **body):
        status, _, told = self.tell(TEXT | body)
        assert status == 200, told
        return told["choices"][0]["text"]


@pytest.fixture
def door(cluster, tiny, command_cache):
    door = Door(cluster, tiny.folder, command_cache, "--replicas", "1..2")
    yield door
    door.process.kill()
    door.process.communicate()
    for pid in door.replicas():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def expected(tiny):
    """The text of each path, as one process gives it."""
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


def stream_of(door, body):
    """The text of a stream, to its end."""
    connection, answer, line = door.begin(body)
    told = (line + answer.read()).decode()
    connection.close()
    return text_of(told)


def text_of(told):
    """The text of all its events."""
    assert told.endswith("data: [DONE]\n\n"), told[-300:]
    events = [json.loads(line[6:]) for line in told.split("\n") if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in event["choices"])


@pytest.mark.timeout(900)  # as long as the waits in it
def test_paths_live_on_replicas_and_nobody_notices_when_one_dies(door, expected):
    assert door.metric("replicas") == 1
    # Every path is read once, by the one replica there is, and says what one process says.
    for _ in range(2):
        assert [door.ask(path=path) for path in range(4)] == expected
    assert door.metric("cache_misses_total") == 4
    assert stream_of(door, TEXT | {"path": 1}) == expected[1]

    # One path under load: there comes a second replica, and it comes to hold that path, and no
    # other.
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        is_over = False

        def load():
            while not is_over:
                stream_of(door, LONG | {"path": 2, "n": 8})

        crowd = [pool.submit(load) for _ in range(3)]

        def is_so_under_load(name, value):
            for one in crowd:
                assert not one.done(), one.result()  # which raises what ended it
            return door.metric(name) == value

        try:
            wait_until(lambda: is_so_under_load("replicas", 2), "a second replica")
            wait_until(lambda: is_so_under_load("cache_misses_total", 5), "it holds the path too")
        finally:
            is_over = True
        for one in crowd:
            one.result()
    assert len(door.replicas()) == 2

    # Of two replicas, a path that nobody else wants goes to the same one each time.
    assert [door.ask(path=path) for path in range(4)] == expected
    misses = door.metric("cache_misses_total")
    for _ in range(5):
        assert [door.ask(path=path) for path in range(4)] == expected
    assert door.metric("cache_misses_total") == misses

    # One of them is killed in the middle of everything.
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = [pool.submit(door.ask, path=number % 4) for number in range(40)]
        os.kill(door.replicas()[0], signal.SIGKILL)
        assert [text.result() for text in texts] == [expected[n % 4] for n in range(40)]
    wait_until(lambda: door.metric("rows") == door.metric("waiting_requests") == 0, "all is told")

    # Whoever hangs up frees what he held.
    before = door.metric("completion_tokens_total")
    connection, answer, line = door.begin(LONG | {"n": 90})
    assert line.startswith(b"data: {")
    answer.close()
    connection.close()
    wait_until(lambda: door.metric("hang_ups_total") == 1, "it is noticed")
    wait_until(lambda: door.metric("rows") == door.metric("waiting_requests") == 0, "rows are free")
    assert door.metric("completion_tokens_total") - before < 90 * LONG["max_tokens"]

    # SIGTERM finishes what runs, and the replicas go.
    connection, answer, line = door.begin(LONG)
    door.process.send_signal(signal.SIGTERM)
    told = (line + answer.read()).decode()
    connection.close()
    events = [json.loads(line[6:]) for line in told.split("\n") if line.startswith("data: {")]
    ended = [c["index"] for e in events for c in e["choices"] if c["finish_reason"]]
    assert sorted(ended) == list(range(LONG["n"]))
    assert door.end() == 0
    assert "Traceback" not in door.said, door.said
    wait_until(lambda: not door.replicas(), "the replicas are gone")


@pytest.fixture
def rewound_door(cluster, rewound, command_cache):
    """A run that is still being trained, as far as anybody can see."""
    door = Door(cluster, rewound.folder, command_cache, "--replicas", "1", "--waiting", "10")
    yield door
    door.process.kill()
    door.process.communicate()
    wait_until(lambda: not door.replicas(), "the replicas are gone")


@pytest.mark.timeout(900)
def test_a_newer_release_is_taken_over_and_a_path_that_is_not_whole_is_no_other_s_fault(
    rewound_door, rewound, expected
):
    door = rewound_door
    assert door.ask(path=0) != expected[0]

    # Who runs goes on in the release that it began in, and who comes next has the newer.
    one = LONG | {"n": 1, "path": 0, "seed": 3}
    alone = stream_of(door, one)
    connection, answer, line = door.begin(one)
    rewound.publish()
    wait_until(lambda: door.metric("release_phase") == 2, "the newer release is served")
    told = (line + answer.read()).decode()
    connection.close()
    assert text_of(told) == alone
    assert door.ask(path=0) == expected[0]

    # A module that is damaged after it was found whole: of paths 1 and 3, which are not read yet.
    spoilt = rewound.file_of(path=3, module="late/0001")
    spoilt.write_bytes(spoilt.read_bytes()[:-9] + b"otherbyte")
    status, _, refused = door.tell(TEXT | {"path": 3})
    assert status == 503
    assert spoilt.name in refused["error"]["message"]
    assert [door.ask(path=path) for path in (0, 2)] == [expected[0], expected[2]]

    # Beyond what may wait, somebody is sent away, and told when to come again.
    connection, answer, _ = door.begin(LONG | {"n": 14, "path": 0})
    status, headers, refused = door.tell(LONG | {"n": 1, "path": 0})
    answer.read()
    connection.close()
    assert (status, refused["error"]["type"]) == (429, "rate_limit_error")
    assert int(headers["Retry-After"]) >= 1


@pytest.mark.timeout(600)
def test_replicas_do_not_outlive_a_door_that_was_killed(cluster, tiny, command_cache, dipaco):
    door = Door(cluster, tiny.folder, command_cache, "--replicas", "1")
    (replica,) = door.replicas()
    door.process.kill()
    door.process.communicate()
    wait_until(lambda: not is_alive(replica), "they are taken down")
    with pytest.raises((ConnectionRefusedError, http.client.HTTPException)):
        door.connect().connect()


def test_what_cannot_be_is_said_before_a_cluster_is_asked(dipaco, tiny):
    def said(*options):
        ended = dipaco("serve", "--run", tiny.folder, "--engine", "ray", *options)
        assert (ended.code, ended.out) == (2, "")
        return ended.err

    for given in ("0", "0..3", "3..2", "many", "1.."):
        assert f"`--replicas` is {given}" in said("--replicas", given)
    assert "--cpus-per-replica" in said("--cpus-per-replica", "0")
    assert "--memory-fraction" in said("--memory-fraction", "2")
    assert "no answer" in said("--address", "127.0.0.1:1")


def test_a_replica_that_does_not_see_the_run_says_so(tmp_path):
    from dipaco.serving.decoding.limits import LoopLimits
    from dipaco.serving_cluster.errors import RunFolderNotVisible
    from dipaco.serving_cluster.replica import Replica, ReplicaSpec
    from tests.support.serving_rig import CONFIG

    order = ReplicaSpec(str(tmp_path / "nothing"), CONFIG, LoopLimits(), None)
    with pytest.raises(RunFolderNotVisible, match="The machine x cannot see"):
        Replica(order, "one", "The machine x")


@pytest.fixture
def ranked():
    """`ranked(path, queues)` -> names of the replicas, in the order in which they are asked."""
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


def test_a_path_has_an_order_of_replicas_and_the_busy_ones_come_last(ranked):
    idle = dict.fromkeys("abcdef")
    order = ranked("7", idle)
    assert ranked("7", idle) == order
    assert ranked("7", idle | {order[0]: 4}) == [*order[1:], order[0]]
    assert ranked("7", idle | {order[0]: 3}) == order
    assert ranked("7", dict.fromkeys("abcdef", 9)) == order  # all are busy: where it is in memory
    # Without one of them, only the paths that it was the first for go elsewhere.
    for path in map(str, range(50)):
        before, after = ranked(path, idle), ranked(path, dict.fromkeys("abcde"))
        assert after == [name for name in before if name != "f"]
    assert len({ranked(str(path), idle)[0] for path in range(50)}) == 6
