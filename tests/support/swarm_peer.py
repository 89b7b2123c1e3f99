"""A volunteer of `swarm_rig` as a process of its own, which kills itself (SIGKILL) in the middle of
what it is asked. Started by the commands' server: `dipaco.call("tests.support.swarm_peer", ...)`.
"""

import asyncio
import os
import signal
from pathlib import Path

import jax

from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training import state_holder
from dipaco.swarm.training.state_holder import StateHolder
from tests.support.swarm_rig import COMPUTE, Slow, issue, wire_of

CHUNK_BYTES = 1 << 10  # of a state: many, and not one


def main(folder: Path, compiled: str, **settings) -> None:
    jax.config.update("jax_compilation_cache_dir", compiled)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    state_holder.CHUNK_BYTES = CHUNK_BYTES
    asyncio.run(take_part(folder, **settings))


async def take_part(folder, name, leader, dies_at, nth):
    """Dies at the nth request with this method; `folder/fired` says so, `folder/name` who it is."""
    wire = await wire_of(issue(name))
    volunteer = Volunteer(wire, (leader,), StateHolder(wire, Slow(COMPUTE, 0.02)))
    kind, handle = wire._handlers[dies_at]
    asked = 0

    async def dies(body, request):
        nonlocal asked
        asked += 1
        if asked == nth:
            (folder / "fired").write_text(f"{dies_at} {asked}")
            os.kill(os.getpid(), signal.SIGKILL)
        return await handle(body, request)

    wire.register(dies_at, kind, dies)
    await volunteer.join()
    (folder / "name").write_text(wire.name)
    await volunteer.run()
