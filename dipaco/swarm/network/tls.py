"""TLS over TCP, by Python's own `ssl`: both ends prove that they hold a credential of the run.

Each end shows the certificate that the run's authority made for its credential's key, and accepts
no other. If that fails, the handshake ends, and nothing from the other end is read. The dialling
peer also compares the key with the fingerprint in the address, so a credential alone does not let a
machine stand in for another. The version is TLS 1.3. A peer's rights are checked on its signed
messages.
"""

import asyncio
import contextlib
import secrets
import socket
import ssl
import tempfile
import weakref
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from dipaco.swarm.errors import BadAddress, BadCredential, TlsRefused
from dipaco.swarm.network import addresses, x509
from dipaco.swarm.network.addresses import TLS, SocketAddress
from dipaco.swarm.network.credentials import Credential, check_not_expired
from dipaco.swarm.network.streams import (
    CONNECT_SECONDS,
    STREAM_BYTES,
    StreamHandler,
    keep_alive,
)
from dipaco.swarm.network.unproven import Unproven

HANDSHAKE_SECONDS = 10.0
MAX_HANDSHAKES = 256  # Limit at a time. Beyond it the oldest is given up.
BACKLOG = 128  # connections that wait to be accepted
NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})
# OpenSSL's codes for a certificate that is not valid.
_NOT_YET_VALID, _EXPIRED = 9, 10

Result = TypeVar("Result")


class Tls:
    """Streams of TLS."""

    def __init__(self, credential: Credential):
        self._credential = credential
        self._dialling = _context(credential, ssl.PROTOCOL_TLS_CLIENT)
        self._answering = _context(credential, ssl.PROTOCOL_TLS_SERVER)
        self.address: str | None = None
        self._is_announced = False  # the address was given, and stays
        self._listener: socket.socket | None = None
        # This includes closing connections: the ends of TLS say goodbye to each other.
        self._open: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handshakes = Unproven(MAX_HANDSHAKES)

    @classmethod
    async def start(
        cls,
        handler: StreamHandler | None,
        credential: Credential,
        *,
        listen: str | None = None,
        announce: str | None = None,
        towards: str | None = None,
    ) -> "Tls":
        """Listens if there is a handler.

        Args:
          handler: serves streams; None = a client, which does not listen.
          credential: the credential of this machine.
          listen: `tls://HOST:PORT`; None = any port of all interfaces.
          announce: the host in the address that others are told. None = the host of `listen`, or,
            if that means all interfaces, the one that a backbone sees (`now_seen_at`).
          towards: the first address to be dialled. The interface to it is announced until then.

        Raises:
          BadAddress, BadCredential, CannotListen.
        """
        _check(credential)
        self = cls(credential)
        if handler is None:
            return self
        where = SocketAddress(TLS, "", 0) if listen is None else addresses.parse(listen)
        if where.fingerprint:
            raise BadAddress(given=listen)
        listener = self._listener = _listening(where)
        host = announce or where.host
        self._is_announced = host not in ("", *addresses.ANYWHERE)
        if not self._is_announced:
            loop = asyncio.get_running_loop()
            host = await loop.run_in_executor(None, _interface_to, towards)
        self._announce(host)
        self._spawn(self._accept_forever(listener, handler))
        return self

    async def open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises `TlsRefused` if the machine there is not the one that the address names."""
        where = addresses.parse(address)
        if where.kind != TLS or not where.fingerprint:
            raise BadAddress(given=address)
        try:
            async with asyncio.timeout(CONNECT_SECONDS + HANDSHAKE_SECONDS):
                dial = asyncio.open_connection(
                    where.host,
                    where.port,
                    limit=STREAM_BYTES,
                    ssl=self._dialling,
                    server_hostname="",
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
                dialling = self._spawn(dial)
                try:
                    reader, writer = await dialling
                except asyncio.CancelledError:
                    _hang_up(dialling)
                    raise
        except ssl.SSLError as error:
            raise TlsRefused(address=address, problem=_reason(error)) from error
        except ConnectionResetError as error:
            problem = "it hung up in the handshake of TLS: is it plain TCP (tcp://)?"
            raise ConnectionResetError(str(error) or problem) from error
        self._open.add(writer.transport)
        keep_alive(writer)
        found = x509.fingerprint(_key_of(writer))
        if found != where.fingerprint:
            writer.transport.abort()
            problem = f"its key has the fingerprint {found}, which is not the one of the address"
            raise TlsRefused(address=address, problem=problem)
        return reader, writer

    def seen_from(self, writer: asyncio.StreamWriter) -> str:
        """The host from which a peer dials."""
        return str(writer.get_extra_info("peername")[0]).removeprefix("::ffff:").partition("%")[0]

    def now_seen_at(self, host: str) -> None:
        """A backbone has seen this machine at `host`, so others may reach it there."""
        if self.address is not None and not self._is_announced:
            with contextlib.suppress(BadAddress):
                self._announce(host)

    def _announce(self, host: str) -> None:
        assert self._listener is not None
        key = x509.fingerprint(self._credential.certificate.holder)
        port = self._listener.getsockname()[1]
        self.address = str(addresses.parse(str(SocketAddress(TLS, host, port, key))))

    async def close(self) -> None:
        await asyncio.sleep(0)  # recently cancelled tasks end first
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        for transport in list(self._open):
            transport.abort()
        await asyncio.sleep(0)  # Transports and abandoned dials close at the loop's next turn.

    # --- answering -----------------------------------------------------------------------------

    def _spawn(self, turn: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.ensure_future(turn)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept_forever(self, listener: socket.socket, handler: StreamHandler) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # for example too many open files
                await asyncio.sleep(0.1)
                continue
            self._spawn(self._answer(connection, handler))

    async def _answer(self, connection: socket.socket, handler: StreamHandler) -> None:
        try:
            reader, writer = await self._shake_hands(connection)
        except (OSError, TimeoutError):  # a stranger; nothing of it was read
            connection.close()
            return
        self._open.add(writer.transport)
        keep_alive(writer)
        with contextlib.closing(writer):
            await handler(reader, writer)

    async def _shake_hands(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises `OSError` if the peer does not prove that it holds a credential."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=STREAM_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        async with self._handshakes.one(HANDSHAKE_SECONDS):
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._answering,
                ssl_handshake_timeout=2 * HANDSHAKE_SECONDS,  # `one` is sooner
            )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _hang_up(dialling: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Closes the connection of a dial that is given up as it succeeds. Nobody else would."""
    if dialling.done() and not dialling.cancelled() and dialling.exception() is None:
        dialling.result()[1].transport.abort()


