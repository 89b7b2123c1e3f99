"""Ctrl-C of a volunteer: the first leaves in order, the second at once, whatever is computed."""

import os
import signal
import subprocess
import sys

import pytest

COMPUTES = """
import asyncio, time
from dipaco.cli.swarm_join import _until_asked_to_leave, say

async def turn(stop):
    say("computes a block")
    await asyncio.to_thread(time.sleep, 60)

asyncio.run(_until_asked_to_leave(turn))
"""


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_second_ctrl_c_does_not_wait_for_a_block_that_is_computed(first):
    process = subprocess.Popen(
        [sys.executable, "-c", COMPUTES], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "computes a block\n"
        process.send_signal(first)
        assert process.stdout.readline().startswith("leaving in order")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=10)
        assert said == "left at once: others compute what was not handed in\n"
        assert process.returncode == 130
    finally:
        process.kill()
        process.communicate()
