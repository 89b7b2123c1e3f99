"""A listening socket and its ASGI server, which finishes running requests after a signal.

A process has a limit of open files, at which the kernel resets every further client. So the limit
is raised as far as the system allows, and below it connections are *shed*: the one that has owed
the rest of its request for longest goes first. Requests that are being answered stay.
"""

import asyncio
import contextlib
import ipaddress
import itertools
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import httptools
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dipaco.errors import BadSetting, CannotListen
from dipaco.files import file_limit
from dipaco.serving.http.errors import ApiError

OTHER_FILES = 64  # files that may be opened beside connections: modules, the ledger
MOST_WAITING = 1024  # connections that the kernel holds for us


class ConnectionLimit:
    """The open connections of a server, so many at most. It is used in its event loop only."""

    def __init__(self, most: int):
        self._most = most
        self._open: set[_Protocol] = set()
        self._waiting: dict[_Protocol, None] = {}  # for their clients, the longest first

    def opened(self, connection: "_Protocol") -> None:
        """Adds a client that has connected. Closes another or this one if there are too many."""
        self._open.add(connection)
        if len(self._open) > self._most:
            oldest = next(iter(self._waiting), None)
            shed = connection if oldest is None else oldest
            self.closed(shed)
            if oldest is None:
                return shed.refuse()
            shed.shed()
        self.waits(connection)
        return None

    def waits(self, connection: "_Protocol") -> None:
        """Marks that the client is to send something. Until `is_served`, it may be shed."""
        if connection in self._open:
            self._waiting.setdefault(connection)

    def is_served(self, connection: "_Protocol") -> None:
        """A whole request has come, and is being answered."""
        self._waiting.pop(connection, None)

    def closed(self, connection: "_Protocol") -> None:
        """The connection is gone."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)


def backlog() -> int:
    """Connections that the kernel may hold for us. All of them may be accepted at one time."""
    return max(8, min(MOST_WAITING, file_limit() // 8))


def max_connections(wanted: int | None) -> int:
    """The most connections that the limit of open files allows, or `wanted`, which must fit."""
    most = max(1, file_limit() - _num_open_files() - OTHER_FILES - backlog())
    if wanted is not None and wanted > most:
        hint = " Each takes an open file: raise the limit, `ulimit -Hn`."
        raise BadSetting(
            name="--connections", value=wanted, expected=f"at most {most:,}", hint=hint
        )
    return wanted or most


def _num_open_files() -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return OTHER_FILES


# Longer than balancers keep a connection (nginx and AWS 60 s, Google 600 s): one that the server
# closed first would lose the request that is on its way. At the limit, idle ones are closed.
KEEP_ALIVE_SECONDS = 620
HEADER_SECONDS = 20.0  # time for the head of a request to arrive before the connection is closed
UNREAD_SECONDS = 60  # time that a client may leave data unread before it counts as disconnected
MAX_HEADER_BYTES = 64 << 10  # bytes of a request line and its headers
HEADERS_TOO_LARGE = "The headers are too large."
NO_HTTP = "This cannot be read as an HTTP request to this server."
# After SIGTERM, for requests that had been sent before: until none came for a moment, or at most.
QUIET_SECONDS, LAST_REQUEST_SECONDS = 0.05, 1.0
FINAL_RESPONSE_SECONDS = 1.0  # time to send errors to the clients whose requests are cut off
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


def listen(host: str, port: int) -> socket.socket:
    """A socket that clients can already connect to. Raises `CannotListen`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux. Connections inherit it
                unread = int(UNREAD_SECONDS * 1000)
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread)
            listening.bind((host, port))
            listening.listen(backlog())
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise CannotListen(where=f"{host}:{port}", problem=error, option="--port") from error
    return listening


class TlsFiles(NamedTuple):
    """A certificate, with those between it and its authority, and its key: PEM."""

    certificate: Path | None = None
    key: Path | None = None  # None = it is in the certificate's file


NO_TLS = TlsFiles()


