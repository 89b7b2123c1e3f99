"""Paths that a volunteer cannot serve though it was sent there: it goes back to the address that it
was given, and does not move again, at once, to where another attempt would do no better.
"""

import math
import time
from collections import Counter
from collections.abc import Callable

from dipaco.errors import ExtraMissing
from dipaco.swarm.errors import (
    BadAddress,
    BadMessage,
    MessageRefused,
    SwarmRefuses,
    SwarmUnreachable,
    TlsRefused,
)
from dipaco.swarm.network.addresses import kind_of

# What may be wrong with one path, and right with another.
LOST = (
    BadAddress,
    BadMessage,
    ExtraMissing,
    MessageRefused,
    SwarmRefuses,
    SwarmUnreachable,
    TlsRefused,
)
# What another attempt may find otherwise, at the same address: too much of one credential was open
# at a time, a clock was off, a version was another.
MAY_PASS = (BadMessage, MessageRefused, SwarmRefuses)
UNFIT_SECONDS = 600.0  # an attempt costs a machine its state, and the time to fetch another
MAX_DOUBLINGS = 10


def goes_home(error: Exception, *, has_joined: bool) -> bool:
    """Whether one of `LOST` is no reason to end. A credential that is locked is refused at home as
    well, and a session that was refused where it took part has no business there.
    """
    return not (has_joined and isinstance(error, SwarmRefuses))


class UnfitAddresses:
    """Addresses that are not moved to: where something failed that may pass, for `UNFIT_SECONDS`
    and each time for twice as long, else for ever.

    Args:
      clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._times: Counter[str] = Counter()  # that an address was lost
        self._until_seconds: dict[str, float] = {}

    def note_lost(self, error: Exception, address: str, home: str, *, has_joined: bool) -> None:
        """One of `LOST` has happened at an address, after the machine had joined there or before.

        Over the wire at home it is asked first whether one of the same kind answers. Of another
        kind it is not known before: one that never answered is not tried again.
        """
        is_away = isinstance(error, SwarmUnreachable)
        if is_away and (has_joined or kind_of(address) == kind_of(home)):
            return
        seconds = math.inf
        if isinstance(error, MAY_PASS):
            seconds = UNFIT_SECONDS * 2.0 ** min(self._times[address], MAX_DOUBLINGS)
        self._times[address] += 1
        self._until_seconds[address] = self._clock() + seconds

    def __contains__(self, address: str) -> bool:
        return self._clock() < self._until_seconds.get(address, -math.inf)
