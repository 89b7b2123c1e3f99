"""A session of a volunteer, from its credential until it leaves: its path, and moves to another."""

import asyncio
import hashlib
import random
import time
from collections.abc import Callable
from typing import NamedTuple

from dipaco.caches import cache_folder
from dipaco.model.config import num_parameters
from dipaco.swarm.errors import (
    BadAddress,
    BadMessage,
    MessageRefused,
    NoSuchSwarm,
    SwarmRefuses,
    SwarmUnreachable,
    TlsRefused,
)
from dipaco.swarm.network.addresses import AddressBook, check_to_join
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.credentials import Credential, printable
from dipaco.swarm.network.leader_connection import LeaderConnection
from dipaco.swarm.network.limits import LinkMeter
from dipaco.swarm.network.messages import RUN_OVER, Ack, RunOverview, SettingsRequest
from dipaco.swarm.network.streams import Streams
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning import paths
from dipaco.swarm.planning.track_records import LeftAlone
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.compute import Compute, GroupSettings
from dipaco.swarm.training.state_holder import StateHolder

TELL_SECONDS = 60.0  # time between two sentences about the run and this machine
ASK_SECONDS = 10.0  # time for a backbone to say how the run is
# Errors that one path may have and another not.
PATH_ERRORS = (BadAddress, BadMessage, MessageRefused, SwarmRefuses, SwarmUnreachable, TlsRefused)
# Waits before an address that refused is moved to again: the first, doubled each time, and the
# longest. An attempt costs a machine its state, and the time to fetch another.
AVOIDED_SECONDS = 600.0, 600_000.0


class SessionConfig(NamedTuple):
    """A machine's part in a swarm."""

    address: str  # address of a backbone of any path
    listens: bool  # False: it only dials out
    bytes_per_second: float | None  # limit in each direction; None = no limit
    path: int | None = None  # the path that it serves; None = the one that needs it most


async def run_session(
    config: SessionConfig, credential: Credential, stop: asyncio.Event, say: Callable[[str], None]
) -> None:
    """Takes part until the run is over, or `stop` is set: at the path that needs it most, or at its
    first address if it is not served there. Raises `PATH_ERRORS`, `BadCredential`, `NoSuchSwarm`.
    """
    compute: Compute | None = None  # one set of programs serves every path of the run
    meter, samples, address = LinkMeter(config.bytes_per_second), 0, config.address
    until = time.strftime("%Y-%m-%d", time.localtime(credential.certificate.not_after))
    may_choose, has_joined = True, False
    avoided = LeftAlone(*AVOIDED_SECONDS)
    while True:
        visit = _Visit(config._replace(address=address), compute, avoided, until, say)
        # True once only: two backbones may not agree yet on the path that needs it most.
        may_choose_next = False
        try:
            wire = await wire_to(address, credential, listens=config.listens, meter=meter)
            try:
                await visit.run(wire, stop, may_choose=may_choose)
            finally:
                assert wire.transport is not None
                await wire.transport.close()
        except PATH_ERRORS as error:
            stays = address == config.address or config.path is not None
            # A credential that is locked where it took part is refused at the first address too.
            if stays or (visit.has_joined and isinstance(error, SwarmRefuses)):
                raise
            say(f"{str(error).rstrip('.')}. This machine goes back to {config.address}")
            if not isinstance(error, SwarmUnreachable):  # it is asked before it is moved to
                avoided.note_fault(address, time.monotonic())
            moves_to, may_choose_next = config.address, True
        else:
            moves_to = visit.moves_to
        compute, samples = visit.compute, samples + visit.samples
        may_choose, has_joined = may_choose_next, has_joined or visit.has_joined
        if moves_to is None:
            break
        address = moves_to
    if has_joined:
        up, down = meter.bytes_up / 1e6, meter.bytes_down / 1e6
        say(f"{samples:,} samples, {up:.1f} MB sent, {down:.1f} MB received. Thank you")


async def wire_to(
    address: str, credential: Credential, *, listens: bool = False, meter: LinkMeter | None = None
) -> Wire:
    """A wire with a name of its own. Closing its transport closes it."""
    check_to_join(address)
    wire = Wire(credential, 0, meter)  # no payload is taken yet
    run = hashlib.sha256(credential.authority).hexdigest()[:16]
    wire.book = AddressBook(credential, cache_folder() / "swarm" / f"{run}.addresses")
    wire.transport = await Streams.start(credential, wire.serve if listens else None)
    return wire


