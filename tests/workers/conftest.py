"""A run of a second's work: its programs, its corpus, and how it is worked on."""

import contextlib
import dataclasses
import functools
import shutil
from typing import NamedTuple

import numpy as np
import pytest
from support.smallest_run import CONFIG, worker_of

from dipaco import stopping
from dipaco.config import MODULAR
from dipaco.data.prepare import prepare
from dipaco.evaluation import plots
from dipaco.runs.opening import create_or_open
from dipaco.runs.programs import Programs
from dipaco.runs.rules import record_of
from dipaco.store import snapshots
from dipaco.workers import execution, loop
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.origin import from_run
from tests.support.other_process import other_process  # noqa: F401


class PlainFiles:
    """Writes and reads the arrays of a snapshot in Orbax's place, each as a file of its bytes."""

    def save(self, folder, arrays):
        folder.mkdir()
        for name, array in arrays.items():
            (folder / name).write_bytes(array.tobytes())

    def restore(self, folder, template):
        return {
            name: np.frombuffer((folder / name).read_bytes(), like.dtype).reshape(like.shape)
            for name, like in template.items()
        }


@pytest.fixture(scope="module", autouse=True)
def _quick_files():
    """Reports are written without their picture, and snapshots without Orbax: each takes as long as
    the rest of a run. `tests/store/test_snapshots.py` and all runs of commands have Orbax.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw_report", lambda report, file: file.write_bytes(b"a picture"))
        patch.setattr(snapshots, "_checkpointer", lambda: contextlib.nullcontext(PlainFiles()))
        patch.setattr(snapshots, "_check_fits", lambda *_: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _tasks_note_progress():
    """Every kind of task that these tests do notes progress, or it would be taken for one that
    hangs. Only a report, which ends soon, has nothing to note.
    """
    done, noted = set(), {"report"}

    def noting(run, claim, *settings):
        before = stopping.progress()
        facts = execution.execute(run, claim, *settings)
        done.add(claim.task.kind)
        if stopping.progress() > before:  # An outer step, say, may have nothing to add up.
            noted.add(claim.task.kind)
        return facts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "execute", noting)
        yield
    assert done <= noted


@pytest.fixture(scope="session")
def programs():
    """Compiled once: the sharing does not change what a path computes."""
    return Programs(CONFIG)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    prepare(CONFIG.corpus, folder)
    return folder


@pytest.fixture(scope="session")
def opened_in(programs, corpus):
    """`opened_in(folder, config, rules)`: a run that is there, or a new one, its text prepared.
    With `start`, `DIR@PHASE`, it starts from another.
    """

    def opened_in(folder, config, rules=None, start=None):
        given = None if start is None else from_run(config, folder, start)
        if not folder.exists():
            shutil.copytree(corpus, folder / "corpus")
        recorded = None if rules is None else record_of(rules)
        run, _ = create_or_open(folder, config, given, rules=recorded)
        if "path_loss" not in run.rules:
            run.programs = programs
        return run

    return opened_in


@pytest.fixture(scope="session")
def begun(opened_in, tmp_path_factory):
    """(config, how far) -> the folder of such a run, which is made once. `how far`: the phase that
    all modules have reached, a (kind, phase) of which the next task is, or "the end".
    """

    @functools.cache
    def begun(config, until):
        run = opened_in(tmp_path_factory.mktemp("begun") / "run", config)
        if until == "the end":
            finish(run)
        elif isinstance(until, int):
            work_until(run, until)
        else:
            work_until_claimed(run, *until)
        run.ledger.close()
        return run.layout.root

    return begun


@pytest.fixture
def begin(opened_in, begun, tmp_path):
    """`begin(config, rules, name)` -> a new run in a folder of that name, its text prepared. With
    `until`, a copy of one that has come so far (`begun`); with `start`, one from there.
    """
    opened = []

    def begin(config, rules=None, name="run", *, until=None, start=None):
        if until is not None:
            shutil.copytree(begun(config, until), tmp_path / name)
        opened.append(opened_in(tmp_path / name, config, rules, start))
        return opened[-1]

    yield begin
    for run in opened:
        run.ledger.close()


class Undisturbed(NamedTuple):
    """Of a run in which nothing happened."""

    digests: list  # of its modules, by phase
    losses: dict


@pytest.fixture(scope="session")
def undisturbed_of(opened_in, begun):
    """config -> `Undisturbed`."""

    @functools.cache
    def undisturbed_of(config):
        run = opened_in(begun(config, config.phases), config)
        found = Undisturbed(digests_of(run), run.ledger.progress.losses(MODULAR))
        run.ledger.close()
        return found

    return undisturbed_of


@pytest.fixture
def undisturbed(undisturbed_of):
    return undisturbed_of(CONFIG).digests


def changed(config, **settings):
    """With other settings; of a group those that are named: `inner={"steps": 8}`."""
    groups = {
        name: dataclasses.replace(getattr(config, name), **value)
        for name, value in settings.items()
        if isinstance(value, dict)
    }
    return dataclasses.replace(config, **settings | groups)


def work_while(goes_on, worker):
    """One worker does tasks while that is so."""
    while goes_on():
        assert worker.run_once()


def work_until(run, phase, worker=None):
    """Does tasks until every modular module has reached a phase."""
    facts, modules = run.ledger.facts, set(run.config.topology.modules)
    work_while(lambda: facts.modules_at(MODULAR, phase) != modules, worker or worker_of(run))


def do(run, claim):
    run.ledger.commit.finish(run.plan, claim, execution.execute(run, claim, Callbacks(), never))


def claim_of(run, kind):
    """The next claim of a kind; what comes before it is done."""
    while (claim := run.ledger.queue.claim("test")).task.kind != kind:
        do(run, claim)
    return claim


def work_until_claimed(run, kind, phase):
    """Works until a task of this kind and phase is the next; leaves it ready."""
    worker = worker_of(run)
    while True:
        claim = run.ledger.queue.claim("peek")
        run.ledger.queue.give_back(claim)
        if (claim.task.kind, claim.task.phase) == (kind, phase):
            return claim.task
        assert worker.run_once()


class RecordingCallbacks(Callbacks):
    """Remembers what it was told; calls `at_step` after each step."""

    def __init__(self, at_step=lambda: None):
        self.redos, self.released, self.losses, self.failed, self.finished = [], [], [], [], []
        self.pauses = self.steps = 0
        self._at_step = at_step

    def paused(self):
        self.pauses += 1

    def step_taken(self, claim, loss, tokens):
        self.steps += 1
        self._at_step()

    def task_finished(self, claim, facts):
        self.finished.append(claim.task)

    def task_failed(self, claim, reason, *, is_final):
        self.failed.append((claim.task, reason, is_final))

    def task_postponed(self, claim, error):
        self.redos.append((claim.task, type(error).__name__))

    def task_released(self, claim, step):
        self.released.append((claim.task, step))

    def claim_lost(self, claim):
        self.losses.append(claim.task)


def finish(run):
    """Does all that is left to do, by one worker. Returns what it recorded."""
    callbacks = RecordingCallbacks()
    worker = worker_of(run, "recoverer", callbacks)
    while worker.run_once():
        pass
    assert not run.ledger.queue.unfinished()
    return callbacks


def file_of(run, module, phase):
    """The parameters of a module of the modular arm."""
    stored = run.ledger.facts.module(MODULAR, module, phase)
    return run.layout.root / stored.parameters.name


def digests_of(run):
    """Of every module, by phase."""
    return [
        {
            module: receipt.digest
            for module, receipt in run.ledger.facts.receipts_at(MODULAR, phase).items()
        }
        for phase in range(run.config.phases + 1)
    ]


def never():
    return False
