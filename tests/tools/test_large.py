"""The whole job at a size, in its smallest form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "large.py"


@pytest.mark.slow
def test_the_whole_job_survives_a_kill_answers_as_transformers_does_and_fits_its_plan(tmp_path):
    pytest.importorskip("transformers")
    sizes = {"parameters": 1e6, "length": 64, "rows": 2, "steps": 8, "phases": 2, "megabytes": 1}
    options = [word for name, size in sizes.items() for word in (f"--{name}", f"{size:g}")]
    command = [sys.executable, TOOL, *options, "--exact", "--folder", tmp_path / "large"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["is_exact"]
    assert 0.5 < found["memory_by_plan"] < 1.5  # libraries are most of it at this size
    assert found["serve_8_tokens_per_second"] > 0
