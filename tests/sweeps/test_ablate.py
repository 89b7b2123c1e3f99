"""`dipaco ablate` as a user runs it: killed, continued, changed; and what it refuses."""

import hashlib
import json
import re
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.tiny_run import CONFIG, Fault, facts, report

SWEEP = (
    CONFIG.replace("def run()", "def tiny()")
    + """

import dataclasses

from dipaco.outer.config import OuterSettings


def diloco():
    base = tiny()
    parts = tuple(part for level in base.topology.levels for part in level.parts)
    return dataclasses.replace(
        base,
        topology=Topology(
            levels=(
                Level(name="all", parts=parts),
                Level(name="first", experts=2),
                Level(name="second", experts=2),
            )
        ),
        outer=OuterSettings(rescale_by_fan_in=False),
        baselines=(),
    )


def sweep():
    return {ROWS}
"""
)


def sweep_file(folder: Path, rows: str, name: str = "little") -> Path:
    file = folder / f"{name}.py"
    file.write_text(SWEEP.replace("ROWS", rows))
    return file


def content_of(folder: Path) -> dict[str, str]:
    """Digests of all files of a run but its locks and the lists of names that SQLite keeps."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.endswith(("-wal", "-shm"))
    }


class Sweep(NamedTuple):
    """A sweep's file, its folder, and its first row."""

    file: Path
    folder: Path
    row: Path


@pytest.fixture(scope="module")
def little(dipaco, tmp_path_factory) -> Sweep:
    """A sweep of one row, killed twice and then finished; later tests add rows to it.

    It is killed when it has started the base model's process, which goes on alone, and when it has
    started the row's.
    """
    place = tmp_path_factory.mktemp("little")
    file, folder = sweep_file(place, '"2x2": tiny()'), place / "sweep"
    command = ("ablate", file, "--run", folder)
    for _ in range(2):
        ended = dipaco(*command, fault=Fault("after start"), forks=True)
        assert (ended.code, ended.fired) == (-signal.SIGKILL, "after start None"), ended.err
    ended = dipaco(*command, forks=True)
    assert ended.code == 0, ended.err
    return Sweep(file, folder, folder / "rows" / "2x2" / "0")


@pytest.mark.slow
def test_a_finished_sweep_reckons_with_other_links_without_training(dipaco, little):
    ended = dipaco("ablate", little.file, "--run", little.folder, "--set", "report.link_megabits=5")
    assert ended.code == 0, ended.err
    assert "all 1 runs of little are finished" in ended.err
    assert "time at 5 Mbit/s" in (little.folder / "table.md").read_text()
    ended = dipaco("ablate", little.file, "--run", little.folder)
    assert ended.code == 0, ended.err
    assert "time at 20 Mbit/s" in (little.folder / "table.md").read_text()


