"""Trackers get the same numbers by the same names, each in its own files; none stops a run."""

import contextlib
import json
import sqlite3
import time
import tomllib
from pathlib import Path

import pytest

from dipaco.cli import options
from dipaco.observe import trackers
from dipaco.observe.errors import NoSuchTracker, TrackerRefused
from dipaco.observe.events import Event
from dipaco.observe.trackers import TensorBoard, TrackedRun, Trackers, numbers_of

TRAINED = Event("path_trained", {"arm": "modular", "path": "3", "step": 20, "loss": 4.5})
LATER = Event("path_trained", {"arm": "modular", "path": "3", "step": 40, "loss": 4.25})
OTHER = Event("path_trained", {"arm": "modular", "path": "0", "step": 20, "loss": 4.75})
LEFT_OUT = Event("domain_left_out", {"domain": "law", "reason": "it is short"}, "warning")
NAME = "path_trained/modular/3/loss"


@pytest.fixture
def run(tmp_path):
    return TrackedRun("toy", "toy seed 0", "5" * 32, '{"seed": 0}', tmp_path)


def opened(run, *names, say=print):
    return Trackers(names, run, run.folder / "board", say)


def test_numbers_of_an_event_with_a_step_have_its_texts_in_their_names():
    assert numbers_of(TRAINED) == (20, {NAME: 4.5})
    assert numbers_of(Event("a", {"step": 3, "b": None, "c": 2})) == (3, {"a/c": 2})
    assert numbers_of(LEFT_OUT) is None


def test_command_line_library_and_extras_know_the_same_trackers():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert tuple(options.TRACKERS) == trackers.TRACKERS
    assert set(trackers.TRACKERS) <= set(project["project"]["optional-dependencies"])


def test_tensorboard_gets_the_numbers_of_events_that_have_a_step(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX", reason="the extra `tensorboard` is not installed")
    with TensorBoard(tmp_path) as log:
        scalars = []
        monkeypatch.setattr(log._writer, "add_scalar", lambda *scalar: scalars.append(scalar))
        log.write(TRAINED)
        log.write(LEFT_OUT)
    assert scalars == [(NAME, 4.5, 20)]
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_trackio_keeps_them_in_its_folder_and_a_run_that_goes_on_is_the_same_run(run, monkeypatch):
    folder = run.folder / "trackio"
    monkeypatch.setenv("TRACKIO_DIR", str(folder))  # read when it is first imported
    pytest.importorskip("trackio", reason="the extra `trackio` is not installed")
    for events in ([TRAINED, OTHER, LEFT_OUT], [LATER]):
        with opened(run, "trackio") as log:
            for event in events:
                log.write(event)
    with contextlib.closing(sqlite3.connect(folder / "toy.db")) as kept:
        rows = kept.execute("SELECT run_id, step, metrics FROM metrics ORDER BY id").fetchall()
    assert [(step, json.loads(metrics)) for _, step, metrics in rows] == [
        (20, {NAME: 4.5}),
        (20, {"path_trained/modular/0/loss": 4.75}),
        (40, {NAME: 4.25}),
    ]
    assert len({run_id for run_id, *_ in rows}) == 1


@pytest.mark.slow  # it starts a process of its own
def test_weights_and_biases_keeps_them_in_the_runs_folder_when_it_is_offline(run, monkeypatch):
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with opened(run, "wandb") as log:
        for event in (TRAINED, OTHER, LATER, LEFT_OUT):
            log.write(event)
    (file,) = run.folder.glob("wandb/offline-run-*/run-*.wandb")
    assert file.stem == f"run-{run.identity}"
    deadline = time.monotonic() + 60
    while b"4.75" not in (content := file.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)  # a process of its own writes it
    for name, value in ((NAME, b"4.5"), (NAME, b"4.25"), ("path_trained/modular/0/loss", b"4.75")):
        assert name.encode() in content
        assert value in content


def test_weights_and_biases_without_an_account_is_refused_before_anything_is_trained(
    run, monkeypatch
):
    wandb = pytest.importorskip("wandb", reason="the extra `wandb` is not installed")

    def refuse(**_):
        raise wandb.errors.UsageError("api_key not configured (no-tty). call wandb.login")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(TrackerRefused, match=r"api_key not configured.*`wandb login`.*`--wandb`"):
        opened(run, "wandb")


class Failing:
    """A tracker whose server goes away."""

    def __init__(self, *failing):
        self.failing, self.done = failing, []

    def __getattr__(self, verb):
        def do(*_):
            self.done.append(verb)
            if verb in self.failing:
                raise OSError("the server is away")

        return do


@pytest.fixture
def has_all_packages(monkeypatch):
    """No tracker of these tests uses one."""
    monkeypatch.setattr(trackers, "_library_of", lambda tracker: None)


@pytest.mark.usefixtures("has_all_packages")
def test_a_tracker_that_fails_is_left_out_and_said_once_and_the_others_go_on(run, monkeypatch):
    bad, good, last = Failing("write"), Failing(), Failing("close")
    made = {"tensorboard": bad, "trackio": good, "wandb": last}
    monkeypatch.setattr(
        trackers, "OPENED", {name: lambda *_, t=tracker: t for name, tracker in made.items()}
    )
    said = []
    with opened(run, *made, say=said.append) as log:
        log.write(TRAINED)
        log.write(LATER)
    assert bad.done == ["write", "close"]
    assert good.done == last.done == ["write", "write", "close"]
    assert said == [
        "warning: tensorboard gets no more numbers of this run: the server is away",
        "warning: wandb may miss the last numbers of this run: the server is away",
    ]


@pytest.mark.usefixtures("has_all_packages")
def test_where_one_cannot_begin_those_before_it_are_closed(run, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setitem(trackers.OPENED, "trackio", fail)
    for second, error in (("mlflow", NoSuchTracker), ("trackio", PermissionError)):
        first = Failing()
        monkeypatch.setitem(trackers.OPENED, "tensorboard", lambda *_, first=first: first)
        with pytest.raises(error):
            opened(run, "tensorboard", second)
        assert first.done == ["close"]
