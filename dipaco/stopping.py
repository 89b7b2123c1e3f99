"""Whether this process was told to end. What waits for a database or a store that is away then
gives up soon: the machine may be gone in half a minute.
"""

import time

STOPPING_SECONDS = 10.0  # from then on, for whatever is waited for

_told: list[float] = []  # when, if it was


def stop_waiting() -> None:
    """This process was told to end: all of its threads give up within `STOPPING_SECONDS` from now.
    May be called by a signal handler.
    """
    _told.append(time.monotonic())


def wait_again() -> None:
    """This process takes part again."""
    _told.clear()


def is_over() -> bool:
    """Whether it was told to end, and nothing is waited for any more."""
    return bool(_told) and time.monotonic() - _told[0] > STOPPING_SECONDS