def http_config(
    app: ASGIApp, connections: int | None = None, tls: TlsFiles = NO_TLS
) -> uvicorn.Config:
    """uvicorn's configuration. `connections` may be open at once, None = as many as possible."""
    limit = ConnectionLimit(max_connections(connections))

    class LimitedProtocol(_Protocol):
        connection_limit = limit

    return uvicorn.Config(
        app,
        http=LimitedProtocol,
        backlog=backlog(),
        ws="none",
        log_level="warning",
        log_config=None,  # warnings go where the process writes its own
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ssl_certfile=tls.certificate,
        ssl_keyfile=tls.key,
    )


@contextlib.contextmanager
def answering_that_it_starts(listening: socket.socket, tls: TlsFiles = NO_TLS) -> Generator[None]:
    """Meanwhile a thread answers every request with 503 `starting`."""
    error = ApiError(503, "The server is starting.", code="starting", retry_after_seconds=5)
    content = b'{"status":"starting",' + error.body().removeprefix(b"{")

    async def starting(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"Retry-After": "5", "Connection": "close"}
        response = Response(content, 503, headers, media_type="application/json")
        await response(scope, receive, send)

    server = uvicorn.Server(http_config(starting, tls=tls))
    thread = threading.Thread(target=server.run, args=([listening.dup()],), daemon=True)
    thread.start()
    try:
        yield
    finally:
        while not server.started and thread.is_alive():  # else uvicorn would leave it open
            time.sleep(0.01)
        server.should_exit = True
        thread.join()


def serve(
    app: ASGIApp,
    listening: socket.socket,
    drain_seconds: float,
    say: Callable[[str], None],
    cut_off: Callable[[], None],
    connections: int | None = None,
    *,
    host: str = "localhost",
    tls: TlsFiles = NO_TLS,
) -> None:
    """Serves until SIGTERM or Ctrl-C. Then takes no new requests, and ends when the running ones
    are finished. After `drain_seconds`, or at a second signal, calls `cut_off`, which ends them
    with an error. `host` is the name by which it was told to listen.
    """
    config = http_config(app_of_known_hosts(app, listening, host), connections, tls)
    _Server(config, drain_seconds, say, cut_off).run(sockets=[listening])


def app_of_known_hosts(app: ASGIApp, listening: socket.socket, host: str) -> ASGIApp:
    """An application that is for this machine alone, if it listens on a loopback address. Else the
    page of any site could read it, by a name of its own that leads here (DNS rebinding).
    """
    if not ipaddress.ip_address(listening.getsockname()[0]).is_loopback:
        return app

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        names = Headers(scope=scope).getlist("host")
        others = [name for name in names if not _is_of_this_machine(name, host)]
        if not others:
            return await app(scope, receive, send)
        named = others[0][:100]
        problem = f"This server listens on this machine alone, and knows no host `{named}`"
        remedy = "Ask for localhost, also behind a proxy (its `Host` header), or set `--host`."
        error = ApiError(403, f"{problem}. {remedy}", code="unknown_host")
        response = Response(error.body(), error.status, media_type="application/json")
        return await response(scope, receive, send)

    return guarded


