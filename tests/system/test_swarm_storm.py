"""The storm of a swarm in its smallest form: real processes come, leave and are killed, and every
step is that of one machine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "swarm_storm.py"


def test_a_swarm_in_a_storm_takes_the_steps_of_one_machine(tmp_path, command_cache):
    pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")
    dials = "--volunteers 2 --clients 1 --events 4 --steps 6 --phases 2"
    dials += " --batch 16 --block-rows 1 --seconds-per-block 0.05 --lease-seconds 4"
    command = [sys.executable, str(TOOL), *dials.split(), "--folder", str(tmp_path)]
    # As the user's are: one device.
    environment = {**os.environ, "XLA_FLAGS": "", "DIPACO_CACHE": str(command_cache)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["replay_max_difference"] < 1e-5, done.stdout
    assert answer["loss_max_difference"] < 1e-4, done.stdout
    assert (answer["steps"], answer["rows_lost"], answer["rows_twice"]) == (12, 0, 0)
    assert "SIGKILL of the leading backbone" in answer["faults"], done.stdout
