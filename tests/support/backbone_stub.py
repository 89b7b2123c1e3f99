"""A backbone that answers, and lets no one join."""

import asyncio
import contextlib

from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.network.messages import (
    Ack,
    GroupInfo,
    JoinRequest,
    RunOverview,
    SettingsRequest,
)
from dipaco.swarm.planning.paths import PathNeed
from tests.support.swarm_rig import SETTINGS, issue, wire_of


@contextlib.asynccontextmanager
async def stub_backbone(asked, paths, port=0):
    """One that says that these paths are led, and leads path 0 itself; it lets no one join."""
    wire = await wire_of(issue("back", "backbone"), listen=f"127.0.0.1:{port}")
    address = wire.transport.address

    async def run(body, request):
        asked.append("run")
        needs = (PathNeed(0, (address,), 0, 10, 1.0, 1, 1.0), *paths)
        return RunOverview(steps=10, paths=needs), b""

    async def settings(body, request):
        if body.computes:
            asked.append("settings")
        info = GroupInfo(leader=wire.name, settings=SETTINGS.to_json())
        return info, b""

    async def join(body, request):
        asked.append("join")
        raise SwarmRefuses(reason="enough was seen")

    wire.register("run", Ack, run)
    wire.register("settings", SettingsRequest, settings)
    wire.register("join", JoinRequest, join)
    yield address
    await wire.transport.close()
    await asyncio.sleep(0)
