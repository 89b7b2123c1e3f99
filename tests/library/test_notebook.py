"""The example notebook's cells run one after another, and its kept outputs are small."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.tiny_run import HOME

NOTEBOOK = HOME / "configs" / "examples" / "quickstart.ipynb"
MOST_BYTES = 40_000  # without its picture
CHANGES = """
import json
assert "Rules of a: built-in. Of b: outer step" in repr(dipaco.compare(run, own))
print(json.dumps({row["name"]: row["change"] for row in dipaco.compare(run, own).rows}))
"""


def cells():
    every = json.loads(NOTEBOOK.read_bytes())["cells"]
    return [cell for cell in every if cell["cell_type"] == "code"]


def test_its_outputs_are_kept_small_and_without_an_error():
    assert NOTEBOOK.stat().st_size < MOST_BYTES
    assert all(cell["outputs"] for cell in cells())
    kinds = {output["output_type"] for cell in cells() for output in cell["outputs"]}
    assert kinds <= {"display_data", "execute_result", "stream"}


@pytest.mark.slow
@pytest.mark.timeout(900)  # two runs of `toy`, each with programs to compile
def test_its_cells_run_one_after_another(tmp_path, command_cache):
    sources = []
    for source in ("".join(cell["source"]) for cell in cells()):
        if source.startswith("%%writefile "):
            first, _, rest = source.partition("\n")
            (tmp_path / first.split()[1]).write_text(rest)
        else:
            sources.append(source)
    (tmp_path / "cells.py").write_text("\n".join([*sources, CHANGES]))
    environment = {"DIPACO_CACHE": str(command_cache), "XLA_FLAGS": "", "PYTHONPATH": str(HOME)}
    ended = subprocess.run(
        [sys.executable, "cells.py"],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    changes = json.loads(ended.stdout.splitlines()[-1])
    assert changes["dense"] == 0, "the dense arm has no outer step"
    assert changes["modular"] != 0
