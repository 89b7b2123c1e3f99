"""Waiting for a database that went away: what was asked is asked again until it is back.

A connection that breaks inside a transaction leaves it undone or, if it broke during the commit,
done without our knowing. So only what may be done twice is asked again.
"""

import functools
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from dipaco.control.errors import DatabaseUnreachable
from dipaco.errors import DipacoError

PATIENCE_SECONDS = 900.0  # a restart, a failover, somebody's lunch
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0

P = ParamSpec("P")
R = TypeVar("R")


class ConnectionLost(DipacoError):
    """The database {place} cannot be reached: {problem}."""


def with_retry(ask: Callable[[], R], reconnect: Callable[[], None]) -> R:
    """What `ask` returns; asked again, on a new connection, for as long as the old one is lost.

    Raises:
      DatabaseUnreachable: for `PATIENCE_SECONDS`.
    """
    began = time.monotonic()
    wait_seconds = FIRST_WAIT_SECONDS
    is_connected = True
    while True:
        try:
            if not is_connected:
                reconnect()
                is_connected = True
            return ask()
        except ConnectionLost as lost:
            is_connected = False
            silent_seconds = time.monotonic() - began
            if silent_seconds > PATIENCE_SECONDS:
                raise DatabaseUnreachable(seconds=silent_seconds, **lost.values) from lost
            if wait_seconds == FIRST_WAIT_SECONDS:
                logging.getLogger("dipaco").warning("%s Waiting for it.", lost)
        time.sleep(wait_seconds * random.uniform(0.5, 1.0))  # not all workers at once
        wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)


def retried(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method of something with a `_database`, asked `with_retry`."""

    @functools.wraps(method)
    def asked(self: Any, *arguments: P.args, **settings: P.kwargs) -> R:
        return with_retry(lambda: method(self, *arguments, **settings), self._database.reconnect)

    return asked
