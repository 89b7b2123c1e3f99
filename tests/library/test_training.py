"""`dipaco.run` does what `dipaco train` does."""

import ast
import dataclasses
import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest

import dipaco as library
from dipaco.errors import BadSetting
from dipaco.library.console import title_of
from dipaco.model.config import MeshConfig
from dipaco.observe.errors import NoSuchTracker
from dipaco.overrides import load_config
from dipaco.runs.errors import RunOfOtherConfig
from dipaco.runs.opening import create_or_open, has_begun
from dipaco.topology import Topology
from dipaco.workers.errors import CannotTrainHere
from tests.support.tiny_run import HOME, TOY, facts, report


@pytest.fixture
def own_cache(command_cache, monkeypatch):
    """Programs that other tests have compiled."""
    import jax

    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("DIPACO_CACHE", str(command_cache))
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def test_a_run_from_python_goes_on_to_the_table_of_the_command_line(
    half, tiny, copy_of, own_cache, capsys
):
    folder, events = copy_of(half).folder, []
    with library.run(TOY, folder, progress=events.append) as run:
        assert run.is_finished
        rows = run.report.rows
    assert capsys.readouterr().out.count("\n") <= 1
    assert {"path_trained", "module_updated", "evaluated"} <= {event.name for event in events}
    logged = (folder / "events.jsonl").read_text()
    assert all(f'"{event.name}"' in logged for event in events)
    assert len(rows) == len(report(tiny.folder)["rows"])


def test_a_finished_run_is_opened_at_once_and_another_config_is_refused(tiny, copy_of, own_cache):
    run = copy_of(tiny)
    before = facts(run.folder)
    with library.run(run.config, run.folder, progress=False) as opened:
        assert opened.report["modular"]
    assert facts(run.folder) == before
    with pytest.raises(RunOfOtherConfig):
        library.run(library.load_config(run.config, ["seed=1"]), run.folder, progress=False)


def test_too_few_devices_are_said_before_the_run_begins(tmp_path, own_cache):
    config = dataclasses.replace(TOY, mesh=MeshConfig(tensor=16))
    with pytest.raises(CannotTrainHere, match="tensor=16 does not fit"):
        library.run(config, tmp_path / "run", progress=False)
    assert not has_begun(tmp_path / "run", config)


def test_a_value_of_the_wrong_type_is_refused_before_a_folder_is_made(tmp_path, own_cache):
    """The folder of a run whose config cannot be read again would be of no use."""
    inner = dataclasses.replace(TOY.inner, steps=12 / 4)
    with pytest.raises(BadSetting, match=r"`inner\.steps` is 3\.0\. Expected a whole number"):
        library.run(dataclasses.replace(TOY, inner=inner), tmp_path / "run", progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("trackers", "error", "says"),
    [
        (["tensorbord"], NoSuchTracker, "`tensorbord` is no tracker.*tensorboard, trackio, wandb"),
        ("wandb", BadSetting, r"`trackers` is 'wandb'\. Expected a list of names"),
    ],
)
def test_a_mistyped_tracker_is_refused_before_a_folder_is_made(
    tmp_path, own_cache, trackers, error, says
):
    with pytest.raises(error, match=says):
        library.run(TOY, tmp_path / "run", trackers=trackers, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_one_path_is_told_as_one(tmp_path):
    (one,) = load_config("toy", ["topology=1"]).topology.levels
    config = dataclasses.replace(TOY, topology=Topology(levels=(one,)))
    run, _ = create_or_open(tmp_path / "run", config)
    assert "seed 0: 1 path, 1 module\n" in title_of(run)
    with library.open(tmp_path / "run") as opened:
        assert repr(opened).splitlines()[1].startswith("modular: 1 path of ")
    run.ledger.close()


def test_the_example_prints_the_front_pages_table_and_draws_its_picture(
    tiny, copy_of, own_cache, capsys
):
    run = copy_of(tiny)
    example = runpy.run_path(str(HOME / "configs" / "examples" / "front_page.py"))
    example["main"](str(run.config), run.folder)
    said = capsys.readouterr().out
    for row in report(run.folder)["rows"]:
        assert re.search(rf"^{row['name']} +{row['perplexity']:,.2f} ", said, re.MULTILINE)
    assert "e+" not in said
    assert (run.folder / "front_page.png").read_bytes().startswith(b"\x89PNG")


EXAMPLES = sorted((HOME / "configs" / "examples").glob("own_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_of_own_rules_runs_as_its_docstring_says(example, command_cache, tmp_path):
    assert len(EXAMPLES) == 3
    assert len(example.read_text().splitlines()) <= 60
    doc = ast.get_docstring(ast.parse(example.read_text()))
    first, second = re.findall(r"^    (.+)$", doc, re.MULTILINE)
    shutil.copytree(HOME / "configs", tmp_path / "configs")  # the command names the file from here
    environment = os.environ | {"PYTHONPATH": str(HOME), "DIPACO_CACHE": str(command_cache)}
    python, *arguments = first.split()
    assert python == "python"
    train = [sys.executable, *arguments]
    ran = subprocess.run(train, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^modular +\d", ran.stdout, re.MULTILINE)

    path, program, *worker = second.split()
    assert (path, program) == ("PYTHONPATH=configs/examples", "dipaco")
    environment["PYTHONPATH"] = os.pathsep.join((str(HOME), "configs/examples"))
    join = [sys.executable, "-m", "dipaco.cli.main", *worker]
    joined = subprocess.run(join, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert joined.returncode == 0, joined.stderr
