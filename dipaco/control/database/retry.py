"""Retrying while a database cannot be reached.

A connection that breaks inside a transaction leaves it undone or, if it breaks during the commit,
possibly done. So only operations that may be done twice are retried.
"""

import functools
import logging
import random
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from dipaco import stopping
from dipaco.control.errors import DatabaseUnreachable
from dipaco.errors import MachineFault

RETRY_SECONDS = 900.0  # outlasts a restart or a failover
FIRST_SECONDS = 60.0  # for one that this process has never reached: its name may be wrong
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0

P = ParamSpec("P")
R = TypeVar("R")


class ConnectionLost(MachineFault):
    """The database {place} cannot be reached: {problem}. Waiting for it."""


class TransactionUndone(ConnectionLost):
    """The database {place} has undone a transaction, which is done again: {problem}."""


def with_retry(ask: Callable[[], R], reconnect: Callable[[], None]) -> R:
    """Returns the result of `ask`. Retries it on a new connection while the old one is lost.

    Raises:
      DatabaseUnreachable: it has failed for `RETRY_SECONDS`, or as long as `stopping.patience`
        says, or this process is to end.
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
            if stopping.is_over() or silent_seconds > stopping.most_seconds(RETRY_SECONDS):
                raise DatabaseUnreachable(seconds=silent_seconds, **lost.values) from lost
            if wait_seconds == FIRST_WAIT_SECONDS:
                logging.getLogger("dipaco").warning("%s", lost)
        stopping.note_progress()  # This wait has its own limit.
        time.sleep(wait_seconds * random.uniform(0.5, 1.0))  # not all workers at once
        wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)


def retried(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Runs a method of an object with a `_database` `with_retry`. Inside a transaction it is run
    once, because the whole transaction is retried.
    """

    @functools.wraps(method)
    def asked(self: Any, *arguments: P.args, **settings: P.kwargs) -> R:
        if self._database.is_inside:
            return method(self, *arguments, **settings)
        return with_retry(lambda: method(self, *arguments, **settings), self._database.reconnect)

    return asked
