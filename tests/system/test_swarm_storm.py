"""The storm of a swarm in its smallest form: real processes come, leave and are killed, and every
step is that of one machine.
"""

import pytest


def test_a_swarm_in_a_storm_takes_the_steps_of_one_machine(tool):
    pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")
    dials = "--volunteers 2 --clients 1 --events 4 --steps 6 --phases 2"
    dials += " --batch 16 --block-rows 1 --seconds-per-block 0.05 --lease-seconds 4"
    answer, said = tool("swarm_storm.py", *dials.split())
    assert answer["replay_max_difference"] < 1e-5, said
    assert answer["loss_max_difference"] < 1e-4, said
    assert (answer["steps"], answer["rows_lost"], answer["rows_twice"]) == (12, 0, 0)
    assert "SIGKILL of the leading backbone" in answer["faults"], said