def _check(credential: Credential) -> None:
    """Raises `BadCredential` if no peer would accept it: the handshake would not say why."""
    check_not_expired(credential)
    if not credential.tls_certificate:
        problem = "it has no certificate for TLS, as an older version made it"
        raise BadCredential(problem=problem, remedy="Ask for a new one (`dipaco swarm token`).")


def _context(credential: Credential, kind: Any) -> ssl.SSLContext:
    """Shows the credential's certificate, and accepts those of the same authority."""
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the fingerprint identifies the peer
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=x509.trusted_authority(credential.authority))
    password = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:  # `ssl` takes files only
        file = Path(folder) / "key_and_chain.pem"
        file.touch(mode=0o600)
        file.write_bytes(
            x509.key_and_chain(
                credential.private_key, credential.tls_certificate, password.encode()
            )
        )
        context.load_cert_chain(file, password=password)
    return context


def _listening(where: SocketAddress) -> socket.socket:
    """Raises `CannotListen`."""
    everywhere = where.host == ""
    dual = everywhere and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in where.host else socket.AF_INET
    try:
        if family == socket.AF_INET and not everywhere:
            found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
            family = found[0][0]
        listener = socket.create_server(
            (where.host, where.port), family=family, backlog=BACKLOG, dualstack_ipv6=dual
        )
    except OSError as error:
        raise addresses.cannot_listen(where, error.strerror) from error
    listener.setblocking(False)
    return listener


def _interface_to(address: str | None) -> str:
    if address is None:
        return addresses.own_host()
    with contextlib.suppress(OSError):
        host = addresses.parse(address).host
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        return addresses.own_host(str(found[4][0]))
    return addresses.own_host()


def _key_of(writer: asyncio.StreamWriter) -> bytes:
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.public_key_of(certificate)


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
            return "its credential is not valid now: look at both clocks"
        return "it is not of the run that your credential is for"
    if error.reason in NO_TLS:
        return "what answers there does not speak TLS: is it plain TCP (tcp://)?"
    return str(error.reason or error)
