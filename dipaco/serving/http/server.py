"""A socket, an ASGI server on it, and how it ends: on a signal, what runs is finished first."""

import contextlib
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn
from starlette.applications import Starlette

from dipaco.errors import CannotListen

KEEP_ALIVE_SECONDS = 30
UNREAD_SECONDS = 60  # with an answer that the client does not read, before it counts as gone


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


def serve(
    app: Starlette, listening: socket.socket, drain_seconds: float, say: Callable[[str], None]
) -> None:
    """Answers until SIGTERM or Ctrl-C; then takes nothing new, and ends when the requests that run
    are finished, at the latest after `drain_seconds`.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(drain_seconds),
    )
    _Server(config, say).run(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn, but for what it does after a signal: it would die of it once more."""

    def __init__(self, config: uvicorn.Config, say: Callable[[str], None]):
        super().__init__(config)
        self._say = say

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        def stop(number: int, frame: object) -> None:
            self.force_exit = self.should_exit  # the second time at once
            self.should_exit = True
            self._say("stopping: the requests that run are finished first (once more: at once)")

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
