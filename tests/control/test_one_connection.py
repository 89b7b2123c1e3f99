"""A process holds one connection to its database server, whatever its threads do; a renewal does
not wait behind a long statement, and a server without a connection left is waited for.
"""

import contextlib
import logging
import os
import socket
import threading

import psycopg
import pytest
from support.made_up_facts import stage
from support.servers import fresh_schemas

from dipaco import stopping
from dipaco.control.database import retry
from dipaco.control.ledger import Ledger
from dipaco.errors import LedgerDamaged
from tests.control.conftest import do
from tests.support.own_postgresql import own_postgresql
from tests.support.waiting import until

DEADLINE_SECONDS = 60.0
MOST_CONNECTIONS = 5


@pytest.fixture(scope="module")
def small_server():
    """A server that takes few clients."""
    with own_postgresql(max_connections=MOST_CONNECTIONS) as server:
        yield server


@pytest.fixture
def connections(monkeypatch):
    """psycopg's connections, as they are made."""
    made, connect = [], psycopg.connect

    def noting(*arguments, **settings):
        made.append(connect(*arguments, **settings))
        return made[-1]

    monkeypatch.setattr(psycopg, "connect", noting)
    monkeypatch.setattr(retry, "LONGEST_WAIT_SECONDS", 0.1)
    return made


@pytest.fixture
def ledger(small_server, connections):
    ledger = Ledger(small_server.url, next(fresh_schemas))
    ledger.start({"config": "{}"})
    yield ledger
    ledger.close()


def beside(work):
    """`work` in another thread; what it gives is in `.result()`."""
    given = []
    thread = threading.Thread(target=lambda: given.append(work()), daemon=True)
    thread.start()

    def result():
        thread.join(DEADLINE_SECONDS)
        assert given, "it waits still, or has failed"
        return given[0]

    return result


def test_two_threads_of_a_process_use_one_connection_in_turn(ledger, connections):
    claim = ledger.queue.claim("w")
    other = ledger.for_thread()
    for _ in range(5):
        assert beside(lambda: other.queue.renew(claim))()
        assert ledger.queue.is_held(claim)
    other.close()
    assert ledger.queue.is_held(claim), "the thread that leaves closes no other's connection"
    assert len(connections) == 1


def test_a_renewal_does_not_wait_for_a_long_statement_and_keeps_no_connection(
    ledger, plan, connections
):
    claim = ledger.queue.claim("w")
    other = ledger.for_thread()
    with ledger._database.transaction():
        ledger._database.lock("something long")
        assert beside(lambda: other.queue.renew(claim))()
        assert len(connections) > 1
        assert [connection.closed for connection in connections[1:]] == [True] * (
            len(connections) - 1
        )
    made = len(connections)
    assert beside(lambda: other.queue.renew(claim))()
    assert len(connections) == made
    assert ledger.queue.held()[0].renewals == 2
    do(ledger, plan, claim)


class InterruptedLock:
    """A lock; Ctrl-C comes as it is taken."""

    def __init__(self, lock):
        self._lock, self._interrupts = lock, [KeyboardInterrupt()]
        self.release = lock.release

    def acquire(self, timeout):
        is_taken = self._lock.acquire(timeout=timeout)
        if self._interrupts:
            raise self._interrupts.pop()
        return is_taken


@pytest.mark.parametrize("times", [1, 2])
def test_who_is_interrupted_as_its_turn_comes_is_not_held_up_by_itself(
    ledger, connections, monkeypatch, times
):
    """The heartbeat would renew the claim of a worker that waits for itself."""
    claim = ledger.queue.claim("w")
    other = ledger.for_thread()
    turn = ledger._database._connection._turn
    turn._lock = InterruptedLock(turn._lock)
    with monkeypatch.context() as patch:
        if times == 2:  # as it is given back too
            patch.setattr(turn, "give_back", lambda by: None)
        with pytest.raises(KeyboardInterrupt):
            ledger.queue.renew(claim)
    assert beside(lambda: other.queue.renew(claim))()
    ledger.queue.give_back(claim)
    assert beside(lambda: other.queue.renew(claim))() is False
    assert connections[0].closed is False
    assert ledger.queue.held() == []


