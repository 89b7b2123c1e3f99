"""`tools/fleet.py` in its smallest form: every fault of a link happens once, and the run ends with
the bits of Algorithm 1.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.hosts import PROGRAMS
from support.sites import why_no_site

TOOL = Path(__file__).parents[2] / "tools" / "fleet.py"


@pytest.fixture
def fleet(command_cache, tmp_path):
    """`fleet(*options, variables={...})`: its last line, and everything that it printed."""

    def run_fleet(*options, **variables):
        command = [sys.executable, str(TOOL), *options, "--folder", str(tmp_path)]
        environment = {**os.environ, "XLA_FLAGS": "", "DIPACO_CACHE": str(command_cache)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment | variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stdout

    return run_fleet


@pytest.mark.cluster
@pytest.mark.timeout(900)  # whole runs, on machines that may be busy
@pytest.mark.slow
def test_a_training_by_hosts_whose_links_fail_ends_with_the_bits_of_algorithm_1(fleet):
    if (problem := why_no_site()) is not None:
        pytest.skip(problem)
    run = "--hosts 3 --experts 2 --phases 24 --steps 4 --task-seconds 2 --lease-seconds 3"
    answer, said = fleet(*run.split(), "--silent-seconds", "6", "--fault-every", "0")
    assert not answer["never"], said
    assert answer["digest_equal"], said
    assert (answer["documents_lost"], answer["documents_twice"]) == (0, 0), said
    assert 0 < answer["goodput"] <= 1.01, said


def test_where_hosts_cannot_be_made_it_says_what_is_missing(fleet, tmp_path):
    answer, said = fleet(PATH=str(tmp_path))
    assert set(answer) == {"skipped"}
    assert "They need root, iproute2 and iptables." in said
    assert all(program in said for program in PROGRAMS)
