"""Which workers of a run are there, as far as this machine can tell: for `status` and metrics."""

from dipaco.control.ledger import Ledger
from dipaco.control.life import Life
from dipaco.control.members import Member
from dipaco.control.queue import LEASE_SECONDS


def members_of(ledger: Ledger) -> list[Member]:
    """All workers that ever took part, by name.

    One that was killed could not say that it leaves: where its process was one of this machine,
    and has ended, it is `lost` at once. Where all have died at once, none was there to see the
    others fall silent: without a heartbeat for a lease they are.
    """
    return [_as_seen_here(member) for member in ledger.members.list()]


def _as_seen_here(member: Member) -> Member:
    if member.state != "here":
        return member
    if Life.parse(member.life).is_over():
        return member._replace(state="lost")
    return member._replace(is_silent=member.is_silent or member.silent_seconds > LEASE_SECONDS)
