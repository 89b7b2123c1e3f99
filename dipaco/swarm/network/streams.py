"""Streams between peers: TLS 1.3 over TCP, by Python's own `ssl`.

Each end shows the certificate of its credential, and accepts those of the same authority alone. If
that fails, the handshake ends, and nothing from the other end is read. Strangers can hold only so
many handshakes open.
"""

import asyncio
import contextlib
import socket
import ssl
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from dipaco.errors import CannotListen
from dipaco.files import raise_file_limit
from dipaco.swarm.errors import TlsRefused
from dipaco.swarm.network import addresses
from dipaco.swarm.network.addresses import SocketAddress
from dipaco.swarm.network.credentials import (
    Certificate,
    Credential,
    certificate_of,
    check_not_expired,
    context,
)
from dipaco.swarm.network.limits import Unproven

StreamHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STREAM_BYTES = 256 << 10  # read-ahead of a stream
# Limit for a TCP connection. The system repeats its request after 1, 3, 7, 15 and more seconds, so
# a new attempt is answered sooner once a link is back.
CONNECT_SECONDS = 4.0
HANDSHAKE_SECONDS = 10.0
# Limits at a time, in all and of one host. Beyond them the oldest is given up.
MAX_HANDSHAKES, MAX_HOST_HANDSHAKES = 256, 128
BACKLOG = 128  # connections that wait to be accepted
# Probes of a silent connection: seconds until the first, seconds between two, and the number
# without an answer after which it is closed.
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})
# OpenSSL's codes for a certificate that is not valid.
_NOT_YET_VALID, _EXPIRED = 9, 10

Result = TypeVar("Result")


class Streams:
    """Streams to and from peers."""

    def __init__(self, credential: Credential):
        check_not_expired(credential)  # the handshake would not say why
        self._dialling = context(credential, ssl.PROTOCOL_TLS_CLIENT)
        self._answering = context(credential, ssl.PROTOCOL_TLS_SERVER)
        # address at which others reach this peer; None = a client, which only dials out
        self.address: str | None = None
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        # This includes closing connections: the ends of TLS say goodbye to each other.
        self._open: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handshakes = Unproven(MAX_HANDSHAKES, MAX_HOST_HANDSHAKES)

    @classmethod
    async def start(
        cls,
        credential: Credential,
        handler: StreamHandler | None = None,
        *,
        listen: str = ":0",
        announce: str | None = None,
    ) -> "Streams":
        """Listens if there is a handler; without one it is a client's. `announce`: the host in
        `address`; None = the host of `listen`, or this machine's. Raises `BadAddress`,
        `BadCredential`, `CannotListen`.
        """
        self = cls(credential)
        if handler is not None:
            raise_file_limit()
            where = addresses.parse(listen)
            self._listener = _listening(where)
            host = announce or where.host
            host = addresses.own_host() if host in addresses.ANYWHERE else host
            self.address = str(SocketAddress(host, self._listener.getsockname()[1]))
            self._loop.add_reader(self._listener, self._accept, self._listener, handler)
        return self

    async def open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError if no peer of the run is there, `BadAddress`."""
        dialling = self._spawn(self._dial(addresses.parse(address)))
        try:
            reader, writer = await dialling
        except asyncio.CancelledError:
            _hang_up(dialling)
            raise
        except ssl.SSLError as error:
            raise TlsRefused(address=address, problem=reason_of(error)) from error
        except ConnectionResetError as error:
            problem = "it hung up in the handshake of TLS: is it a backbone's address?"
            raise ConnectionResetError(str(error) or problem) from error
        self._open.add(writer.transport)
        _keep_alive(writer)
        return reader, writer

    async def _dial(
        self, where: SocketAddress
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await self._connected(where)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await writer.start_tls(self._dialling, server_hostname="")
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    async def _connected(
        self, where: SocketAddress
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(where.host, where.port, limit=STREAM_BYTES)

    async def close(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await asyncio.sleep(0)  # recently cancelled tasks end first, and new ones begin
        left = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for transport in list(self._open):
            transport.abort()
        await asyncio.sleep(0)  # Transports and abandoned dials close at the loop's next turn.

    # --- answering -----------------------------------------------------------------------------

    def _spawn(self, turn: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.ensure_future(turn)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _accept(self, listener: socket.socket, handler: StreamHandler) -> None:
        try:
            connection, source = listener.accept()
            connection.setblocking(False)
            # asyncio sets this only on sockets that name their protocol. Without it each message
            # waits some 40 ms for an acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BlockingIOError:
            return
        except OSError:  # for example too many open files
            self._loop.remove_reader(listener)
            self._loop.call_later(0.1, self._accept_again, listener, handler)
            return
        self._spawn(self._answer(connection, source[0], handler))

    def _accept_again(self, listener: socket.socket, handler: StreamHandler) -> None:
        if self._listener is listener:
            self._loop.add_reader(listener, self._accept, listener, handler)

    async def _answer(self, connection: socket.socket, source: str, handler: StreamHandler) -> None:
        loop = self._loop
        reader = asyncio.StreamReader(limit=STREAM_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            async with self._handshakes.one(HANDSHAKE_SECONDS, addresses.network_of(source)):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._answering,
                    ssl_handshake_timeout=2 * HANDSHAKE_SECONDS,  # `one` is sooner
                )
        except (OSError, TimeoutError):  # a stranger; nothing of it was read
            connection.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self._open.add(transport)
        _keep_alive(writer)
        with contextlib.closing(writer):
            await handler(reader, writer)


def certificate_at(writer: asyncio.StreamWriter) -> Certificate:
    """The certificate of the other end, which it has proved to hold."""
    return certificate_of(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))


def host_of(writer: asyncio.StreamWriter) -> str:
    """The host from which the other end dials."""
    return str((writer.get_extra_info("peername") or ("",))[0])


def reason_of(error: ssl.SSLError) -> str:
    """Why a handshake has failed, for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
            return "its credential is not valid now: look at both clocks"
        return "it is not of the run that your credential is for"
    if error.reason in _NO_TLS:
        return "what answers there does not speak TLS"
    if "ALERT" in (error.reason or ""):
        return "it refuses this credential: is it of this run, and are both clocks right?"
    return str(error.reason or error)


