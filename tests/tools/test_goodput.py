"""`tools/goodput.py` in its smallest form: tasks take their time, and the task of a killed worker
waits for the end of its lease.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import goodput
import pytest

TOOL = Path(__file__).parents[2] / "tools" / "goodput.py"


def test_one_is_killed_at_a_random_moment_of_every_interval():
    options = argparse.Namespace(kill_every=10.0)
    moments = list(itertools.islice(goodput.kill_moments(options, random.Random(0)), 50))
    assert [int(moment // 10) for moment in moments] == list(range(50))
    assert len({moment % 10 for moment in moments}) == 50


@pytest.mark.cluster
def test_what_two_workers_do_of_what_they_could_while_some_are_killed(command_cache, tmp_path):
    dials = "--minutes 0.4 --pairs 1 --workers 2 --experts 2 --task-seconds 1.5"
    kills = ["--lease-seconds", "3", "--kill-every", "8", "--folder", str(tmp_path)]
    environment = {**os.environ, "XLA_FLAGS": "", "DIPACO_CACHE": str(command_cache)}
    done = subprocess.run(
        [sys.executable, str(TOOL), *dials.split(), *kills],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["digest_equal"], done.stdout
    assert answer["kills"] >= 2, done.stdout
    assert 0 < answer["goodput"] < 1, done.stdout
    assert 0 < answer["participation"] < 1.05, done.stdout
    assert answer["goodput_calm"] <= 1.01, "a task took less than it should"
    # A lease begins at its last renewal, which was a quarter of it ago at most.
    assert not answer["wait_seconds"] < 0.7 * 3, "something gave a killed worker's task back"
