"""Workers whose link to the database fails: half-open, one-way, for longer than a lease, again and
again. Every task is done once, and nobody waits for a host that has vanished.

The workers and the server are on hosts of their own (`tools/support/hosts.py`); each worker is a
thread on its host. What a test waits for is a fact. The times after which a silent connection is
given up are shortened, by a factor of ten.
"""

import socket
import threading
import time

import psycopg
import pytest
from support.hosts import Hosts, why_not
from support.made_up_facts import facts_of, trained
from support.servers import fresh_schemas

from dipaco.control.database import retry
from dipaco.control.database import server_connection as connection_file
from dipaco.control.facts import commit as commit_file
from dipaco.control.ledger import Ledger
from dipaco.control.planning.tasks import Task
from dipaco.errors import ClaimLost
from tests.control.conftest import do_one, do_until
from tests.support.own_postgresql import own_postgresql
from tests.support.waiting import until

pytestmark = pytest.mark.process
LEASE_SECONDS = 0.5


@pytest.fixture(scope="module")
def network():
    """(hosts `server`, `ana` and `bo`; the server of the first)."""
    if (problem := why_not()) is not None:
        pytest.skip(problem)
    with Hosts("server", "ana", "bo") as hosts, own_postgresql(hosts["server"]) as server:
        yield hosts, server


class OnHost:
    """A worker on a host, in a thread of it."""

    def __init__(self, host, place):
        self.host, self.link, self._place = host, host.link, place
        self._threads = []
        self.ledger = self.do(lambda: Ledger(*place)).result()

    def do(self, work):
        """Starts something; what it gives is in `.result()`."""
        doing = Doing(work)
        with self.host.entered():
            doing.thread.start()
        self._threads.append(doing.thread)
        return doing

    def end(self):
        self.link.restore()
        for thread in self._threads:
            thread.join(timeout=30)
        self.ledger.close()


class Doing:
    """Something that a thread does."""

    def __init__(self, work):
        self._given, self._error = None, None

        def run():
            try:
                self._given = work()
            except BaseException as error:
                self._error = error

        self.thread = threading.Thread(target=run, daemon=True)

    @property
    def is_over(self):
        return not self.thread.is_alive()

    def result(self, within_seconds=30.0):
        self.thread.join(timeout=within_seconds)
        assert self.is_over, "it waits still"
        if self._error is not None:
            raise self._error
        return self._given


@pytest.fixture
def connections(monkeypatch):
    """How many connections were made. They are given up sooner."""
    made, connect = [], psycopg.connect

    def counting(*arguments, **settings):
        made.append(None)
        return connect(*arguments, **settings)

    monkeypatch.setattr(psycopg, "connect", counting)
    monkeypatch.setattr(connection_file, "CONNECT_SECONDS", 2)
    for name in connection_file.KEEPALIVE:
        monkeypatch.setitem(connection_file.KEEPALIVE, name, 1)
    monkeypatch.setattr(connection_file, "SILENT_MILLISECONDS", 500)
    monkeypatch.setattr(retry, "LONGEST_WAIT_SECONDS", 0.2)
    return made


@pytest.fixture
def workers(network, connections):
    """Two workers of a new run."""
    hosts, server = network
    place = server.url, next(fresh_schemas)
    ana, bo = (OnHost(hosts[name], place) for name in ("ana", "bo"))
    bo.do(lambda: bo.ledger.start({"config": "{}"})).result()
    yield ana, bo
    ana.end()
    bo.end()


def take_over(worker, task):
    """The claim of a task whose holder's lease has ended."""
    queue, reaper = worker.ledger.queue, worker.ledger.reaper

    def take():
        reaper.reap()
        claim = queue.claim("bo")
        if claim is not None and claim.task != task:
            queue.give_back(claim)
            claim = None
        return claim

    return until(take)


def test_the_lock_of_a_host_that_vanished_inside_a_transaction_is_not_waited_for(
    workers, plan, monkeypatch
):
    """Half-open: the server has the connection, its locks and no word of the end."""
    ana, bo = workers
    do_one(bo.ledger, plan)
    claim = ana.ledger.queue.claim("ana", lease_seconds=LEASE_SECONDS)
    record, vanished = commit_file.record, threading.Event()

    def vanishes(database, fact):
        record(database, fact)
        if database is ana.ledger._database and not vanished.is_set():
            time.sleep(0.3)  # until what the server has sent is acknowledged
            ana.link.swallow()
            vanished.set()

    monkeypatch.setattr(commit_file, "record", vanishes)
    of_ana = ana.do(lambda: ana.ledger.commit.finish(plan, claim, facts_of(plan, claim.task)))
    until(vanished.is_set)
    assert states(bo)["idle in transaction"] == 1, "the server takes it to be alive"
    again = bo.do(lambda: take_over(bo, claim.task)).result()
    bo.do(lambda: bo.ledger.commit.finish(plan, again, facts_of(plan, again.task))).result()
    assert ana.link.lost_packets > 0
    assert not of_ana.is_over
    ana.link.restore()
    with pytest.raises(ClaimLost):
        of_ana.result()
    assert bo.ledger.queue.task_counts()["pretrain", "base"]["done"] == 1


