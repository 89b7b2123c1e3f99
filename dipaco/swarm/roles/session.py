"""One session of a volunteer or an auxiliary: from its credential until it leaves."""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.credentials import Credential, Signer, Verifier
from dipaco.swarm.network.leader_connection import LeaderConnection
from dipaco.swarm.network.link_meter import LinkMeter
from dipaco.swarm.network.messages import GroupInfo, SettingsRequest
from dipaco.swarm.network.transport import start_transport
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.roles.auxiliary import Auxiliary
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.compute import Compute, GroupSettings
from dipaco.swarm.training.state_holder import StateHolder


class SessionConfig(NamedTuple):
    """What a machine does for a swarm."""

    address: str  # of a backbone
    computes: bool  # False: it only adds up
    listens: bool  # False: it only dials out
    bytes_per_second: float | None  # at most, in each direction; None = what the link gives


async def run_session(
    config: SessionConfig, credential: Credential, stop: asyncio.Event, say: Callable[[str], None]
) -> None:
    """Takes part in a group until the run is over, or `stop` is set.

    Raises:
      BadAddress, ExtraMissing, SwarmRefuses, SwarmUnreachable.
    """
    signer = Signer(credential, time.time)
    certificate = credential.certificate
    verifier = Verifier(credential.authority, certificate.group, signer.name, time.time)
    wire = Wire(signer, verifier, 0, LinkMeter(config.bytes_per_second))  # no payload is taken yet
    wire.transport = await start_transport(
        config.address, wire.serve if config.listens else None, bootstrap=(config.address,)
    )
    try:
        joining = asyncio.ensure_future(_join(config, wire, say))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([joining, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            joining.cancel()  # the group does not know of it yet
            return
        peer = joining.result()
        say(f"{signer.name} is in, until {_date(certificate.not_after)} at most; Ctrl-C leaves")
        running = asyncio.ensure_future(peer.run())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not running.done():
            peer.leave()
        await running
        up, down = wire.meter.bytes_up / 1e6, wire.meter.bytes_down / 1e6
        say(f"{peer.samples:,} samples, {up:.1f} MB sent, {down:.1f} MB received. Thank you")
    finally:
        await wire.transport.close()


async def _join(
    config: SessionConfig, wire: Wire, say: Callable[[str], None]
) -> Volunteer | Auxiliary:
    """Asks for the group's settings, then joins with programs that fit them."""
    speed = config.bytes_per_second or 0.0
    connection = LeaderConnection(wire, (config.address,), say)
    settings = _settings_of(
        await connection.find("settings", SettingsRequest(computes=config.computes))
    )
    wire.max_payload_bytes = settings.max_payload_bytes
    if config.computes:
        holder = StateHolder(wire, Compute(settings))
        peer = Volunteer(wire, (config.address,), holder, bytes_per_second=speed, say=say)
    else:
        peer = Auxiliary(
            wire, (config.address,), StateHolder(wire), bytes_per_second=speed, say=say
        )
    await peer.join()
    return peer


def _settings_of(info: GroupInfo) -> GroupSettings:
    """Raises `BadMessage` where they do not have their digest."""
    settings = GroupSettings.from_json(info.settings)
    if settings.digest != info.config:
        raise BadMessage(problem="the group's settings do not have their digest")
    return settings


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))
