"""Names that users give to workers, launchers and volunteers; files are named after them."""

import os
import re
import secrets
import socket

from dipaco.control.errors import BadName

_NAME = re.compile(r"[^\W_][\w.-]*")
MOST_BYTES = 100  # launchers and files add to it


def check_name(name: str) -> str:
    """The name itself. Raises `BadName`."""
    if not _NAME.fullmatch(name) or len(name.encode()) > MOST_BYTES:
        raise BadName(name=name)
    return name


def name_of(given: str | None) -> str:
    """The name that was given, else host and process number, with something made up: two containers
    may have both in common. Raises `BadName`.
    """
    if given is not None:
        return check_name(given)
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