def states(worker):
    """How many other connections are in which state, as the server sees it."""
    rows = worker.ledger._database._connection.execute(
        "SELECT state, count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND backend_type = 'client backend' GROUP BY state"
    )
    return dict(rows.fetchall())


def test_nor_is_that_of_a_process_that_is_suspended_inside_one(workers, monkeypatch):
    """Its host answers for it: only the server's patience ends."""
    ana, bo = workers
    monkeypatch.setattr(connection_file, "IDLE_MILLISECONDS", 500)
    ana.do(ana.ledger._database.reconnect).result()
    wakes, is_inside = threading.Event(), threading.Event()

    def suspended():
        with ana.ledger._database.transaction():
            ana.ledger._database.lock("something")
            is_inside.set()
            assert wakes.wait(timeout=60)
            ana.ledger._database.change("put_meta", key="who", value="ana")

    of_ana = ana.do(suspended)
    until(is_inside.is_set)
    assert states(bo)["idle in transaction"] == 1

    def write():
        with bo.ledger._database.transaction():
            bo.ledger._database.lock("something")
            bo.ledger._database.change("put_meta", key="who", value="bo")

    bo.do(write).result()
    wakes.set()
    with pytest.raises(retry.ConnectionLost):
        of_ana.result()
    assert ana.do(lambda: ana.ledger.meta.get("who")).result() == "bo"


@pytest.mark.parametrize("arrives", ["up", "down"])
def test_a_commit_over_a_link_that_works_one_way_happens_exactly_once(
    workers, plan, connections, monkeypatch, arrives
):
    """What goes up is recorded, and its answer is lost; or nothing comes up at all."""
    ana, bo = workers
    claim = do_until(bo.ledger, plan, "train")
    once, asked = ana.ledger._database.once, []

    def lose(query, **values):
        if not asked:
            ana.link.one_way(arrives)
        asked.append(query)
        return once(query, **values)

    monkeypatch.setattr(ana.ledger._database, "once", lose)
    facts = facts_of(plan, claim.task)
    of_ana = ana.do(lambda: ana.ledger.commit.finish(plan, claim, facts))
    until(lambda: asked)
    made = len(connections)
    until(lambda: len(connections) > made)  # it has given up the connection
    assert ana.link.lost_packets > 0
    assert bool(losses(bo)) == (arrives == "up")
    assert not of_ana.is_over
    ana.link.restore()
    of_ana.result()
    assert losses(bo) == {claim.task.path: list(trained("modular", claim.task.path, 0).losses)}
    assert not bo.ledger.queue.is_held(claim)


def losses(worker):
    return worker.ledger.progress.losses("modular")


def test_a_worker_that_is_cut_off_for_longer_than_its_lease_records_nothing(workers, plan):
    """Partitioned: the other side goes on with its task."""
    ana, bo = workers
    claim = ana.ledger.queue.claim("ana", lease_seconds=LEASE_SECONDS)
    ana.link.cut()
    of_ana = ana.do(lambda: ana.ledger.commit.finish(plan, claim, facts_of(plan, claim.task)))
    again = take_over(bo, claim.task)
    assert (again.task, again.attempt) == (claim.task, claim.attempt + 1)
    bo.ledger.commit.finish(plan, again, facts_of(plan, again.task))
    assert not of_ana.is_over
    with bo.host.entered(), pytest.raises(OSError, match="unreachable"):
        socket.create_connection((ana.host.address, 1), timeout=10)
    ana.link.restore()
    with pytest.raises(ClaimLost):
        of_ana.result()
    assert bo.ledger.queue.task_counts()["prepare", ""] == {"done": 1}


@pytest.mark.slow
def test_a_run_over_a_link_that_comes_and_goes_does_every_task_once(workers, plan, connections):
    """Flapping: each time until the worker has noticed, and until it has gone on. A claim whose
    answer was lost costs a lease.
    """
    ana, bo = workers
    done, queue, reaper = [], ana.ledger.queue, ana.ledger.reaper

    def work():
        while queue.unfinished():
            claim = queue.claim("ana", lease_seconds=LEASE_SECONDS)
            if claim is None:
                reaper.reap()
                continue
            try:
                ana.ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
            except ClaimLost:  # it took longer than the lease
                continue
            done.append(claim.task)

    of_ana = ana.do(work)
    for fault in ("swallow", "cut", "down"):
        count, made, lost_packets = len(done), len(connections), ana.link.lost_packets
        ana.link.one_way("down") if fault == "down" else getattr(ana.link, fault)()
        until(lambda made=made: len(connections) > made)
        assert not of_ana.is_over
        if fault != "cut":
            assert ana.link.lost_packets > lost_packets
        ana.link.restore()
        until(lambda count=count: len(done) > count + 1)
    of_ana.result()
    assert len(done) == len(set(done))
    assert done[-1] == Task("report")
    states = bo.ledger.queue.task_counts().values()
    assert sum(state["done"] for state in states) == 40
