"""Streams between peers, over plain TCP or hivemind's libp2p daemon.

A transport opens streams to addresses and serves those that peers open. `tcp://HOST:PORT` is for
machines that reach each other (a laboratory, tests). Any other address is libp2p's
(`/ip4/.../p2p/...`): hivemind's daemon, a child process, encrypts, finds peers by their identity,
passes through NAT and relays where it must. Nothing else of hivemind is used: in its averaging each
reducer may count other senders, so it would be unknown which rows a step was made of.
"""

import asyncio
import contextlib
import re
import socket
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from dipaco.errors import CannotListen, ExtraMissing
from dipaco.swarm.errors import BadAddress, SwarmUnreachable

StreamHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TCP = "tcp://"  # the prefix of an address that is not libp2p's
PROTOCOL = "dipaco-swarm-4"
STREAM_BYTES = 256 << 10  # read ahead
LAST_PORT = 65535
# To connect by TCP. What asks for it is sent again after 1, 3, 7, 15 and more seconds: where a link
# was down and is back, another attempt is answered sooner.
CONNECT_SECONDS = 10.0


class Transport(Protocol):
    """Streams to and from peers."""

    address: str | None  # where others reach this peer; None = a client, which only dials out

    async def open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError where there is no peer."""
        ...

    async def close(self) -> None: ...


class Tcp:
    """Plain TCP: not encrypted, though all messages are signed."""

    def __init__(self) -> None:
        self.address: str | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @classmethod
    async def start(
        cls, handler: StreamHandler | None, host: str = "127.0.0.1", port: int = 0
    ) -> "Tcp":
        """Listens where there is a handler.

        Raises:
          CannotListen.
        """
        self = cls()
        if handler is not None:
            serve = handler

            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                self._writers.add(writer)
                try:
                    await serve(reader, writer)
                except asyncio.CancelledError:
                    pass  # the loop ends; asyncio would log it
                finally:
                    self._writers.discard(writer)
                    writer.close()

            try:
                self._server = await asyncio.start_server(accept, host, port, limit=STREAM_BYTES)
            except OSError as error:
                raise _cannot_listen(f"{TCP}{host}:{port}", error.strerror) from error
            bound = self._server.sockets[0].getsockname()[1]
            self.address = f"{TCP}{host}:{bound}"
        return self

    async def open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = _host_and_port(address)
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncio.open_connection(host, port, limit=STREAM_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()


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
        try:
            with warnings.catch_warnings():  # PyTorch's, at what hivemind does
                warnings.simplefilter("ignore", FutureWarning)
                from hivemind.p2p import P2P
                from hivemind.p2p.p2p_daemon import P2PDaemonError
        except ImportError as error:
            raise ExtraMissing(
                feature="A swarm over libp2p", package="hivemind", extra="swarm"
            ) from error
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
            problem = str(error)[:300]
            if bootstrap:
                raise SwarmUnreachable(addresses=", ".join(bootstrap), problem=problem) from error
            raise _cannot_listen(listen, problem) from error
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

    async def close(self) -> None:
        await self._daemon.shutdown()


async def start_transport(
    like: str,
    handler: StreamHandler | None,
    bootstrap: tuple[str, ...] = (),
    identity: Path | None = None,
) -> Transport:
    """Starts the transport of an address's kind.

    Args:
      like: without `bootstrap`, the address to listen on; else any, and a free port is taken.
      handler, bootstrap, identity: as for `Libp2p.start`.

    Raises:
      BadAddress: it is of neither kind.
      ExtraMissing, CannotListen, SwarmUnreachable.
    """
    if like.startswith(TCP):
        if bootstrap or handler is None:
            return await Tcp.start(handler)
        return await Tcp.start(handler, *_host_and_port(like))
    if not like.startswith("/"):
        raise BadAddress(given=like)
    if bootstrap:
        return await Libp2p.start(handler, bootstrap=bootstrap, listen="/ip4/0.0.0.0/tcp/0")
    return await Libp2p.start(handler, listen=like, identity=identity)


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.removeprefix(TCP).rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= LAST_PORT
    if not address.startswith(TCP) or not colon or not is_port:
        raise BadAddress(given=address)
    return host, int(port)


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
            raise _cannot_listen(listen, error.strerror) from error


def _cannot_listen(where: str, problem: str | None) -> CannotListen:
    return CannotListen(where=where, problem=problem, option="--listen")


def _identity_of(address: str) -> Any:
    from hivemind.p2p import PeerID

    where, _, identity = address.rpartition("/p2p/")
    try:
        if not where.startswith("/"):
            raise ValueError(address)
        return PeerID.from_base58(identity)
    except ValueError as error:
        raise BadAddress(given=address) from error
