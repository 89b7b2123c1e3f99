"""Tools as their users start them."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.tiny_run import HOME


@pytest.fixture
def tool(command_cache, tmp_path):
    """`tool("storm.py", *words, VARIABLE=...)` -> what its last line says, and all that it printed.
    It has one device, as a user has, and its files are in `tmp_path`.
    """

    def run(name, *words, **variables):
        command = [sys.executable, str(HOME / "tools" / name), *words, "--folder", str(tmp_path)]
        own = {"XLA_FLAGS": "", "DIPACO_CACHE": str(command_cache), **variables}
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | own)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stdout

    return run
