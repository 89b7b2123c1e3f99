"""Google Cloud Storage, as much of its JSON API as TensorStore speaks: objects in memory, with the
precondition `ifGenerationMatch=0`, which the emulators that can be installed ignore.

Source: cloud.google.com/storage/docs/json_api/v1. What Google's own service does beyond this page
was not tried.
"""

import http.server
import itertools
import json
import threading
import urllib.parse
from typing import Any

from support.http_thread import HttpThread


class GoogleStorage(HttpThread):
    """A server in a thread; every bucket is there."""

    def __init__(self) -> None:
        store = self

        class Handler(_Handler):
            def storage(self) -> "GoogleStorage":
                return store

        self.objects: dict[str, tuple[int, bytes]] = {}  # name -> generation, content
        self.generations = itertools.count(1)
        self.lock = threading.Lock()
        super().__init__(Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def storage(self) -> GoogleStorage:
        raise NotImplementedError

    def do_GET(self) -> None:
        name, query = self._asked()
        objects = self.storage().objects
        if name:
            found = objects.get(name)
            if found is None:
                return self._answer(404)
            if query.get("alt") != "media":
                return self._answer(200, json.dumps(_about(name, *found)).encode())
            return self._answer_range(*found)
        start, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
        items = [_about(each, *objects[each]) for each in sorted(objects) if start <= each < end]
        return self._answer(200, json.dumps({"items": items}).encode())

    def do_POST(self) -> None:
        _, query = self._asked()
        content = self.rfile.read(int(self.headers["Content-Length"]))
        storage, name = self.storage(), query["name"]
        with storage.lock:
            if query.get("ifGenerationMatch") == "0" and name in storage.objects:
                return self._answer(412)
            storage.objects[name] = (next(storage.generations), content)
        return self._answer(200, json.dumps(_about(name, *storage.objects[name])).encode())

    def do_DELETE(self) -> None:
        name, _ = self._asked()
        self._answer(404 if self.storage().objects.pop(name, None) is None else 204)

    def _asked(self) -> tuple[str, dict[str, str]]:
        """An object's name, nothing for the bucket; and the query."""
        url = urllib.parse.urlsplit(self.path)
        name = urllib.parse.unquote(url.path.partition("/o/")[2])
        return name, dict(urllib.parse.parse_qsl(url.query))

    def _answer_range(self, generation: int, content: bytes) -> None:
        headers, status, whole = {"x-goog-generation": str(generation)}, 200, len(content)
        if asked := self.headers.get("range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            if int(first) >= whole:
                return self._answer(416)
            content = content[int(first) : int(last or whole) + 1]
            end = int(first) + len(content) - 1
            headers["Content-Range"], status = f"bytes {first}-{end}/{whole}", 206
        return self._answer(status, content, headers)

    def _answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def _about(name: str, generation: int, content: bytes) -> dict[str, str]:
    return {
        "name": name,
        "generation": str(generation),
        "metageneration": "1",
        "size": str(len(content)),
        "timeCreated": "2026-01-01T00:00:00Z",
        "updated": "2026-01-01T00:00:00Z",
    }
