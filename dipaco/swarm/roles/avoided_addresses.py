"""Paths that a volunteer cannot serve although it was sent there. It goes back to its first
address, and does not return at once to an address where another attempt would fail the same way.
"""

import math
import time
from collections import Counter
from collections.abc import Callable

from dipaco.swarm.errors import (
    BadAddress,
    BadMessage,
    MessageRefused,
    SwarmRefuses,
    SwarmUnreachable,
    TlsRefused,
)
from dipaco.swarm.network.addresses import kind_of

# Errors that one path may have and another not.
PATH_ERRORS = (
    BadAddress,
    BadMessage,
    MessageRefused,
    SwarmRefuses,
    SwarmUnreachable,
    TlsRefused,
)
# Errors that may pass at the same address: too much of one credential was open at a time, a clock
# was wrong, a version was another.
MAY_PASS = (BadMessage, MessageRefused, SwarmRefuses)
AVOIDED_SECONDS = 600.0  # an attempt costs a machine its state, and the time to fetch another
MAX_DOUBLINGS = 10


def may_go_back(error: Exception, *, has_joined: bool) -> bool:
    """True if an error of `PATH_ERRORS` is no reason to end. A locked credential is refused at the
    first address as well, and a session that was refused where it took part must not return there.
    """
    return not (has_joined and isinstance(error, SwarmRefuses))


class AvoidedAddresses:
    """Addresses that are not moved to. After an error that may pass, an address is avoided for
    `AVOIDED_SECONDS`, twice as long each time. After any other error, it is avoided for ever.

    Args:
      clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._times: Counter[str] = Counter()  # address -> number of errors
        self._until_seconds: dict[str, float] = {}

    def note_error(
        self, error: Exception, address: str, first_address: str, *, has_joined: bool
    ) -> None:
        """Notes an error of `PATH_ERRORS` at an address, before or after the machine had joined.

        If the address has the same kind as the first one, the volunteer asks it before it moves
        there. Other kinds cannot be asked before: one that never answered is not tried again.
        """
        is_away = isinstance(error, SwarmUnreachable)
        if is_away and (has_joined or kind_of(address) == kind_of(first_address)):
            return
        seconds = math.inf
        if isinstance(error, MAY_PASS):
            seconds = AVOIDED_SECONDS * 2.0 ** min(self._times[address], MAX_DOUBLINGS)
        self._times[address] += 1
        self._until_seconds[address] = self._clock() + seconds

    def __contains__(self, address: str) -> bool:
        return self._clock() < self._until_seconds.get(address, -math.inf)
