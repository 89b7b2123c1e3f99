"""lm-eval, unmodified, gets from a served run what `transformers` computes."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.tiny_run import HOME


@pytest.mark.slow
def test_lm_eval_gets_the_figures_of_transformers(tiny, command_cache):
    pytest.importorskip("starlette", reason="HTTP needs the `serve` extra")
    pytest.importorskip("lm_eval", reason="needs the `parity` extra")
    environment = os.environ | {
        "XLA_FLAGS": "",
        "PYTHONPATH": str(HOME),
        "DIPACO_CACHE": str(command_cache),
    }
    command = [sys.executable, "tools/check_lm_eval.py", "--run", tiny.folder, "--documents", 4]
    ended = subprocess.run(
        [str(word) for word in command], env=environment, cwd=HOME, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    assert result["sums"] >= 4 * 4 + 4  # of alternatives and of windows
    assert result["texts"] == 4
    assert 0 < result["worst_relative"] < 1e-3
