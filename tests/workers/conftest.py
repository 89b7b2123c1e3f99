"""A run of a second's work: its programs, its corpus, and how it is worked on."""

import dataclasses
import shutil

import pytest
from support.smallest_run import CONFIG, SHARINGS, worker_of

from dipaco.config import MODULAR
from dipaco.data.prepare import prepare
from dipaco.evaluation import plots
from dipaco.runs.opening import create_or_open
from dipaco.runs.programs import Programs
from dipaco.runs.rules import record_of
from dipaco.topology import Topology


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


def never():
    return False
