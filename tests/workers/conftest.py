"""A run of a second's work: its config, its corpus and its worker."""

import dataclasses
import shutil

import pytest

from dipaco.config import MODULAR, BaseSettings, EvaluationSettings
from dipaco.data.prepare import prepare
from dipaco.evaluation import plots
from dipaco.model.config import part_names
from dipaco.runs.opening import create_or_open
from dipaco.runs.programs import Programs
from dipaco.runs.rules import record_of
from dipaco.store.retention import RetentionSettings
from dipaco.topology import PER_PATH, Level, Topology
from dipaco.workers.callbacks import NullCallbacks
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.loop import Worker
from tests.support.tiny_run import TOY

MODEL = dataclasses.replace(TOY.model, d_model=16, num_layers=1, d_ff=24, max_length=48)
EVERYTHING = part_names(MODEL)
SHARINGS = {
    "2x2": (
        Level(name="early", parts=("embed",), experts=2),
        Level(name="late", parts=("block_00", "final_norm", "head"), experts=2),
    ),
    "diloco": (Level(name="all", parts=EVERYTHING), Level(name="replica", experts=3)),
    "flat_moe": (Level(name="all", parts=EVERYTHING, experts=3),),
    "grid_with_private_parts": (
        Level(name="early", parts=("embed",), experts=2),
        Level(name="late", parts=("final_norm",), experts=2),
        Level(name="own", parts=("block_00",), experts=PER_PATH),
        Level(name="stem", parts=("head",)),
    ),
}
CONFIG = dataclasses.replace(
    TOY,
    model=MODEL,
    topology=Topology(levels=SHARINGS["2x2"]),
    data=dataclasses.replace(TOY.data, sources=("toy:?documents=160&words=30",), length=48),
    base=BaseSettings(steps=2, steps_per_phase=1),
    phases=3,
    inner=dataclasses.replace(TOY.inner, steps=2),
    evaluation=EvaluationSettings(every_phases=3),
    baselines=(),
    retention=RetentionSettings(),
)


@pytest.fixture(scope="module", autouse=True)
def _no_picture():
    """Reports are written without their picture, which takes as long as the rest of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw_report", lambda report, file: file.write_bytes(b"a picture"))
        yield


@pytest.fixture(scope="session")
def programs():
    """Compiled once: the sharing does not change what a path computes."""
    return Programs(CONFIG)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    prepare(CONFIG.corpus, folder)
    return folder


@pytest.fixture
def begin(programs, corpus, tmp_path):
    """`begin(config, rules, name)` -> a new run in a folder of that name, its text prepared."""
    opened = []

    def begin(config, rules=None, name="run"):
        shutil.copytree(corpus, tmp_path / name / "corpus")
        recorded = None if rules is None else record_of(rules)
        run, _ = create_or_open(tmp_path / name, config, rules=recorded)
        if "path_loss" not in run.rules:
            run.programs = programs
        opened.append(run)
        return run

    yield begin
    for run in opened:
        run.ledger.close()


def config_with(settings, *, sharing, phases, steps, early, alternations):
    """The toy run of these modules and phases, with some settings of outer steps."""
    return dataclasses.replace(
        CONFIG,
        topology=Topology(levels=SHARINGS[sharing]),
        phases=phases,
        inner=dataclasses.replace(CONFIG.inner, steps=steps, hold_out=early),
        routing=dataclasses.replace(CONFIG.routing, alternations=alternations),
        outer=dataclasses.replace(CONFIG.outer, **settings),
    )


def work_until(run, phase):
    """Does tasks until every modular module has reached a phase."""
    modules = set(run.config.topology.modules)
    worker = worker_of(run)
    while run.ledger.facts.modules_at(MODULAR, phase) != modules:
        assert worker.run_once()


def worker_of(run, name="test", callbacks=None, **more):
    """A worker whose heart is not started: its leases last as long as the test."""
    return Worker(
        run, name, callbacks or NullCallbacks(), LeaseRenewer(run.open_ledger, name, 60.0), **more
    )


def never():
    return False
