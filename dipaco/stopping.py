"""Stopping: SIGTERM and Ctrl-C call a function, and end the waits of this process.

A wait for a database or a store that is away is given up soon after a process was told to end: its
machine may be gone in half a minute.

A process that was not told to end, and does not get on, may hang. So whatever a task is made of
counts its progress here: a step, a batch, a block of a file, an attempt to reach a store. The
heartbeat of a worker reads the count.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Generator
from typing import ParamSpec, TypeVar

STOPPING_SECONDS = 10.0  # every wait ends so long after the process was told to end

_told: list[float] = []  # the moment, if it was told to end
_progress = 0

P = ParamSpec("P")
R = TypeVar("R")


def note_progress() -> None:
    """A thread of this process got on."""
    global _progress
    _progress += 1


def progress() -> int:
    """A number that grows while this process gets on."""
    return _progress


def noting_progress(function: Callable[P, R]) -> Callable[P, R]:
    """The same function. Each call notes progress."""

    def call(*arguments: P.args, **settings: P.kwargs) -> R:
        note_progress()
        return function(*arguments, **settings)

    return call


def stop_waiting() -> None:
    """This process was told to end: all of its threads give up within `STOPPING_SECONDS` from now.
    May be called by a signal handler.
    """
    _told.append(time.monotonic())


def wait_again() -> None:
    """This process takes part again."""
    _told.clear()


def was_told() -> bool:
    """True if this process was told to end: by a signal, and not by a command to the run."""
    return bool(_told)


def is_over() -> bool:
    """True if it was told to end, and nothing is waited for any more."""
    return bool(_told) and time.monotonic() - _told[0] > STOPPING_SECONDS


@contextlib.contextmanager
def on_sigterm(act: Callable[[], None], *, on_ctrl_c: bool = False) -> Generator[None]:
    """Inside the block SIGTERM calls `act`. The previous handler is restored afterwards. With
    `on_ctrl_c` the first Ctrl-C calls `act` too, and the second interrupts. A process that was told
    to end waits some seconds at most for a database or a store that is away.
    """

    def told(*_: object) -> None:
        stop_waiting()
        act()

    def interrupted(*_: object) -> None:
        signal.signal(signal.SIGINT, interrupt)
        told()

    wait_again()
    before = signal.signal(signal.SIGTERM, told)
    interrupt = signal.getsignal(signal.SIGINT)
    if on_ctrl_c:
        signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if on_ctrl_c:
            signal.signal(signal.SIGINT, interrupt)