def _hang_up(dialling: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Closes the connection of a dial that is given up as it succeeds. Nobody else would."""
    if dialling.done() and not dialling.cancelled() and dialling.exception() is None:
        dialling.result()[1].transport.abort()


def _listening(where: SocketAddress) -> socket.socket:
    """Raises `CannotListen`."""
    dual = where.host == "" and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in where.host else socket.AF_INET
    try:
        listener = socket.create_server(
            (where.host, where.port), family=family, backlog=BACKLOG, dualstack_ipv6=dual
        )
    except OSError as error:
        raise CannotListen(where=where, problem=error.strerror, option="--listen") from error
    listener.setblocking(False)
    return listener


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    """Makes the system notice within a minute that the other machine has vanished. If the delay
    cannot be set, the system chooses it.
    """
    connection = writer.get_extra_info("socket")
    if connection is None:  # it is lost already
        return
    with contextlib.suppress(OSError):  # it is closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Signal:
    """Wakes all tasks that wait for something to change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, within_seconds: float | None = None) -> None:
        """Returns at the next change, or when the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._event.wait()


@contextlib.asynccontextmanager
async def side_by_side(*turns: Awaitable[Any]) -> AsyncGenerator[tuple[asyncio.Task[Any], ...]]:
    """Runs coroutines as tasks, and cancels the unfinished ones at the end of the block."""
    tasks = tuple(asyncio.ensure_future(turn) for turn in turns)
    try:
        yield tasks
    finally:
        await cancelled(*tasks)


async def first_of(*tasks: asyncio.Task[Any]) -> None:
    """Waits until one task has ended."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits until they have ended. Their exceptions are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
