"""A small plan, and the facts that its tasks record when their bytes are made up."""

import contextlib
import sqlite3

import psycopg
import pytest
from support.made_up_facts import facts_of
from support.servers import fresh_schemas

from dipaco.control.claims.queue import ALL_KINDS
from dipaco.control.ledger import Ledger
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import BASE, Plan, one_path
from dipaco.topology import Level, Topology
from tests.support.other_process import other_process  # noqa: F401

GRID = Topology(
    levels=(
        Level(name="early", parts=("embed",), experts=2),
        Level(name="late", parts=("head",), experts=2),
    )
)


def arm(name, topology, phases, *, averaged=False, evaluate_every=1):
    return Arm(
        name=name,
        topology=topology,
        phases=phases,
        total_steps=10 * phases,
        has_outer_steps=averaged,
        evaluate_every=evaluate_every,
    )


@pytest.fixture(scope="session")
def plan():
    """A base model of two phases; 2x2 paths of two phases beside a dense model of three."""
    dense = one_path(("embed", "head"))
    return Plan(
        base=arm(BASE, dense, 2, evaluate_every=2),
        arms=(arm("modular", GRID, 2, averaged=True), arm("dense", dense, 3, evaluate_every=2)),
    )


DATABASES = ("sqlite", "postgresql", "pgbouncer")


ON_A_SERVER = [pytest.param(name, marks=pytest.mark.slow) for name in DATABASES[1:]]


@pytest.fixture(params=[DATABASES[0], *ON_A_SERVER])
def place(request, tmp_path):
    """Where a ledger lies, once for each database: (place, schema). On servers it is slow, but for
    files that name DATABASES: claims and commits, which a pooler might break, and all facts.
    """
    if request.param == "sqlite":
        return tmp_path / "ledger.sqlite", ""
    server = {"postgresql": "postgresql_server", "pgbouncer": "pooler"}[request.param]
    return request.getfixturevalue(server).url, next(fresh_schemas)


@pytest.fixture
def ledger(place):
    ledger = Ledger(*place)
    ledger.start({"config": "{}"})
    yield ledger
    ledger.close()


@contextlib.contextmanager
def inside_of_this(database):
    """On a server: what would be a transaction by itself is a part of the one that it is in."""
    connection = database._connection

    def part(mode=""):
        return connection._held.transaction()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "transaction", part)
        patch.setattr(connection, "give_back", lambda: None)
        yield


def do(ledger, plan, claim):
    ledger.commit.finish(plan, claim, facts_of(plan, claim.task))


def do_one(ledger, plan, worker="w"):
    claim = ledger.queue.claim(worker)
    if claim is not None:
        do(ledger, plan, claim)
    return claim


def do_all(ledger, plan):
    """Does all that comes due. Returns the tasks in the order in which they were done."""
    return [claim.task for claim in iter(lambda: do_one(ledger, plan), None)]


def do_all_but(ledger, plan, is_held):
    """Does all that comes due but tasks of which `is_held` is true. Returns the claims of those."""
    held = []
    while (claim := ledger.queue.claim("w")) is not None:
        held.append(claim) if is_held(claim.task) else do(ledger, plan, claim)
    return held


def do_until(ledger, plan, wanted, worker="w", kinds=ALL_KINDS):
    """Does tasks until one of a kind, or this very task, is claimed, and gives that claim."""
    while (claim := ledger.queue.claim(worker, kinds)) is not None:
        if wanted in (claim.task, claim.task.kind):
            return claim
        do(ledger, plan, claim)
    raise AssertionError(f"{wanted} did not come due")


def do_until_a_second_phase(ledger, plan):
    """The claim of a path of the modular arm whose modules have stepped."""
    claim = do_until(ledger, plan, "train")
    while claim.task.arm != "modular" or claim.task.phase == 0:
        do(ledger, plan, claim)
        claim = do_until(ledger, plan, "train")
    return claim


def claim_all(ledger, worker="w", kinds=ALL_KINDS):
    """The claims of all that is ready."""
    return [*iter(lambda: ledger.queue.claim(worker, kinds), None)]


IntegrityError = (sqlite3.IntegrityError, psycopg.errors.IntegrityConstraintViolation)

TABLES = (
    *("meta", "tasks", "modules", "contributions", "trained", "stages", "scores", "releases"),
    *("evaluations", "samples", "claims", "workers", "partial_snapshots", "refusals"),
    *("labels", "checks", "set_aside", "quorums", "taken"),
    "history",
    *("path_totals", "path_machines", "module_totals", "settled_tasks"),
)


def everything(ledger):
    """All rows of all tables: for showing that nothing changed."""
    execute = ledger._database._connection.execute
    return {name: sorted(map(repr, execute(f"SELECT * FROM {name}").fetchall())) for name in TABLES}


@pytest.fixture
def finished(ledger, plan):
    do_all(ledger, plan)
    return ledger
