"""A stand-in of the Hugging Face Hub's API, as far as uploads without Xet and downloads need it.

`writer` may write, other tokens may read. Files from `LARGE` bytes on are sent apart, by the
digest of their bytes. `cut_after` closes every connection once so many of them have arrived.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LARGE = 2000


class Hub:
    """Its repositories: name -> commits, each a dictionary of files."""

    def __init__(self):
        self.repositories: dict[str, list[dict[str, bytes]]] = {}
        self.large: dict[str, bytes] = {}  # what was sent apart, by digest
        self.cut_after: int | None = None
        self.fetched: list[str] = []
        self.url = ""

    def files(self, name: str) -> dict[str, bytes]:
        return self.repositories[name][-1]

    def sha(self, name: str) -> str:
        return hashlib.sha1(f"{name}{len(self.repositories[name])}".encode()).hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_):
        pass

    def _answer(self, body=b"", code=200, **headers: str) -> None:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _asked(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        found = re.match(
            r"/(?:api/models/)?([^/]+/[^/]+)(?:/(revision|tree|resolve)/([^/]+))?", path
        )
        name = found[1] if found else ""
        if name not in hub.repositories:
            self._answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            return
        files, sha = hub.files(name), hub.sha(name)
        if found[2] == "tree":
            listed = []
            for file, content in files.items():
                lfs = {"oid": _sha256(content), "size": len(content), "pointerSize": 9}
                entry = {"type": "file", "path": file, "oid": "0" * 40, "size": len(content)}
                listed.append(entry | ({"lfs": lfs} if len(content) >= LARGE else {}))
            self._answer(listed)
        elif found[2] == "resolve":
            file = path[found.end() + 1 :]
            content = files[file]
            if self.command == "GET":
                hub.fetched.append(file)
                if hub.cut_after is not None and len(hub.fetched) > hub.cut_after:
                    self._cut()
                    return
            self._answer(content, ETag=f'"{_sha256(content)}"', X_Repo_Commit=sha)
        else:
            siblings = [{"rfilename": file} for file in files]
            self._answer({"id": name, "modelId": name, "sha": sha, "siblings": siblings})

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        content = self._body()
        if self.hub.cut_after is not None and len(self.hub.large) >= self.hub.cut_after:
            self._cut()
            return
        self.hub.large[_sha256(content)] = content
        self._answer()

    def do_POST(self) -> None:
        hub, body = self.hub, self._body()
        if self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
            return
        if self._asked() != "writer":
            self._answer({"error": "You have no right to write here"}, 403)
            return
        if "/preupload/" in self.path:
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["size"] >= LARGE else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif self.path.endswith("/objects/batch"):
            objects = []
            for each in json.loads(body)["objects"]:
                upload = {"upload": {"href": f"{hub.url}/large/{each['oid']}"}}
                is_there = each["oid"] in hub.large
                objects.append(each | ({} if is_there else {"actions": upload}))
            self._answer({"transfer": "basic", "objects": objects})
        else:
            name = re.match(r"/api/models/([^/]+/[^/]+)/commit/", self.path)[1]
            files = dict(hub.files(name))
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = hub.large[value["oid"]]
            hub.repositories[name].append(files)
            sha = hub.sha(name)
            self._answer({"commitUrl": f"{hub.url}/{name}/commit/{sha}", "commitOid": sha})


@contextlib.contextmanager
def serving_hub() -> Iterator[Hub]:
    """A hub without repositories."""
    hub = Hub()
    handler = type("_HandlerOfHub", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
