"""An HTTP server of this machine, in a thread: for stand-ins of what a run talks to."""

import http.server
import threading
from typing import Self


class HttpThread:
    """Answers at `url` for as long as it is entered.

    Args:
      handler: of each request.
      server: its class.
    """

    def __init__(
        self,
        handler: type[http.server.BaseHTTPRequestHandler],
        server: type[http.server.ThreadingHTTPServer] = http.server.ThreadingHTTPServer,
    ):
        self._server = server(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True  # idle connections are the client's to close
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
