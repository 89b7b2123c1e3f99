"""The page at / and its files, which lie beside this one. It connects to this server only."""

import functools
import importlib.resources

from starlette.responses import Response

FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/picture.js": ("picture.js", "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


@functools.cache
def _content(name: str) -> bytes:
    return importlib.resources.files("dipaco.serving.http").joinpath(name).read_bytes()


def page_file(path: str) -> Response:
    """The file at a path of `FILES`."""
    name, media_type = FILES[path]
    return Response(_content(name), media_type=media_type, headers=HEADERS)
