"""`tools/goodput.py` in its smallest form: tasks take their time, and the task of a killed worker
waits for the end of its lease.
"""

import argparse
import itertools
import random

import goodput
import pytest


def test_one_is_killed_at_a_random_moment_of_every_interval():
    options = argparse.Namespace(kill_every=10.0)
    moments = list(itertools.islice(goodput.kill_moments(options, random.Random(0)), 50))
    assert [int(moment // 10) for moment in moments] == list(range(50))
    assert len({moment % 10 for moment in moments}) == 50


@pytest.mark.cluster
def test_what_two_workers_do_of_what_they_could_while_some_are_killed(tool):
    dials = "--minutes 0.4 --pairs 1 --workers 2 --experts 2 --task-seconds 1.5"
    dials += " --lease-seconds 3 --kill-every 8"
    answer, said = tool("goodput.py", *dials.split())
    assert answer["digest_equal"], said
    assert answer["kills"] >= 2, said
    assert 0 < answer["goodput"] < 1, said
    assert 0 < answer["participation"] < 1.05, said
    assert answer["goodput_calm"] <= 1.01, "a task took less than it should"
    # A lease begins at its last renewal, which was a quarter of it ago at most.
    assert not answer["wait_seconds"] < 0.7 * 3, "something gave a killed worker's task back"
