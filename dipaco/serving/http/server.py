"""A socket, an ASGI server on it, and how it ends: on a signal, what runs is finished first."""

import contextlib
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
SILENT_SECONDS = 20.0  # for a first request to come, before the connection is closed
UNREAD_SECONDS = 60  # with an answer that the client does not read, before it counts as gone
MOST_HEAD_BYTES = 64 << 10  # of a request line and its headers
LAST_WORDS_SECONDS = 1.0  # to tell those whose requests were cut off


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
        raise CannotListen(host=host, port=port, problem=error) from error
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
    """uvicorn's, but for who connects and asks nothing, whom it would keep for ever, and whose
    headers have no end, which it would read. h11 has a bound, but with it 32 requests at once made
    1.14 times the tokens of `transformers`, and 1.37 with httptools (`bench_serve.py --pairs 4`).
    """

    _is_in_head, _head_bytes = True, 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._silence = self.loop.call_later(SILENT_SECONDS, self._look_for_request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._silence.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.send_400_response("The headers are too large.")

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head = True
        super().on_message_complete()

    def _look_for_request(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()


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
        self._drain_seconds, self._say, self._cut_off = drain_seconds, say, cut_off
        self._deadline: threading.Timer | None = None

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
            if self._deadline is not None:
                self._deadline.cancel()

    def _stop(self, number: int, frame: Any) -> None:
        is_second = self.should_exit
        self.should_exit = True
        if is_second and self._deadline is not None:
            self._deadline.cancel()
        else:
            self._say("stopping: the requests that run are finished first (once more: at once)")
        self._deadline = threading.Timer(0 if is_second else self._drain_seconds, self._end)
        self._deadline.daemon = True
        self._deadline.start()

    def _end(self) -> None:
        self._cut_off()
        until = time.monotonic() + LAST_WORDS_SECONDS
        while self.server_state.tasks and time.monotonic() < until:
            time.sleep(0.02)
        self.force_exit = True
