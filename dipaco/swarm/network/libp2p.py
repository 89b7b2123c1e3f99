"""Streams over libp2p, by hivemind's daemon."""

import asyncio
import contextlib
import logging
import re
import socket
import warnings
from pathlib import Path
from typing import Any

from dipaco.errors import needs_extra
from dipaco.swarm.errors import BadAddress, SwarmUnreachable
from dipaco.swarm.network.addresses import LAST_PORT, cannot_listen
from dipaco.swarm.network.streams import StreamHandler

# Before what the daemon, a Go program, says: whose failure it is, and when.
_DAEMON_WORDS = re.compile(r"Daemon failed to start: (\d{4}/\d\d/\d\d \d\d:\d\d:\d\d )?")

PROTOCOL = "dipaco-swarm-4"


class Libp2p:
    """hivemind's daemon."""

    def __init__(self, daemon: Any):
        self._daemon = daemon
        self.address: str | None = None
        self._connected: set[str] = set()

    @classmethod
    async def start(
        cls,
        handler: StreamHandler | None,
        *,
        listen: str = "/ip4/127.0.0.1/tcp/0",
        bootstrap: tuple[str, ...] = (),
        identity: Path | None = None,
    ) -> "Libp2p":
        """Starts a daemon of its own; it ends with this process.

        Args:
          handler: serves streams; None = a client, which does not listen.
          listen: where, as libp2p writes it.
          bootstrap: addresses of peers that run already.
          identity: a file with the key that the address contains; made if it is missing. A backbone
            that is started again keeps its address by it.

        Raises:
          ExtraMissing, BadAddress, CannotListen.
          SwarmUnreachable: none of `bootstrap` answers.
        """
        needed = needs_extra("swarm", package="hivemind", feature="A swarm over libp2p")
        with needed, warnings.catch_warnings():  # PyTorch's, at what hivemind does
            warnings.simplefilter("ignore", FutureWarning)
            from hivemind.p2p import P2P
            from hivemind.p2p.p2p_daemon import P2PDaemonError
        for address in bootstrap:
            _identity_of(address)
        if handler is not None:
            _check_is_free(listen)
        try:
            daemon = await P2P.create(
                initial_peers=list(bootstrap) or None,
                host_maddrs=[listen] if handler is not None else None,
                no_listen=handler is None,
                dht_mode="server" if handler is not None else "client",
                identity_path=None if identity is None else str(identity),
                check_if_identity_free=False,
                startup_timeout=60.0,
            )
        except P2PDaemonError as error:
            logging.getLogger("asyncio").addFilter(_is_not_of_a_daemon)
            problem = _DAEMON_WORDS.sub("", str(error))[:300]
            if bootstrap:
                raise SwarmUnreachable(addresses=", ".join(bootstrap), problem=problem) from error
            raise cannot_listen(listen, problem) from error
        self = cls(daemon)
        if handler is not None:
            serve = handler

            async def accept(_: Any, reader: asyncio.StreamReader, writer: Any) -> None:
                with contextlib.closing(writer), contextlib.suppress(asyncio.CancelledError):
                    await serve(reader, writer)  # cancelled as the loop ends; asyncio would log it

            await daemon.add_binary_stream_handler(PROTOCOL, accept)
            seen = [str(address) for address in await daemon.get_visible_maddrs()]
            outside = [address for address in seen if not address.startswith("/ip4/127.")]
            self.address = (outside or seen)[0]
        return self

    async def open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure, DispatchFailure
        from hivemind.utils.multiaddr import Multiaddr

        peer = _identity_of(address)
        try:
            if address not in self._connected:
                where = Multiaddr(address.rpartition("/p2p/")[0])
                await self._daemon._client.connect(peer, [where])
                self._connected.add(address)
            _, reader, writer = await self._daemon.call_binary_stream_handler(peer, PROTOCOL)
        except (ControlFailure, DispatchFailure, asyncio.IncompleteReadError) as error:
            self._connected.discard(address)
            raise ConnectionError(str(error)[:200]) from error
        return reader, writer

    async def seen_host(self, address: str) -> str:
        """The host that a peer has connected from; empty = not known."""
        peer = _identity_of(address)
        for one in await self._daemon.list_peers():
            found = [re.match("/ip[46]/([^/]+)/", str(seen)) for seen in one.addrs]
            if one.peer_id == peer and found and found[0]:
                return found[0][1]
        return ""

    def seen_from(self, writer: asyncio.StreamWriter) -> str:
        return ""  # the daemon dials

    def now_seen_at(self, host: str) -> None:
        pass

    async def close(self) -> None:
        await self._daemon.shutdown()


def _check_is_free(listen: str) -> None:
    """Raises `BadAddress`, `CannotListen`. The daemon would share a port that is in use."""
    found = re.fullmatch(r"/ip([46])/([^/]+)/tcp/([0-9]+)", listen)
    if found is None:
        return  # of another kind: left to the daemon
    version, host, port = found.groups()
    if int(port) > LAST_PORT:
        raise BadAddress(given=listen)
    with socket.socket(socket.AF_INET if version == "4" else socket.AF_INET6) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed a moment ago is free
        try:
            tried.bind((host, int(port)))
        except OSError as error:
            raise cannot_listen(listen, error.strerror) from error


def _identity_of(address: str) -> Any:
    from hivemind.p2p import PeerID

    where, _, identity = address.rpartition("/p2p/")
    try:
        if not where.startswith("/"):
            raise ValueError(address)
        return PeerID.from_base58(identity)
    except ValueError as error:
        raise BadAddress(given=address) from error


def _is_not_of_a_daemon(record: logging.LogRecord) -> bool:
    """False for what asyncio logs of a daemon that did not start and ends after the loop."""
    return "that handles pid" not in record.getMessage()
