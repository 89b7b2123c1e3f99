"""`tools/bench_stages.py` in its smallest form: many workers end with what one makes, sooner."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "bench_stages.py"


@pytest.mark.slow
def test_many_workers_end_with_what_one_makes_and_sooner(tmp_path):
    dials = "--workers 4 --experts 2 --slices 4 --phases 1 --base-phases 2"
    done = subprocess.run(
        [sys.executable, str(TOOL), *dials.split()],
        capture_output=True, text=True, env=os.environ | {"DIPACO_CACHE": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["digest_equal"], done.stdout
    assert 0.25 <= answer["ratio"] < 0.5, done.stdout
    assert answer["stages"]["prepare tokenise"] < 0.3 * answer["stages_of_one"]["prepare tokenise"]
