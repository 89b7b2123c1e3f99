"""Streams between peers, over TLS or plain TCP.

A transport opens streams to addresses and serves those that peers open. `tls://HOST:PORT/…` is
encrypted and needs a credential on both ends (`tls.py`). `tcp://HOST:PORT` is for machines that
reach each other (a laboratory, tests).
"""

import asyncio

from dipaco.swarm.errors import BadAddress
from dipaco.swarm.network.addresses import TCP, TLS, SocketAddress, cannot_listen, own_host, parse
from dipaco.swarm.network.credentials import Credential
from dipaco.swarm.network.streams import (
    CONNECT_SECONDS,
    STREAM_BYTES,
    StreamHandler,
    Transport,
    keep_alive,
)
from dipaco.swarm.network.tls import Tls


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
                keep_alive(writer)
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
                where = SocketAddress(TCP, host, port)
                raise cannot_listen(where, error.strerror) from error
            bound = self._server.sockets[0].getsockname()[1]
            self.address = str(SocketAddress(TCP, host, bound))
        return self

    async def open(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = parse(address)
        if where.kind != TCP:
            raise BadAddress(given=address)
        async with asyncio.timeout(CONNECT_SECONDS):
            opened = await asyncio.open_connection(where.host, where.port, limit=STREAM_BYTES)
        keep_alive(opened[1])
        return opened

    def seen_from(self, writer: asyncio.StreamWriter) -> str:
        return str((writer.get_extra_info("peername") or ("",))[0])

    def now_seen_at(self, host: str) -> None:
        pass

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()


async def start_transport(
    like: str,
    handler: StreamHandler | None,
    bootstrap: tuple[str, ...] = (),
    *,
    credential: Credential | None = None,
    announce: str | None = None,
) -> Transport:
    """Starts the transport of an address's kind.

    Args:
      like: without `bootstrap`, the address to listen on; else any, and a free port is taken.
      handler: serves streams; None = a client, which does not listen.
      bootstrap: addresses of peers that run already.
      credential: of this machine; only TLS needs it.
      announce: the host that others are told, with TLS (`Tls.start`).

    Raises:
      BadAddress: it is of no kind.
      BadCredential, CannotListen.
    """
    if like.startswith(TLS):
        assert credential is not None
        parse(like)
        if bootstrap or handler is None:
            return await Tls.start(handler, credential, towards=like)
        return await Tls.start(handler, credential, listen=like, announce=announce)
    if like.startswith(TCP):
        if bootstrap or handler is None:
            return await Tcp.start(handler, own_host(parse((*bootstrap, like)[0]).host))
        where = parse(like)
        return await Tcp.start(handler, where.host, where.port)
    raise BadAddress(given=like)