def _is_of_this_machine(name: str, host: str) -> bool:
    name = re.sub(r":\d*$", "", name.strip().lower()).strip("[]").removesuffix(".")
    if name in ("", "localhost", host.lower()) or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol with limits that it lacks. It closes connections that do not complete a
    request's head in time, bounds their number and the size of the headers, answers in JSON to what
    is no HTTP, and ignores offers of other protocols, after which uvicorn would lose the body.
    """

    connection_limit: ConnectionLimit  # limit for all connections of a server
    is_stopping = False  # of the class: no connection is kept for another request
    _num_heads = 0  # heads of requests that have begun
    _is_in_head, _is_in_body = False, False
    _head_bytes = 0  # of a head that is not complete
    _header_bytes = 0  # of the headers so far that are
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_head_timer()
        self.connection_limit.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        self.connection_limit.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head, was_in_body, num_heads = self._is_in_head, self._is_in_body, self._num_heads
        if not was_in_head and not was_in_body:
            data = without_upgrade(data)
        # As uvicorn does it, whose lines in the log anybody could fill it with.
        self._unset_keepalive_if_required()
        assert self.parser is not None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response(NO_HTTP)
        except httptools.HttpParserUpgrade:
            pass  # an offer that is not taken up
        # If another message ended in this data, it is unknown how much of it is the new head.
        is_all_this_head = not was_in_body and self._num_heads == num_heads + (not was_in_head)
        if self._is_in_head and is_all_this_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEADER_BYTES:
                self.send_400_response(HEADERS_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._num_heads += 1
        self._is_in_head, self._head_bytes, self._header_bytes = True, 0, 0
        self._start_head_timer()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._header_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._header_bytes > MAX_HEADER_BYTES:
            raise ValueError(HEADERS_TOO_LARGE)  # It is answered by 400, as is what follows.
        if self.parser is not None and self.parser.get_method() == b"CONNECT":
            raise ValueError(NO_HTTP)
        self._is_in_head, self._is_in_body = False, True
        self._cancel_head_timer()
        super().on_headers_complete()
        if self.is_stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        self._is_in_body = False
        if self.cycle is not None and not self.cycle.response_complete:
            self.connection_limit.is_served(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:
            self.connection_limit.waits(self)

    def shed(self) -> None:
        """Closes the connection without an answer."""
        self.transport.abort()

    def refuse(self) -> None:
        """Closes the connection with an answer that says why."""
        problem = "Too many connections are open. Try again in a moment."
        error = ApiError(503, problem, code="too_many_connections", retry_after_seconds=1)
        self._close_with(error, "503 Service Unavailable\r\nRetry-After: 1")

    def send_400_response(self, msg: str) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_own = self._is_in_body and self.cycle is not None and not self.cycle.response_started
        if self.pipeline or (is_answering and not is_own):
            return self.transport.close()  # It would be read as the answer to another request.
        return self._close_with(ApiError(400, msg), "400 Bad Request")

    def _close_with(self, error: ApiError, status: str) -> None:
        body = error.body()
        head = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_SECONDS, self._close_if_idle)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = None

    def _close_if_idle(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._start_head_timer()  # an earlier request of this connection is being answered
        else:
            self.transport.close()


def without_upgrade(data: bytes) -> bytes:
    """The start of a request without the header that offers another protocol, such as HTTP/2.

    Some clients offer it in every first request, and a server may ignore it (RFC 9110, 7.8). The
    parser would read what follows as that protocol.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    return UPGRADE.sub(b"\r\nX-Upgrade:", head) + end + body


class _Server(uvicorn.Server):
    """uvicorn with its own signal handling: uvicorn would raise the signal again when it ends, and
    close connections without a response after the drain time.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain_seconds: float,
        say: Callable[[str], None],
        cut_off: Callable[[], None],
    ):
        super().__init__(config)
        self._say, self._cut_off = say, cut_off
        # All created here: a signal may come while the previous one is being handled.
        self._signals = itertools.count(1)
        self._deadline = threading.Timer(drain_seconds, self._end)
        self._end_now = threading.Timer(0, self._end)
        self._deadline.daemon = self._end_now.daemon = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        numbers = signal.SIGINT, signal.SIGTERM
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._deadline.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """First takes the requests that wait in the kernel: uvicorn would reset them."""
        kind = self.config.http_protocol_class
        assert issubclass(kind, _Protocol)
        kind.is_stopping = True
        until, seen = time.monotonic() + LAST_REQUEST_SECONDS, -1
        while seen != self._num_come and time.monotonic() < until:
            seen = self._num_come
            await asyncio.sleep(QUIET_SECONDS)
        await super().shutdown(sockets)

    @property
    def _num_come(self) -> int:
        state = self.server_state
        return state.total_requests + len(state.connections)

    def _on_signal(self, number: int, frame: Any) -> None:
        nth = next(self._signals)
        self.should_exit = True
        if nth == 1:
            self._deadline.start()
            self._say("stopping: running requests are finished first (signal again to end at once)")
        elif nth == 2:
            self._deadline.cancel()
            self._end_now.start()

    def _end(self) -> None:
        self._cut_off()
        until = time.monotonic() + FINAL_RESPONSE_SECONDS
        while self.server_state.tasks and time.monotonic() < until:
            time.sleep(0.02)
        self.force_exit = True
