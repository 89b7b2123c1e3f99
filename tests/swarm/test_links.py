"""A group whose members are on hosts of their own, and the link of one fails in the middle of a
step: half-open, one-way, cut off from all others, again and again. The steps stay those of one
machine.
"""

import asyncio

import pytest

from tests.support.swarm_clock import until
from tests.support.swarm_rig import Group, assert_replayed

NAMES = ("back", "ana", "bo")


@pytest.fixture
def on_hosts(hosts):
    made = hosts(*NAMES)
    return {name: made[name] for name in NAMES}


@pytest.fixture
def group(on_hosts, real_time):
    return Group(hosts=on_hosts)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["half-open", "up", "down", "cut"])
async def test_a_member_whose_link_fails_is_done_without_and_comes_back(group, on_hosts, fault):
    link = on_hosts["bo"].link
    fail = {"half-open": link.swallow, "cut": link.cut}
    _, bo = await group.join_all(ana=0.05, bo=0.05)
    await group.steps(2)
    step = asyncio.ensure_future(group.step())
    await until(lambda: group.leader.group.ledger.done_by(bo.wire.name))
    fail[fault]() if fault in fail else link.one_way(fault)
    await step
    assert bo.wire.name not in group.outcomes[-1].record.blocks
    assert (link.lost_packets > 0) == (fault != "cut")
    link.restore()
    await group.step_until(lambda: bo.wire.name in group.outcomes[-1].record.blocks)
    assert_replayed(group)


async def test_a_leader_that_is_cut_off_from_all_others_goes_on_when_they_are_back(group, on_hosts):
    link = on_hosts["back"].link
    await group.join_all(ana=0.05, bo=0.05)
    await group.step()
    step = asyncio.ensure_future(group.step())
    await until(lambda: group.leader.group.ledger.step == 1)
    link.swallow()
    await until(lambda: link.lost_packets > 8)
    assert not step.done()
    link.restore()
    await step
    await group.step()
    assert_replayed(group)


async def test_over_a_link_that_comes_and_goes_every_step_is_right(group, on_hosts):
    link = on_hosts["bo"].link
    _, bo = await group.join_all(ana=0.02, bo=0.02)
    await group.step()
    for _ in range(4):
        step, lost_packets = asyncio.ensure_future(group.step()), link.lost_packets
        link.swallow()
        await until(lambda before=lost_packets: link.lost_packets > before + 2)
        link.restore()
        await step
    await group.step_until(lambda: bo.wire.name in group.outcomes[-1].record.blocks)
    assert_replayed(group)