@pytest.mark.slow
def test_a_row_equals_the_run_that_it_would_be_alone_also_after_kills(tiny, little):
    assert facts(little.row) == facts(tiny.folder)
    assert report(little.row)["rows"] == report(tiny.folder)["rows"]
    table = json.loads((little.folder / "table.json").read_bytes())
    assert [row["name"] for row in table["rows"]] == [
        "2x2/dense",
        "2x2/dense_equal_tokens",
        "2x2",
        "2x2_by_likelihood",
        "2x2_ensemble_2",
        "2x2_ensemble",
        "2x2_ensemble_renewed",
        "2x2_best_path",
    ]
    assert (little.folder / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_finished_rows_are_not_run_again_and_a_new_row_runs_alone(dipaco, little):
    before = content_of(little.row)
    command = ("ablate", little.file, "--run", little.folder)
    ended = dipaco(*command, forks=True)
    assert ended.code == 0
    assert "all 1 runs of little are finished" in ended.err
    sweep_file(little.file.parent, '"2x2": tiny(), "diloco": diloco()')
    ended = dipaco(*command, forks=True)
    assert ended.code == 0, ended.err
    assert "base model" not in ended.err.replace("begins with the base model", "")
    assert "diloco, seed 0 finished" in ended.err
    assert "2x2, seed 0 " not in ended.err
    assert len(list((little.folder / "shared").iterdir())) == 1
    table = json.loads((little.folder / "table.json").read_bytes())
    (pair,) = [o for o in table["orderings"] if {o["better"], o["worse"]} == {"2x2", "diloco"}]
    assert pair["held_equal"] == ["steps", "tokens", "parameters_per_path", "flops"]
    assert content_of(little.row) == before

    ended = dipaco(*command, "--only", "2x2", "--redo", "2x2")
    assert ended.code == 0, ended.err
    assert "`2x2` has not changed: there is nothing to redo." in ended.out
    assert "all 1 runs of little are finished" in ended.err
    assert json.loads((little.folder / "table.json").read_bytes()) == table  # of all rows, still


@pytest.mark.slow
def test_a_changed_row_is_named_and_run_again_with_redo(dipaco, little):
    before = content_of(little.row)
    command = ("ablate", little.file, "--run", little.folder)
    diloco = little.folder / "rows" / "diloco" / "0"
    if not diloco.exists():  # this test alone
        sweep_file(little.file.parent, '"2x2": tiny(), "diloco": diloco()')
        assert dipaco(*command, forks=True).code == 0
    kept = content_of(diloco)
    changed = '"2x2": tiny(), "diloco": dataclasses.replace(diloco(), phases=1)'
    sweep_file(little.file.parent, changed)
    ended = dipaco(*command, forks=True)
    assert ended.code == 2
    assert "RowsChanged: `diloco` of the sweep changed" in ended.err
    assert "`phases` was 2 and is 1" in ended.err
    assert content_of(diloco) == kept
    ended = dipaco(*command, "--redo", "diloco", forks=True)
    assert ended.code == 0, ended.err
    assert content_of(little.folder / "replaced" / "diloco-0-1") == kept
    assert content_of(little.row) == before


BAD_SWEEPS = [
    ('"a": tiny(), "a": diloco()', "", "BadSweep: .*names the row `a` twice"),
    ('"a b": tiny(), "A_b": diloco()', "", "rows `a b` and `A_b` would share a folder"),
    ('"a/b": tiny()', "", "`a/b` cannot name a row"),
    ('"\u05d0" * 51: tiny()', "", "cannot name a row: .* 100 bytes at most"),
    ('"a": tiny(), "a_best_path": diloco()', "", "`a_best_path` has a name that the table"),
    ('"a_every_16": tiny()', "", "`a_every_16` has a name that the table gives"),
    ('"a": 3', "", "its row `a` is int, not RunConfig"),
    ("", "", r"`sweep\(\)` returned no rows"),
    ('"a": tiny()', "--set seed=3", "NotForSweeps: `--set seed=.*`--seeds` says"),
    ('"a": tiny()', "--set name=b", "NotForSweeps: `--set name=.*its file names"),
    ('"a": tiny()', "--seeds 0,1,0", "BadSeeds: .*0 is there twice"),
    ('"a": tiny()', "--seeds 0,x", "BadSeeds: .*`x` is no seed"),
    ('"a": tiny()', "--jobs 0", "BadSetting: `--jobs` is 0"),
    ('"a": tiny()', "--only b", r"NoSuchRow: .*no row `b`\. It has: a"),
    ('"a": tiny()', "--redo b", r"NoSuchRow: .*no row `b`"),
    ('"a": tiny()', "--set inner.step=3", "UnknownSetting: `inner.step`"),
    ('"a": tiny()', "--set model.num_layers=3", "BadSweep: .*row `a`: No level owns `block_02`"),
]


def test_a_bad_sweep_or_argument_is_refused_before_anything_is_written(here, tmp_path):
    folder = tmp_path / "sweep"
    for rows, arguments, problem in BAD_SWEEPS:
        ended = here("ablate", sweep_file(tmp_path, rows), "--run", folder, *arguments.split())
        assert ended.code == 2
        assert len(ended.err.strip().splitlines()) == 1
        assert re.search(problem, ended.err), (problem, ended.err)
    assert not folder.exists()


def test_a_folder_that_holds_something_else_is_left_alone(here, tiny, tmp_path):
    sweep = sweep_file(tmp_path, '"a": tiny()')
    before = content_of(tiny.folder)
    ended = here("ablate", sweep, "--run", tiny.folder)
    assert ended.code == 2
    assert "holds a single run, not the sweep `little`" in ended.err
    assert content_of(tiny.folder) == before

    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "sweep.json").write_text('{"sweep": "sharing"}')
    ended = here("ablate", sweep, "--run", folder)
    assert ended.code == 2
    assert "holds the sweep `sharing`, not the sweep `little`" in ended.err
    assert [file.name for file in folder.iterdir()] == ["sweep.json"]

    for damaged in ("{", "", "[]", "{}"):
        (folder / "sweep.json").write_text(damaged)
        ended = here("ablate", sweep, "--run", folder)
        assert ended.code == 2
        assert "holds a damaged sweep.json (where it is `little`'s, remove that file)" in ended.err
    for verb in (("status",), ("inspect",), ("train", tiny.config)):
        ended = here(*verb, "--run", folder)
        assert ended.code == 2
        assert f"FolderHoldsSweep: {folder} holds a sweep, not a run." in ended.err
    assert [file.name for file in folder.iterdir()] == ["sweep.json"]

    ended = here("ablate", sweep, "--run", "s3://bucket/sweep")
    assert ended.code == 2
    assert "SweepNeedsFolder" in ended.err


@pytest.mark.slow
def test_a_row_that_fails_is_named_and_the_others_are_finished(dipaco, tmp_path):
    """48 router documents for 256 paths."""
    many = 'Topology(levels=(*diloco().topology.levels, Level(name="more", experts=64)))'
    many_row = f"dataclasses.replace(diloco(), topology={many})"
    rows = f'"many": {many_row}, "diloco": diloco()'
    sweep = sweep_file(tmp_path, rows)
    ended = dipaco("ablate", sweep, "--run", tmp_path / "sweep", forks=True)
    assert ended.code == 2
    assert "RowsFailed: 1 of the sweep's runs could not be finished: many, seed 0: " in ended.err
    assert "TooFewRouterDocuments" in ended.err
    table = json.loads((tmp_path / "sweep" / "table.json").read_bytes())
    assert [row["name"] for row in table["rows"]] == ["diloco"]
    assert table["missing"] == ["many, seed 0"]
