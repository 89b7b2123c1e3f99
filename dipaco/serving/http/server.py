"""A socket, an ASGI server on it, and how it ends: on a signal, what runs is finished first."""

import asyncio
import contextlib
import itertools
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dipaco.errors import CannotListen

KEEP_ALIVE_SECONDS = 30
SILENT_SECONDS = 20.0  # for the head of a request to come, before the connection is closed
UNREAD_SECONDS = 60  # with an answer that the client does not read, before it counts as gone
MAX_HEADER_BYTES = 64 << 10  # of a request line and its headers
LAST_WORDS_SECONDS = 1.0  # to tell those whose requests were cut off
OFFER = re.compile(rb"\r\nupgrade:(?=[ \t]*h2c)", re.IGNORECASE)


def listen(host: str, port: int) -> socket.socket:
    """A socket that clients can already connect to. Raises `CannotListen`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections take it over
                unread = int(UNREAD_SECONDS * 1000)
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread)
            listening.bind((host, port))
            listening.listen(1024)
        except BaseException:
            listening.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise CannotListen(where=f"{host}:{port}", problem=error, option="--port") from error
    return listening


def http_config(app: Starlette) -> uvicorn.Config:
    """How requests are read."""
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )


def serve(
    app: Starlette,
    listening: socket.socket,
    drain_seconds: float,
    say: Callable[[str], None],
    cut_off: Callable[[], None],
) -> None:
    """Answers until SIGTERM or Ctrl-C; then takes nothing new, and ends when the requests that run
    are finished. After `drain_seconds`, or at a second signal, `cut_off` is called, which ends
    them; they are told so.
    """
    _Server(http_config(app), drain_seconds, say, cut_off).run(sockets=[listening])


class _Protocol(HttpToolsProtocol):
    """uvicorn's, but for who connects or begins a request and goes no further, whom it would keep
    for ever, whose headers have no end, which it would read, and who offers HTTP/2, whose body it
    would lose. h11 has a bound, but with it 32 requests at once made 1.14 times the tokens of
    `transformers`, and 1.37 with httptools (`bench_serve.py --pairs 4`).
    """

    _heads = 0  # that have begun
    _is_in_head, _is_in_body = False, False
    _head_bytes = 0
    _silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head, was_in_body, heads = self._is_in_head, self._is_in_body, self._heads
        if not was_in_head and not was_in_body:
            data = without_offer(data)
        super().data_received(data)
        # Where something else ended in this piece, nobody knows how much of it is of the new head.
        is_of_this_head = not was_in_body and self._heads == heads + (not was_in_head)
        if self._is_in_head and is_of_this_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEADER_BYTES:
                self.send_400_response("The headers are too large.")

    def on_message_begin(self) -> None:
        self._heads += 1
        self._is_in_head, self._head_bytes = True, 0
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head, self._is_in_body = False, True
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    def _await_head(self) -> None:
        if self._silence is None:
            self._silence = self.loop.call_later(SILENT_SECONDS, self._close_if_idle)

    def _stop_waiting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = None

    def _close_if_idle(self) -> None:
        self._silence = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._await_head()  # an earlier request of this connection is being answered
        else:
            self.transport.close()


def without_offer(data: bytes) -> bytes:
    """The beginning of a request, without an offer to go on in HTTP/2, which some clients make in
    every first request: whoever does not take it ignores it (RFC 9110, 7.8), but the parser would
    take what follows for HTTP/2.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    return OFFER.sub(b"\r\nX-Upgrade:", head) + end + body


class _Server(uvicorn.Server):
    """uvicorn, but for what it does after a signal: it would die of it once more, and leave those
    without a word whose time is over.
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
        # All made here: a signal may come while the one before it is being handled.
        self._signals = itertools.count(1)
        self._deadline = threading.Timer(drain_seconds, self._end)
        self._at_once = threading.Timer(0, self._end)
        self._deadline.daemon = self._at_once.daemon = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        before = {
            number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._deadline.cancel()

    def _stop(self, number: int, frame: Any) -> None:
        nth = next(self._signals)
        self.should_exit = True
        if nth == 1:
            self._deadline.start()
            self._say("stopping: the requests that run are finished first (once more: at once)")
        elif nth == 2:
            self._deadline.cancel()
            self._at_once.start()

    def _end(self) -> None:
        self._cut_off()
        until = time.monotonic() + LAST_WORDS_SECONDS
        while self.server_state.tasks and time.monotonic() < until:
            time.sleep(0.02)
        self.force_exit = True
