"""A corpus of many files, in its smallest form."""

import json
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "bench_corpus.py"


def test_first_batches_open_only_the_files_that_they_touch():
    sizes = {"files": 40, "documents": 60, "paths": 100, "rows": 1, "length": 256}
    options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    done = subprocess.run([sys.executable, TOOL, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = json.loads(done.stdout.splitlines()[-1])["steps"]
    assert steps["plan a path's rows"]["open_files"] == steps["open"]["open_files"]
    assert steps["first batch"]["open_files"] < steps["open"]["open_files"] + 40