def test_two_connections_of_one_thread_are_not_in_one_transaction(ledger):
    other = ledger.for_thread()
    with ledger._database.transaction():
        ledger._database.change("put_meta", key="a", value="1")
        assert other.meta.get("a") is None
    assert other.meta.get("a") == "1"
    other.close()
    assert ledger.meta.get("a") == "1"


@pytest.fixture
def taken(small_server):
    """Connections that others than the run have taken; given back in the end."""
    taken = []
    yield taken
    give_back(taken)


def fill(server, taken):
    """Takes every connection that the server has left."""
    with contextlib.suppress(psycopg.OperationalError):  # too many clients
        while True:
            taken.append(psycopg.connect(server.url))


def give_back(taken):
    for connection in taken:
        connection.close()


def test_a_renewal_for_which_the_server_has_no_connection_is_made_when_it_has(
    ledger, small_server, taken, caplog
):
    claim = ledger.queue.claim("w")
    other = ledger.for_thread()
    with ledger._database.transaction(), caplog.at_level(logging.WARNING, "dipaco"):
        fill(small_server, taken)
        renewed = beside(lambda: other.queue.renew(claim))
        until(lambda: "has no connection left: start fewer workers" in caplog.text)
        give_back(taken)
        assert renewed()
    assert ledger.queue.held()[0].renewals == 1


def test_work_is_not_lost_when_a_worker_cannot_come_back_at_once(
    ledger, plan, small_server, taken, caplog
):
    """Its connection is cut, and others take the last."""
    claim = ledger.queue.claim("w")
    with caplog.at_level(logging.WARNING, "dipaco"):
        ((own,),) = ledger.select("SELECT pg_backend_pid()")
        fill(small_server, taken)
        has_ended = taken[0].execute(
            "SELECT pg_terminate_backend(%s, %s)", (own, int(DEADLINE_SECONDS * 1000))
        )
        assert has_ended.fetchone() == (True,), "else its place is free only after the next line"
        fill(small_server, taken)
        finished = beside(lambda: ledger.commit.finish(plan, claim, [stage("prepare")]))
        until(lambda: "has no connection left: start fewer workers" in caplog.text)
        give_back(taken)
        assert [task.kind for task in finished()] == ["pretrain"]
    assert ledger.facts.stages() == [stage("prepare")]
    assert ledger.queue.claim("w").task.kind == "pretrain"


def test_a_server_that_takes_no_writes_is_waited_for_on_a_new_connection(ledger, connections):
    """As after a failover, where the address may lead to the new primary the next time."""
    ledger._database._connection.execute(
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"  # of this connection alone
    )
    before = len(connections)
    with stopping.patience(5.0):
        assert ledger.queue.claim("w") is not None
    assert len(connections) == before + 1
    assert connections[before - 1].closed


@pytest.mark.parametrize("ask", ["remember", "command"])
def test_a_value_of_the_run_is_read_and_kept_though_the_connection_breaks(ledger, ask):
    with psycopg.connect(ledger._database._url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND usename IS NOT NULL AND backend_type = 'client backend'"
        )
    if ask == "remember":
        assert ledger.meta.remember("machine", "first") == "first"
    else:
        assert ledger.meta.command().name == "run"


def cut(connection):
    """As where a server is restarted, or a router forgets an idle connection."""
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as link:
        link.shutdown(socket.SHUT_RDWR)


def test_who_looks_again_and_again_looks_on_though_the_connection_breaks_between_two_looks(
    ledger, connections
):
    for _ in range(2):
        cut(connections[-1])
        with ledger.at_one_moment():
            assert ledger.meta.get("config") == "{}"
    assert len(connections) == 3


@pytest.mark.parametrize("ask", ["get", "command"])  # one is retried by itself, and one is not
def test_a_look_during_which_the_connection_breaks_is_begun_again(ledger, connections, ask):
    asked = []

    def look():
        asked.append(ledger.meta.get("config"))
        if len(connections) < 3:
            cut(connections[-1])
        return ledger.meta.get("config") if ask == "get" else ledger.meta.command().name

    with stopping.patience(5.0):
        assert ledger.look_at_one_moment(look) == {"get": "{}", "command": "run"}[ask]
    assert asked == ["{}"] * 3


def test_a_ledger_whose_tables_are_gone_says_so(ledger):
    ledger.drop()
    with pytest.raises(LedgerDamaged, match="does not exist"):
        ledger.queue.claim("w")
