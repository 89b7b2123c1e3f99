"""A volunteer that cannot serve the path that needs it most serves the one at its first address."""

import asyncio
import contextlib

import pytest

from dipaco.swarm.errors import (
    BadMessage,
    MessageRefused,
    SwarmRefuses,
)
from dipaco.swarm.network import leader_connection
from dipaco.swarm.planning.paths import PathNeed
from dipaco.swarm.roles import session
from dipaco.swarm.roles.session import (
    SessionConfig,
    run_session,
    wire_to,
)
from tests.support.backbone_stub import stub_backbone
from tests.support.swarm_rig import issue

NOWHERE = "127.0.0.1:1"


def needy(*addresses):
    """A path that needs volunteers more than that at its first address, with these backbones."""
    return PathNeed(1, addresses, 0, 1000, 0.0, 0, 0.0)


@contextlib.asynccontextmanager
async def first_and_needy(asked, there, *before):
    """The addresses of two backbones: the first, which notes its requests, and one of a path that
    needs volunteers more. `before`: other addresses that the latter is said to have.
    """
    async with (
        stub_backbone(there, ()) as other,
        stub_backbone(asked, (needy(*before, other),)) as first_address,
    ):
        yield first_address, other


async def refused_at_first(address, said, match="enough was seen"):
    """Lends a machine to the backbone at an address, until it is refused."""
    config = SessionConfig(address, False, None)
    with pytest.raises(SwarmRefuses, match=match):
        await run_session(config, issue("ana"), asyncio.Event(), said.append)


async def test_a_volunteer_stays_where_the_path_that_needs_it_more_is_not_reached():
    asked, said = [], []
    far = needy(NOWHERE, "127.0.0.1:2")
    async with stub_backbone(asked, (far,)) as address:
        await refused_at_first(address, said)
    assert asked == ["run", "settings", "join"]
    assert said[0].startswith("path 1 needs volunteers more, but is not reached from here (")


async def test_of_a_paths_addresses_one_that_answers_is_moved_to():
    asked, said, there = [], [], []
    async with first_and_needy(asked, there, NOWHERE) as (address, good):
        await refused_at_first(address, said)
        assert said[0] == f"path 1 needs volunteers most, and is led at {good}"
    assert there.count("join") == 1
    assert asked == ["run", "run", "settings", "join"], "where it is not let in, it goes back"
    assert any("enough was seen. This machine goes back to" in sentence for sentence in said)


async def test_a_volunteer_whose_new_path_is_lost_goes_back_to_the_address_that_it_was_given(
    monkeypatch,
):
    monkeypatch.setattr(leader_connection, "GIVE_UP_SECONDS", 0.5)
    asked, said, there = [], [], []
    async with first_and_needy(asked, there) as (address, gone):
        serves = wire_to

        async def moves(to, *args, **more):
            wire = await serves(to, *args, **more)
            if to == gone:
                wire.ask = unanswered
            return wire

        async def unanswered(to, *request, **more):
            raise ConnectionRefusedError("closed meanwhile")

        monkeypatch.setattr(session, "wire_to", moves)
        config = SessionConfig(address, False, None)
        lending = asyncio.ensure_future(
            run_session(config, issue("ana"), asyncio.Event(), said.append)
        )
        while asked.count("run") < 2:
            await asyncio.wait([lending], timeout=0.02)
            assert not lending.done(), lending.result()
        lending.cancel()
        await asyncio.gather(lending, return_exceptions=True)
    assert any("closed meanwhile. Check" in one and "goes back to 127" in one for one in said), said


@pytest.fixture
def joins(monkeypatch):
    """`joins(address, error)`: who joins there is told so, before or after it takes part."""
    join = session._Visit._join

    def fail(address, error, has_joined=False):
        async def fails(visit, **more):
            if visit._config.address == address:
                visit.has_joined = has_joined
                raise error
            return await join(visit, **more)

        monkeypatch.setattr(session._Visit, "_join", fails)

    return fail


@pytest.mark.parametrize(
    "error", [BadMessage(problem="odd"), MessageRefused(sender="?", reason="no")]
)
async def test_a_path_that_cannot_be_understood_is_left_for_the_one_at_home(joins, error):
    asked, there = [], []
    async with first_and_needy(asked, there) as (address, other):
        joins(other, error)
        await refused_at_first(address, [])
    assert asked.count("join") == 1


async def test_a_session_that_was_refused_for_good_where_it_took_part_does_not_go_home(joins):
    asked, there = [], []
    async with first_and_needy(asked, there) as (address, other):
        joins(other, SwarmRefuses(reason="its sum is another"), has_joined=True)
        await refused_at_first(address, [], match="its sum is another")
    assert "join" not in asked
