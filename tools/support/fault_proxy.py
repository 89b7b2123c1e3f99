"""A proxy before a store, which answers wrongly, late, in part or not at all.

Faults are planned one by one, and counted where they happen: a test that meant to inject one can
see that it did.

    403, 500, 503   an answer of that kind; the store is not asked
    reset           the connection is closed before anything is done
    garbage         what comes is no answer at all
    slow            the store is asked after `slow_seconds`
    cut             half of what was sent reaches the store, or half of its answer comes back
    after           done, but the answer is lost
    damage          a byte of the answer is flipped
"""

import contextlib
import http.client
import http.server
import itertools
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Generator
from typing import Any

from support.http_thread import HttpThread

NO_LINGER = struct.pack("ii", 1, 0)  # closing sends a reset
PASSED_ON = ("Content-Length", "Content-Type", "ETag", "Last-Modified", "Content-Range")


class FaultProxy(HttpThread):
    """Passes HTTP requests to a port of this machine. `plan` says which go wrong."""

    def __init__(self, port: int, slow_seconds: float = 0.5):
        self.slow_seconds = slow_seconds
        self.asked: Counter[str] = Counter()  # requests by method
        self.injected: Counter[str] = Counter()  # faults that happened
        self.is_gone = False  # then no request is answered
        self._port = port
        self._planned: deque[tuple[str, str]] = deque()
        self._every, self._in_turn = 0, itertools.cycle([""])
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            def handle_one(self) -> None:
                proxy._pass_on(self)

        super().__init__(Handler, _Server)

    def plan(self, *faults: str, method: str) -> None:
        """The next requests of this method go wrong, in this order."""
        with self._lock:
            self._planned.extend((fault, method) for fault in faults)

    def fail_every(self, nth: int, *faults: str) -> None:
        """Every nth request goes wrong, each in the next of these ways."""
        self._every, self._in_turn = nth, itertools.cycle(faults)

    @contextlib.contextmanager
    def gone(self) -> Generator[None]:
        """Every connection is reset."""
        self.is_gone = True
        try:
            yield
        finally:
            self.is_gone = False

    def _next_fault(self, method: str) -> str:
        with self._lock:
            self.asked[method] += 1
            fault = "reset" if self.is_gone else ""
            if not fault and self._planned and self._planned[0][1] == method:
                fault, _ = self._planned.popleft()
            if not fault and self._every and self.asked.total() % self._every == 0:
                fault = next(self._in_turn)
            if fault:
                self.injected[fault] += 1
            return fault

    def _pass_on(self, client: "_Handler") -> None:
        fault = self._next_fault(client.command)
        if fault in ("reset", "garbage"):
            client.wfile.write(b"no HTTP\r\n\r\n" if fault == "garbage" else b"")
            return client.hang_up()
        body = client.rfile.read(int(client.headers.get("Content-Length") or 0))
        if fault.isdigit():
            code = {"403": "AccessDenied", "500": "InternalError", "503": "SlowDown"}[fault]
            return client.answer(int(fault), {}, f"<Error><Code>{code}</Code></Error>".encode())
        if fault == "slow":
            threading.Event().wait(self.slow_seconds)
        store = http.client.HTTPConnection("127.0.0.1", self._port)
        store.putrequest(client.command, client.path, skip_host=True, skip_accept_encoding=True)
        for name, value in client.headers.items():
            store.putheader(name, value)
        store.endheaders()
        if fault == "cut" and body:
            store.send(body[: len(body) // 2])
            store.close()
            return client.hang_up()
        store.send(body)
        answer = store.getresponse()
        content = answer.read()
        store.close()
        if fault == "after":
            return client.hang_up()
        headers = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
        if fault == "damage":
            middle = len(content) // 2
            content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        client.answer(answer.status, headers, content, is_cut=fault == "cut")
        return None


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is what we are here for."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.handle_one()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def answer(
        self, status: int, headers: dict[str, str], content: bytes, is_cut: bool = False
    ) -> None:
        self.send_response(status)
        num_bytes = headers.get("Content-Length", 0) if self.command == "HEAD" else len(content)
        for name, value in (headers | {"Content-Length": str(num_bytes)}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if is_cut else content)
        if is_cut:
            self.hang_up()

    def hang_up(self) -> None:
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        pass
