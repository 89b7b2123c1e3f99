"""The storm in its smallest form, and that its checker does not let anything pass."""

import contextlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dipaco.runs.run import reading

TOOL = Path(__file__).parents[2] / "tools" / "storm.py"


@pytest.fixture(scope="module")
def storm():
    spec = importlib.util.spec_from_file_location("storm", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_training_in_a_storm_ends_with_the_bits_of_one_in_the_calm(tmp_path):
    dials = "--phases 6 --steps 10 --workers 2 --faults 5 --kill-every 2"
    command = [sys.executable, str(TOOL), *dials.split(), "--lease-seconds", "4"]
    command += ["--folder", str(tmp_path)]
    # The workers are as the user's are: no fake devices.
    environment = {**os.environ, "XLA_FLAGS": "", "DIPACO_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["digest_equal"], done.stdout
    assert (answer["documents_lost"], answer["documents_twice"]) == (0, 0)
    assert len(answer["faults"]) >= 4, done.stdout


def change(folder, statement):
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger, ledger:
        assert ledger.execute(statement).rowcount == 1


def test_the_checker_sees_one_changed_digest(storm, tiny, copy_of):
    other = copy_of(tiny)
    with reading(tiny.folder) as there, reading(other.folder) as here:
        assert storm.digests(here) == storm.digests(there)
        assert len(storm.digests(there)) == 4 * 3
    late = "arm = 'modular' AND module = 'late/0001' AND phase = 1"
    change(other.folder, f"UPDATE modules SET digest = 'f' || substr(digest, 2) WHERE {late}")
    with reading(tiny.folder) as there, reading(other.folder) as here:
        assert storm.digests(here) != storm.digests(there)


@pytest.mark.parametrize(
    ("statement", "lost", "twice"),
    [
        ("DELETE FROM arrivals WHERE module = 'early/0000' AND phase = 1 AND path = 1", 12, 0),
        ("UPDATE arrivals SET path = 3 WHERE module = 'early/0000' AND phase = 1 AND path = 1",
         12, 12),
        ("UPDATE trained SET losses = '[1, 1]' WHERE arm = 'modular' AND path = 2 AND phase = 0",
         4, 0),
        ("UPDATE trained SET losses = '[1, 1, 1, 1]' WHERE arm = 'modular' AND path = 2 AND"
         " phase = 1", 0, 4),
        ("UPDATE trained SET step = 5 WHERE arm = 'modular' AND path = 2 AND phase = 1", 4, 0),
    ],
)  # fmt: skip
def test_the_checker_counts_rows_that_were_lost_and_rows_that_came_twice(
    storm, tiny, copy_of, statement, lost, twice
):
    run = copy_of(tiny)
    with reading(run.folder) as opened:
        assert storm.rows_lost_and_twice(opened) == (0, 0)
    change(run.folder, statement)
    with reading(run.folder) as opened:
        assert storm.rows_lost_and_twice(opened) == (lost, twice)
