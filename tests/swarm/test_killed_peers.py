"""Peers that are processes of their own and are killed (SIGKILL) in the middle of what others count
on: adding up a slice, giving a state to a newcomer. The steps stay those of one machine.
"""

import signal
from types import SimpleNamespace

import pytest

from dipaco.swarm.leading import service
from dipaco.swarm.training import state_download, state_holder
from tests.support import swarm_peer
from tests.support.swarm_clock import until
from tests.support.swarm_rig import assert_replayed, largest_difference

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("real_time")]


async def joined(group, process):
    """The name of the process in the group, once it holds the group's state."""
    file = process.folder / "name"
    await until(lambda: file.exists() and file.read_text() in group.leader.group.members)
    name = file.read_text()
    await until(lambda: group.leader.group.members[name].is_at(group.holder.position))
    return name


@pytest.fixture
def peer(dipaco, compiled):
    """`peer("bo", group, dies_at=..., nth=...)`: a process that joins a group."""

    def start(name, group, **settings):
        settings |= {"name": name, "leader": group.wire.address, "compiled": str(compiled)}
        return dipaco.call("tests.support.swarm_peer", **settings)

    return start


@pytest.mark.slow
async def test_a_reducer_that_is_killed_while_it_adds_up_costs_no_step(group, peer):
    await group.join("ana", slow=0.02)
    await group.step()
    bo = peer("bo", group, dies_at="push", nth=2)
    name = await joined(group, bo)
    plans, hold = [], group.leader._rounds.hold

    async def holding(plan):
        plans.append(plan)
        return await hold(plan)

    group.leader._rounds.hold = holding
    await group.step_until(lambda: bo.has_fired)
    (last,) = [each for each in plans if name in {part.reducer for part in each.slices}][-1:]
    assert group.leader.group.departed[name]
    later = plans[plans.index(last) + 1]
    assert later.step == last.step, "the round was held again, without it"
    assert name not in {part.reducer for part in later.slices}
    await group.step()
    assert_replayed(group)
    assert bo.wait().code == -signal.SIGKILL


@pytest.fixture
def newest_in_chunks(monkeypatch):
    """The newest state is offered, in many chunks."""
    monkeypatch.setattr(service, "MAX_STEPS", 1)
    for file in (state_holder, service):
        monkeypatch.setattr(file, "CHUNK_BYTES", swarm_peer.CHUNK_BYTES)


@pytest.mark.slow
async def test_a_donor_that_is_killed_in_the_middle_of_a_download_is_done_without(
    newest_in_chunks, group, peer, monkeypatch
):
    """The newcomer keeps the chunks that it has, and takes the rest from the other donors."""
    await group.join("ana", slow=0.02)
    await group.step()
    donor = peer("donor", group, dies_at="chunk", nth=3)
    name = await joined(group, donor)
    await group.steps(3)
    member = group.leader.group.members[name]
    await until(lambda: member.can_donate(group.holder.position))
    # It is asked first: the others could have given all chunks before it answers.
    first = lambda donors: member.address if member.address in donors else donors[0]  # noqa: E731
    monkeypatch.setattr(state_download, "random", SimpleNamespace(choice=first))
    bo = await group.join("bo")
    await until(lambda: bo.holder.position == group.holder.position)
    assert donor.has_fired
    assert largest_difference(bo.holder.state, group.holder.state) == 0.0
    await group.step_until(lambda: bo.wire.name in group.outcomes[-1].record.blocks)
    assert_replayed(group)
    assert donor.wait().code == -signal.SIGKILL
