"""A volunteer that cannot serve the path that needs it most serves the one at home."""

import asyncio

import pytest

pytest.importorskip("cryptography", reason="the extra `volunteer` is not installed")

from dipaco.errors import ExtraMissing
from dipaco.swarm.errors import BadMessage, MessageRefused, SwarmRefuses, SwarmUnreachable
from dipaco.swarm.network import leader_connection
from dipaco.swarm.network.run_overview import PathNeed
from dipaco.swarm.roles import session
from dipaco.swarm.roles.session import SessionConfig, run_session, wire_to
from tests.support.backbone_stub import stub_backbone
from tests.support.swarm_rig import issue

NOWHERE = "tcp://127.0.0.1:1"


def test_a_volunteer_stays_where_the_path_that_needs_it_more_is_not_reached():
    asked, said = [], []
    far = PathNeed(1, (NOWHERE, "tcp://127.0.0.1:2"), 0, 1000, 0.0, 0, 0.0)

    async def scenario():
        async with stub_backbone(asked, (far,)) as address:
            config = SessionConfig(address, True, False, None)
            with pytest.raises(SwarmRefuses, match="enough was seen"):
                await run_session(config, issue("ana"), asyncio.Event(), said.append)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert asked == ["run", "settings", "join"]
    assert said[0].startswith("path 1 needs hands more, but is not reached from here (tcp://")


def test_of_a_paths_addresses_one_that_answers_is_moved_to():
    asked, said, there = [], [], []

    async def scenario():
        async with stub_backbone(there, ()) as good:
            path = PathNeed(1, (NOWHERE, good), 0, 1000, 0.0, 0, 0.0)
            async with stub_backbone(asked, (path,)) as address:
                config = SessionConfig(address, True, False, None)
                with pytest.raises(SwarmRefuses, match="enough was seen"):
                    await run_session(config, issue("ana"), asyncio.Event(), said.append)
                assert said[0] == f"path 1 needs hands most, and is led at {good}"

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert "join" in there
    assert asked == ["run", "run", "settings", "join"], "where it is not let in, it goes home"


