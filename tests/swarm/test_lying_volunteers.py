"""Volunteers that lie, each with one pass: what they may do to the model, and to others."""

from dipaco.swarm.network.messages import BlockResult


async def test_each_blocks_time_is_from_its_lease_to_its_report_by_the_leaders_clock(group):
    """A peer's word for it would park the honest, if it were small, or hold up steps."""
    await group.join("ana", slow=0.1)
    await group.steps(3)
    (ana,) = group.leader.group.members.values()
    assert 0.1 < ana.seconds_per_block < 0.4
    assert "seconds" not in BlockResult.__struct_fields__
