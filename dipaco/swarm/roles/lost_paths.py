"""Paths that a volunteer cannot serve though it was sent there: it goes back to the address that it
was given, and does not move again to where no other attempt would do better.
"""

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


def goes_home(error: Exception, *, has_joined: bool) -> bool:
    """Whether one of `LOST` is no reason to end. A credential that is locked is refused at home as
    well, and a session that was refused where it took part has no business there.
    """
    return not (has_joined and isinstance(error, SwarmRefuses))


def is_unfit(error: Exception, address: str, home: str, *, has_joined: bool) -> bool:
    """Whether an address is not moved to again.

    Over the wire at home it is asked first whether one of the same kind answers. Of another kind
    it is not known before: one that never answered is not tried again.
    """
    is_away = isinstance(error, SwarmUnreachable)
    return not is_away or (kind_of(address) != kind_of(home) and not has_joined)
