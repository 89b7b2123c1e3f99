"""A small plan, and the facts that its tasks record when their bytes are made up."""

import contextlib
import sqlite3

import psycopg
import pytest
from support.made_up_facts import facts_of
from support.servers import fresh_schemas

from dipaco.control.ledger import Ledger
<<<<<<< HEAD
from dipaco.control.planning.tasks import (
    Contribution,
    Evaluated,
    Fact,
    GradientNorms,
    ModuleReady,
    PathChecked,
    PathLabelled,
    PathScored,
    PathTrained,
    Sample,
    Sampled,
    SliceDone,
    StageDone,
    Task,
)
from dipaco.receipt import Receipt
=======
>>>>>>> 8c8aec55 (Commits of a quorum take their locks in one order, and plans are fuzzed on the ledger alone)
from dipaco.schedule.arm import Arm
from dipaco.schedule.plan import BASE, Plan, one_path
from dipaco.topology import Level, Topology

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


<<<<<<< HEAD
def receipt(*what) -> Receipt:
    """Bytes that are not there; their digest names them."""
    name = "-".join(map(str, what))
    return Receipt(f"objects/{name}", name, 8)


def ready(arm: str, module: ModuleId | str, phase: int) -> ModuleReady:
    module = module if isinstance(module, ModuleId) else ModuleId.parse(module)
    return ModuleReady(
        arm=arm,
        module=module,
        phase=phase,
        parameters=receipt(arm, module, phase),
        outer_state=receipt("state", arm, module, phase) if phase else None,
        gradient_norm=0.5 if phase else None,
    )


def contribution(module: ModuleId | str, phase: int, path: int) -> Contribution:
    module = module if isinstance(module, ModuleId) else ModuleId.parse(module)
    return Contribution(
        arm="modular",
        path=path,
        module=module,
        phase=phase,
        base_digest=ready("modular", module, phase).parameters.digest,
        message=receipt("message", module, phase, path),
    )


def trained(arm: str, path: int, phase: int) -> PathTrained:
    return PathTrained(
        arm=arm,
        path=path,
        phase=phase,
        snapshot=receipt("snapshot", arm, path, phase),
        step=10 * (phase + 1),
        position=10 * (phase + 1),
        batches="rows",
        losses=(2.0 - phase, 1.5 - phase),
        norms=GradientNorms.over([0.25, 0.5 + phase]),
        tokens=100,
        seconds=1.0,
        bytes_down=8,
        bytes_up=8,
        machine="1 x test",
    )


def stage(name, phase=0) -> StageDone:
    artifacts = {f"{name}_made": receipt(name, phase) if phase else receipt(name)}
    return StageDone(
        stage=name, phase=phase, artifacts=artifacts, summary={"documents": 3}, seconds=1.0
    )


def labelled(path: int, phase: int) -> PathLabelled:
    return PathLabelled(
        arm="modular", path=path, phase=phase, scores=receipt("label", path, phase), seconds=1.0
    )


def checked(path: int, phase: int, best: int | None = None) -> PathChecked:
    return PathChecked(
        arm="modular",
        path=path,
        phase=phase,
        loss=5.0 - phase,
        best_phase=phase if best is None else best,
        seconds=1.0,
    )


def scored(arm: str, path: int, phase: int) -> PathScored:
    scores = receipt("scores", arm, path, phase)
    return PathScored(arm=arm, path=path, phase=phase, scores=scores, seconds=1.0)


def evaluated(arm: str, phase: int) -> Evaluated:
    return Evaluated(
        arm=arm,
        phase=phase,
        perplexity=9.5 - phase,
        best_path_perplexity=None,
        documents=3,
        tokens=50,
        seconds=1.0,
    )


def sampled(arm: str, phase: int) -> Sampled:
    """A model that is hardly trained may write any character."""
    samples = (
        Sample("law", 7, 2, "In the ", f"begin\x00ing \ud800 {phase}", 5, has_ended=False),
        Sample("code", 3, 0, "def ", "", 0, has_ended=True),
    )
    return Sampled(arm=arm, phase=phase, samples=samples)


def slice_done(step: str, number: int) -> SliceDone:
    return SliceDone(
        stage="route" if step == "features" else "prepare",
        step=step,
        slice=number,
        artifacts={"made": receipt(step, number)},
        summary={"documents": number},
        seconds=1.5,
    )


def facts_of(plan: Plan, task: Task) -> list[Fact]:
    """What finishing `task` records."""
    match task.kind:
        case "prepare" if task.arm:
            return [slice_done(task.step, task.slice)]
        case "prepare" | "report" | "reroute":
            return [stage(task.kind)]
        case "label":
            return [labelled(task.path, task.phase)]
        case "check":
            return [checked(task.path, task.phase)]
        case "route" if task.phase:
            return [stage("route", task.phase)]
        case "route":
            first = [ready(arm.name, m, 0) for arm in plan.arms for m in arm.topology.modules]
            return [stage("route"), *first]
        case "pretrain" | "train":
            arm, path = plan.arm(task.arm), task.path
            modules = arm.topology.modules_of(path)
            if arm.has_outer_steps:
                sent: list[Fact] = [contribution(module, task.phase, path) for module in modules]
            else:
                sent = [ready(arm.name, module, task.phase + 1) for module in modules]
            return [trained(arm.name, path, task.phase), *sent]
        case "outer":
            return [ready(task.arm, task.module, task.phase + 1)]
        case "score":
            return [scored(task.arm, task.path, task.phase)]
        case "evaluate":
            return [evaluated(task.arm, task.phase)]
        case "sample":
            return [sampled(task.arm, task.phase)]


=======
>>>>>>> 8c8aec55 (Commits of a quorum take their locks in one order, and plans are fuzzed on the ledger alone)
def do_one(ledger, plan, worker="w"):
    claim = ledger.queue.claim(worker)
    if claim is not None:
        ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
    return claim


def do_until_a_second_phase(ledger, plan):
    """The claim of a path of the modular arm whose modules have stepped."""
    claim = do_until(ledger, plan, "train")
    while claim.task.arm != "modular" or claim.task.phase == 0:
        ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
        claim = do_until(ledger, plan, "train")
    return claim


def do_until(ledger, plan, kind):
    """Does tasks until one of `kind` is claimed, and gives that claim."""
    while (claim := ledger.queue.claim("w")) is not None:
        if claim.task.kind == kind:
            return claim
        ledger.commit.finish(plan, claim, facts_of(plan, claim.task))
    raise AssertionError(f"no task of kind {kind} came due")


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
    while do_one(ledger, plan) is not None:
        pass
    return ledger
