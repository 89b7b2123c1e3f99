"""What a member is to compute now, and whether it is parked. The rule is `planning.assignment`."""

import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.planning.assignment import assign
from dipaco.swarm.planning.leases import BlockLedger

MIN_WAIT_SECONDS = 1.0  # what an operating system may keep a process waiting
SECONDS_AT_STAKE = 20.0  # of a peer's work, leased at once
ASSUMED_BLOCK_SECONDS = 60.0  # of a member that was not timed yet
PATIENCE = 3.0  # times what others need, before a parked member gets what they leave
MIN_ASK_SECONDS, MAX_ASK_SECONDS = 0.05, 1.0  # between two requests of an idle member


class WorkLease(NamedTuple):
    """What a member is to compute now."""

    blocks: tuple[int, ...] = ()
    within_seconds: float = 0.0
    ask_again_seconds: float = MAX_ASK_SECONDS  # where there are no blocks


def lease_work(
    ledger: BlockLedger,
    members: Mapping[str, GroupMember],
    member: GroupMember,
    say: Callable[[str], None],
) -> WorkLease:
    """Leases blocks of the step, free ones or as a backup, to a member that asks."""
    now, name = time.monotonic(), member.name
    speeds = {
        other: each.seconds_per_block
        for other, each in members.items()
        if each.join_request.computes or other == name
    }
    assigned = assign(ledger, name, speeds, now, SECONDS_AT_STAKE)
    timing = {"now_seconds": now, "seconds_per_block": speeds[name] or math.inf}
    count = assigned.count
    if assigned.needed_seconds:
        count = _count_of_parked(ledger, member, assigned.needed_seconds, say)
    limit_seconds = max(count, 1) * member.block_seconds.deadline_seconds(ASSUMED_BLOCK_SECONDS)
    within, blocks = max(MIN_WAIT_SECONDS, limit_seconds), ()
    if count:
        lease = ledger.lease(name, count, now + within, **timing)
        blocks = () if lease is None else lease.blocks
    elif (backup := assigned.backup) is not None:
        blocks = (backup,) if ledger.lease_backup(name, backup, now + within, **timing) else ()
    if blocks:
        member.parked_since = None
        return WorkLease(blocks, within)
    if not ledger.open_blocks():
        return WorkLease()
    soon = max(speeds[name] / 2 or MAX_ASK_SECONDS, MIN_ASK_SECONDS)  # it may be a backup then
    return WorkLease(ask_again_seconds=min(soon, MAX_ASK_SECONDS))


def _count_of_parked(
    ledger: BlockLedger, member: GroupMember, needed_seconds: float, say: Callable[[str], None]
) -> int:
    """Blocks for a member that the others would not wait for: none, unless they have had the time
    that they need, and blocks are free all the same.
    """
    now, since = time.monotonic(), member.parked_since
    if since is None:
        say(
            f"{member.name} is parked: it needs {member.seconds_per_block:.1f} s for a block, and "
            f"the others {needed_seconds:.1f} s for all that is left of the step"
        )
    if since is None or since[0] != ledger.step:
        member.parked_since = since = ledger.step, now
    return 1 if now - since[1] > PATIENCE * needed_seconds else 0
