"""The accelerator's benchmark starts with JAX, Flax, Optax and annotated-types alone."""

import os
import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "bench_gpu.py"

BLOCKED = """
import runpy, sys
for name in ("grain", "array_record", "orbax", "safetensors", "xxhash", "tokenizers", "pyarrow",
             "torch", "transformers", "matplotlib"):
    sys.modules[name] = None  # an import of it fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_it_needs_four_packages_only_and_says_where_there_is_no_gpu():
    # As `python tools/bench_gpu.py` finds what lies beside it.
    found = filter(None, (str(TOOL.parent), os.environ.get("PYTHONPATH")))
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(TOOL)], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(found)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no GPU here")