async def ask_about_run(wire: Wire, address: str) -> RunOverview:
    """An overview of the run, from one of its backbones. Raises one of `PEER_ERRORS`."""
    overview, _ = await wire.ask(
        address, "run", Ack(), RunOverview, within_seconds=ASK_SECONDS, from_backbone=True
    )
    return overview


class _Visit:
    """One path, served until the run is over, `stop` is set, or another path needs it more.
    `compute`: programs from another path of the run, if there are any.
    """

    def __init__(
        self,
        config: SessionConfig,
        compute: Compute | None,
        avoided: LeftAlone,
        until: str,
        say: Callable[[str], None],
    ):
        self._config, self._until, self._say = config, until, say
        self.compute, self._avoided = compute, avoided
        self._said_unreached: set[int] = set()  # numbers of paths
        self._peer: Volunteer | None = None
        self.has_joined = False
        self.moves_to: str | None = None

    @property
    def samples(self) -> int:
        return 0 if self._peer is None else self._peer.samples

    async def run(self, wire: Wire, stop: asyncio.Event, *, may_choose: bool) -> None:
        """Serves the path. Sets `moves_to` to the address of another that is to be served next."""
        self._wire = wire
        stopping = asyncio.ensure_future(stop.wait())
        tasks: list[asyncio.Future] = [stopping]
        try:
            joining = asyncio.ensure_future(self._join(may_choose=may_choose))
            await asyncio.wait([joining, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                joining.cancel()  # the group does not know of it yet
                await asyncio.gather(joining, return_exceptions=True)
                return
            self._peer = joining.result()
            if self._peer is None:
                return  # another path is served, or the run is over
            self.has_joined = True
            running = asyncio.ensure_future(self._peer.run())
            moving = asyncio.ensure_future(self._look_elsewhere(self._peer))
            telling = asyncio.ensure_future(self._tell_forever(self._peer))
            tasks += [running, moving, telling]
            await asyncio.wait([running, stopping, moving], return_when=asyncio.FIRST_COMPLETED)
            moving.cancel()
            is_over = running.done()
            if not is_over:
                if stop.is_set() and self._peer.lost is None:
                    self._say("leaves when the step is taken whose rows it computes")
                self._peer.leave()
            await running
            if is_over:
                self._say(printable(self._peer.end or RUN_OVER))
            if moving.done() and not moving.cancelled():
                moving.result()  # raises its error
            if is_over or stop.is_set():
                self.moves_to = None
        finally:
            for task in tasks:
                task.cancel()

    async def _join(self, *, may_choose: bool) -> Volunteer | None:
        """Asks for the group's settings, then joins with programs that fit them. None if another
        path is to be served, at `moves_to`, or if the run is over.
        """
        config, wire, say = self._config, self._wire, self._say
        connection = LeaderConnection(wire, (config.address,), say)
        if may_choose and not await self._choose(config.address):
            # There was no answer. The path is chosen when there is one.
            await connection.find("settings", SettingsRequest(computes=False), needs_leader=False)
            if not await self._choose(connection.address) and config.path is not None:
                problem = "it does not say where the paths are led"
                raise SwarmUnreachable(addresses=connection.address, problem=problem)
        if self.moves_to is not None:
            return None
        info = await connection.find("settings", SettingsRequest(computes=True))
        if info.end:
            say(printable(info.end))
            return None
        settings = GroupSettings.from_json(info.settings)
        wire.max_payload_bytes = settings.max_payload_bytes
        if config.bytes_per_second is not None:
            say(limit_sentence(settings, config.bytes_per_second))
        if self.compute is None or self.compute.settings.digest != settings.digest:
            self.compute = Compute(settings)
        holder, per_second = StateHolder(wire, self.compute), config.bytes_per_second or 0.0
        peer = Volunteer(wire, (config.address,), holder, bytes_per_second=per_second, say=say)
        if end := (await peer.join()).end:
            say(printable(end))
            return None
        say(f"{wire.name} is in, until {self._until} at most; Ctrl-C leaves")
        return peer

    async def _choose(self, backbone: str) -> bool:
        """Asks a backbone which path to serve. Sets `moves_to` if another backbone leads that path
        and is reached from here. False if there is no answer. Raises `NoSuchSwarm`: the requested
        path has no backbone.
        """
        config, overview = self._config, await self._overview(backbone)
        if overview is None:
            return False
        if config.path is None:
            path = paths.path_to_join(overview.paths, self._wire.name)
        elif config.path in {one.path for one in overview.paths}:
            path = config.path
        else:
            known = ", ".join(str(one.path) for one in overview.paths) or "none"
            raise NoSuchSwarm(path=config.path, known=known)
        addresses = next((one.addresses for one in overview.paths if one.path == path), ())
        if path is None or not addresses or config.address in addresses:
            return True
        self.moves_to = await self._reached(path, addresses)
        if self.moves_to is not None:
            why = "needs volunteers most, and is led" if config.path is None else "is led"
            self._say(f"path {path} {why} at {printable(self.moves_to)}")
        return True

    async def _reached(self, path: int, addresses: tuple[str, ...]) -> str | None:
        """The first address at which a path's backbone answers; None, unless it was requested."""
        for address in addresses:
            if address in self._avoided.now(time.monotonic()):
                continue
            if await self._overview(address) is not None:
                return address
        if self._config.path is not None:
            return addresses[0]
        if path not in self._said_unreached:
            self._said_unreached.add(path)
            where = printable(", ".join(addresses))
            self._say(f"path {path} needs volunteers more, but is not reached from here ({where})")
        return None

    async def _look_elsewhere(self, peer: Volunteer) -> None:
        """Ends, with `moves_to` set, when another path needs this machine clearly more."""
        seen: int | None = None  # the path that needed it at the last look
        wait_seconds = paths.LOOK_SECONDS
        while True:
            # A random time: peers that all look at once would all move at once.
            await asyncio.sleep(wait_seconds * random.uniform(0.5, 1.5))
            speed = peer.samples_per_second
            if self._config.path is not None or not speed:
                continue
            overview = await self._overview(peer.leader.address or self._config.address)
            if overview is None:
                continue
            here = next(
                (one.path for one in overview.paths if peer.leader.address in one.addresses), None
            )
            if here is None:
                continue
            needs = overview.paths
            wait_seconds = paths.look_again_seconds(needs, here)
            target = paths.path_to_move_to(needs, here, speed, self._wire.name)
            if target is not None and target == seen:
                led_at = next(one.addresses for one in overview.paths if one.path == target)
                if (address := await self._reached(target, led_at)) is None:
                    continue
                self._say(
                    f"path {target} needs volunteers more than path {here}: "
                    f"moves to {printable(address)}"
                )
                self.moves_to = address
                return
            seen = target

    async def _tell_forever(self, peer: Volunteer) -> None:
        """Says now and then how the run is, and reports this machine's work."""
        while True:
            await asyncio.sleep(TELL_SECONDS)
            await self._wire.exchange_records(peer.leader.address or self._config.address)
            overview = await self._overview(peer.leader.address or self._config.address)
            if overview is not None:
                name = self._wire.name.rpartition("/")[0]
                self._say(
                    own_progress(
                        overview, name, peer.leader.address, peer.samples_per_second, peer.does
                    )
                )

    async def _overview(self, address: str) -> RunOverview | None:
        """The overview, or None without an answer: then nothing changes."""
        try:
            return await ask_about_run(self._wire, address)
        except (*PEER_ERRORS, BadAddress):
            return None


def own_progress(
    overview: RunOverview, name: str, address: str, samples_per_second: float, does: str
) -> str:
    """One line."""
    said = []
    for path in overview.paths:
        if address in path.addresses:
            of_all = f" of {overview.steps:,}" if overview.steps else ""
            said.append(f"path {path.path}: step {path.step:,}{of_all}")
    for one in overview.helpers:
        if one.name == name:
            said.append(
                f"{one.samples:,} samples by you in all sessions ({one.share:.1%}), place "
                f"{one.place} of {len(overview.helpers)}"
            )
    speed = f" at {samples_per_second:.1f} samples/s" if samples_per_second else ""
    return "; ".join([*said, f"this machine {does}{speed if does == 'computes' else ''}"])


def limit_sentence(settings: GroupSettings, bytes_per_second: float) -> str:
    """Explains a `--megabits` limit to a volunteer of this group."""
    values = num_parameters(settings.model)
    state_seconds = 12 * values / bytes_per_second
    step_seconds = 2 * codec_of(settings.codec).num_bytes(values) / bytes_per_second
    return (
        f"at {bytes_per_second / 125_000:g} Mbit/s the state comes in {state_seconds:,.0f} s, and "
        f"each step takes {step_seconds:,.0f} s to send and fetch: where the others are sooner, "
        "they do not wait, and this machine needs a higher --megabits to take part"
    )
