"""A limit of open connections, and the choice of the one that is closed.

A process has a limit of open files, and at that limit the kernel resets every further client. So
the limit is raised as far as the system allows, and below it connections are *shed*: the one that
has owed the rest of its request for longest goes first. Requests that are being answered stay.
"""

import contextlib
import os
from typing import Protocol

from dipaco.errors import BadSetting

try:
    import resource
except ImportError:  # Windows: no such limit
    resource = None

NO_LIMIT = 1 << 20  # open files, where the system names no number
OTHER_FILES = 64  # files that may be opened beside connections: modules, the ledger
MOST_WAITING = 1024  # connections that the kernel holds for us


class Connection(Protocol):
    """A connection, as the limit sees it."""

    def shed(self) -> None:
        """Closes it, without an answer."""
        ...

    def refuse(self) -> None:
        """Closes it, with an answer that says why."""
        ...


class ConnectionLimit:
    """The open connections of a server. It is used in its event loop only.

    Args:
      most: connections that may be open at once.
    """

    def __init__(self, most: int):
        self._most = most
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # for their clients, the longest first

    def opened(self, connection: Connection) -> None:
        """Adds a client that has connected. Closes another connection, or this one, if there are
        too many.
        """
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

    def waits(self, connection: Connection) -> None:
        """Marks that the client is to send something. Until `is_served`, it may be shed."""
        if connection in self._open:
            self._waiting.setdefault(connection)

    def is_served(self, connection: Connection) -> None:
        """A whole request has come, and is being answered."""
        self._waiting.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        """The connection is gone."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)


def raise_file_limit() -> None:
    """Raises this process's limit of open files to the most that it may give itself."""
    if resource is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit that it does not name
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def backlog() -> int:
    """Connections that the kernel may hold for us. All of them may be accepted at one time."""
    return max(8, min(MOST_WAITING, _file_limit() // 8))


def max_connections(wanted: int | None) -> int:
    """The most connections that fit into the limit of open files, or `wanted`.

    Raises:
      BadSetting: more are wanted than fit.
    """
    most = max(1, _file_limit() - _num_open_files() - OTHER_FILES - backlog())
    if wanted is not None and wanted > most:
        hint = " Each takes an open file: raise the limit, `ulimit -Hn`."
        raise BadSetting(
            name="--connections", value=wanted, expected=f"at most {most:,}", hint=hint
        )
    return wanted or most


def _file_limit() -> int:
    if resource is None:
        return NO_LIMIT
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return NO_LIMIT if limit == resource.RLIM_INFINITY else min(limit, NO_LIMIT)


def _num_open_files() -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return OTHER_FILES
