"""A group of peers takes exactly the steps of one large machine."""

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="the extra `swarm` is not installed")
sys.path.append(str(Path(__file__).parent))

from rig import Group, assert_replayed


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 100))


def test_peers_of_different_speeds_take_the_steps_of_one_machine():
    async def scenario():
        async with Group() as group:
            for name, slow in (("ana", 0.0), ("bo", 0.02), ("cy", 0.08)):
                await group.join(name, slow=slow)
            for _ in range(6):
                await group.step()
            assert_replayed(group)
            shares = dict.fromkeys(group.volunteers, 0)
            for closing in group.closings[1:]:
                for sender, blocks in closing.rows.items():
                    shares[sender.partition("/")[0]] += len(blocks)
            assert shares["ana"] > shares["cy"] > 0

    run(scenario())
