"""Stopping: SIGTERM and Ctrl-C call a function, and end the waits of this process. A cloud's notice
that it takes the machine away counts as SIGTERM.

A wait for a database or a store that is away is given up soon after a process was told to end: its
machine may be gone in half a minute.

A process that was not told to end, and does not get on, may hang. So whatever a task is made of
counts its progress here: a step, a batch, a block of a file, an attempt to reach a store. The
heartbeat of a worker reads the count.
"""

import contextlib
import contextvars
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import ParamSpec, TypeVar

STOPPING_SECONDS = 10.0  # every wait ends so long after the process was told to end
PRODUCT = Path("/sys/class/dmi/id/product_name")  # Google Compute Engine, on its machines
METADATA_VARIABLE = "GCE_METADATA_HOST"  # as Google's own libraries have it
NOTICES = {"preempted": "TRUE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}
NOTICE_SECONDS = 3.0  # between two questions; a machine is gone 30 s after it is preempted

_told: list[float] = []  # the moment, if it was told to end
_progress = 0

_patience: contextvars.ContextVar[float | None] = contextvars.ContextVar("patience", default=None)

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


@contextlib.contextmanager
def patience(seconds: float) -> Generator[None]:
    """Inside, this thread waits for a database or a store that is away no longer than that, or less
    if it was told so already.
    """
    before = _patience.set(min(seconds, _patience.get() or seconds))
    try:
        yield
    finally:
        _patience.reset(before)


def most_seconds(limit: float) -> float:
    """A wait's limit, or less where `patience` says so."""
    return min(limit, _patience.get() or limit)


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


def end_before_machine() -> None:
    """Sends this process SIGTERM once Google Compute Engine says that it takes this machine away,
    which no signal may tell. Does nothing on another machine.
    """
    host = os.environ.get(METADATA_VARIABLE)
    if host is None:
        with contextlib.suppress(OSError):
            host = "metadata.google.internal" if "Google" in PRODUCT.read_text() else None
    if host is not None:
        threading.Thread(target=_watch_notices, args=(host,), daemon=True).start()


def _watch_notices(host: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        for name, of_the_end in NOTICES.items():
            address = f"http://{host}/computeMetadata/v1/instance/{name}"
            request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
            with contextlib.suppress(OSError):  # asked again
                with opener.open(request, timeout=NOTICE_SECONDS) as answer:
                    said = answer.read(100).decode(errors="replace").strip()
                if said == of_the_end:
                    print(f"This machine is about to stop ({name}: {said}).", flush=True)
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
        time.sleep(NOTICE_SECONDS)