def test_a_volunteer_whose_new_path_is_lost_goes_back_to_the_address_that_it_was_given(monkeypatch):
    monkeypatch.setattr(leader_connection, "GIVE_UP_SECONDS", 0.5)
    asked, said, there = [], [], []

    async def scenario():
        async with stub_backbone(there, ()) as gone:
            path = PathNeed(1, (gone,), 0, 1000, 0.0, 0, 0.0)
            async with stub_backbone(asked, (path,)) as address:
                serves = wire_to

                async def moves(to, *args, **more):
                    wire = await serves(to, *args, **more)
                    if to == gone:
                        wire.ask = unanswered
                    return wire

                async def unanswered(to, *request, **more):
                    raise ConnectionRefusedError("closed meanwhile")

                monkeypatch.setattr(session, "wire_to", moves)
                config = SessionConfig(address, True, False, None)
                lending = asyncio.ensure_future(
                    run_session(config, issue("ana"), asyncio.Event(), said.append)
                )
                while asked.count("run") < 2:
                    await asyncio.wait([lending], timeout=0.02)
                    assert not lending.done(), lending.result()
                lending.cancel()
                await asyncio.gather(lending, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert any("closed meanwhile. Check" in one and "goes back to tcp" in one for one in said), said


def test_an_address_of_another_kind_that_does_not_answer_is_moved_to_once(monkeypatch):
    """Whether it answers cannot be asked over the wire at home."""
    asked, said = [], []
    other = "/ip4/127.0.0.1/tcp/4710/p2p/QmQ2Fv4TrGnNYrJ8sXXzBzVnFvQqNn5JbPbgMVZfNFrmxA"
    dials = wire_to

    async def dialled(to, *args, **more):
        if to == other:
            raise SwarmUnreachable(addresses=other, problem="10 minutes without a reply")
        return await dials(to, *args, **more)

    monkeypatch.setattr(session, "wire_to", dialled)

    async def scenario():
        async with stub_backbone(asked, (PathNeed(1, (other,), 0, 1000, 0.0, 0, 0.0),)) as address:
            config = SessionConfig(address, True, False, None)
            with pytest.raises(SwarmRefuses, match="enough was seen"):
                await run_session(config, issue("ana"), asyncio.Event(), said.append)

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert sum("goes back" in sentence for sentence in said) == 1


def test_a_volunteer_that_another_path_does_not_let_in_serves_the_path_at_home():
    asked, said, there = [], [], []

    async def scenario():
        async with stub_backbone(there, ()) as other:
            path = PathNeed(1, (other,), 0, 1000, 0.0, 0, 0.0)
            async with stub_backbone(asked, (path,)) as address:
                config = SessionConfig(address, True, False, None)
                with pytest.raises(SwarmRefuses, match="enough was seen"):
                    await run_session(config, issue("ana"), asyncio.Event(), said.append)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert there.count("join") == 1
    assert asked.count("join") == 1, "at home it is refused as well, and that is the end"
    assert any("enough was seen. This machine goes back to" in sentence for sentence in said)


@pytest.mark.parametrize(
    "error", [BadMessage(problem="odd"), MessageRefused(sender="?", reason="no")]
)
def test_a_path_that_cannot_be_understood_is_left_for_the_one_at_home(monkeypatch, error):
    asked, said, there = [], [], []

    async def scenario():
        async with stub_backbone(there, ()) as other:
            path = PathNeed(1, (other,), 0, 1000, 0.0, 0, 0.0)
            async with stub_backbone(asked, (path,)) as address:
                joins = session._Visit._join

                async def fails(visit, **more):
                    if visit._config.address == other:
                        raise error
                    return await joins(visit, **more)

                monkeypatch.setattr(session._Visit, "_join", fails)
                config = SessionConfig(address, True, False, None)
                with pytest.raises(SwarmRefuses, match="enough was seen"):
                    await run_session(config, issue("ana"), asyncio.Event(), said.append)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert asked.count("join") == 1


def test_a_session_that_was_refused_for_good_where_it_took_part_does_not_go_home(monkeypatch):
    asked, there = [], []

    async def scenario():
        async with stub_backbone(there, ()) as other:
            path = PathNeed(1, (other,), 0, 1000, 0.0, 0, 0.0)
            async with stub_backbone(asked, (path,)) as address:
                joins = session._Visit._join

                async def banned(visit, **more):
                    if visit._config.address == other:
                        visit.has_joined = True
                        raise SwarmRefuses(reason="its sum is another")
                    return await joins(visit, **more)

                monkeypatch.setattr(session._Visit, "_join", banned)
                config = SessionConfig(address, True, False, None)
                with pytest.raises(SwarmRefuses, match="its sum is another"):
                    await run_session(config, issue("ana"), asyncio.Event(), lambda sentence: None)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert "join" not in asked


def test_an_address_that_this_machine_cannot_dial_is_moved_to_once(monkeypatch):
    """As one of libp2p, on a machine without its extra."""
    asked, said = [], []
    other = "/ip4/127.0.0.1/tcp/4710/p2p/QmQ2Fv4TrGnNYrJ8sXXzBzVnFvQqNn5JbPbgMVZfNFrmxA"
    dials = wire_to

    async def dialled(to, *args, **more):
        if to == other:
            raise ExtraMissing(feature="libp2p", package="hivemind", extra="swarm")
        return await dials(to, *args, **more)

    monkeypatch.setattr(session, "wire_to", dialled)

    async def scenario():
        async with stub_backbone(asked, (PathNeed(1, (other,), 0, 1000, 0.0, 0, 0.0),)) as address:
            config = SessionConfig(address, True, False, None)
            with pytest.raises(SwarmRefuses, match="enough was seen"):
                await run_session(config, issue("ana"), asyncio.Event(), said.append)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert sum("goes back" in sentence for sentence in said) == 1
    assert asked == ["run", "run", "settings", "join"]
