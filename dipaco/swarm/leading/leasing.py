"""Leases blocks to members, and parks slow ones. The rule is `planning.assignment`."""

import math
import time
from collections.abc import Callable, Mapping

from dipaco.swarm.leading.members import SECONDS_AT_STAKE, GroupMember
from dipaco.swarm.leading.step_rows import StepRows
from dipaco.swarm.network.messages import WorkReply
from dipaco.swarm.planning.assignment import assign
from dipaco.swarm.planning.leases import BlockLedger

MIN_WAIT_SECONDS = 1.0  # longest delay of a process by its operating system
PATIENCE = 3.0  # A parked member gets leftover blocks after so many times the others' need.
MIN_ASK_SECONDS, MAX_ASK_SECONDS = 0.05, 1.0  # range of an idle member's delay between two requests


def lease_rows(
    rows: StepRows,
    members: Mapping[str, GroupMember],
    member: GroupMember,
    say: Callable[[str], None],
) -> WorkReply:
    """Leases blocks to a member that asks. Members that may not have rows get none."""
    if member.name not in members:
        return WorkReply(why="is suspended")
    if blocks := lease_work(rows.ledger, members, member, say):
        return rows.leasing(blocks)
    if rows.ledger.open_blocks():  # it may be a backup soon
        soon = max(member.seconds_per_block / 2 or MAX_ASK_SECONDS, MIN_ASK_SECONDS)
        return WorkReply(ask_again_seconds=min(soon, MAX_ASK_SECONDS))
    return WorkReply()


def lease_work(
    ledger: BlockLedger,
    members: Mapping[str, GroupMember],
    member: GroupMember,
    say: Callable[[str], None],
) -> tuple[int, ...]:
    """Leases blocks of the step, free ones or as a backup."""
    now, name = time.monotonic(), member.name
    speeds = {
        other: each.seconds_per_block
        for other, each in members.items()
        if each.join_request.computes or other == name
    }
    assigned = assign(ledger, name, speeds, now, SECONDS_AT_STAKE)
    count = assigned.count
    if assigned.needed_seconds:
        count = _count_of_parked(ledger, member, assigned.needed_seconds, say)
    until = now + max(MIN_WAIT_SECONDS, max(count, 1) * member.block_deadline_seconds)
    timing = {"now_seconds": now, "seconds_per_block": speeds[name] or math.inf}
    blocks, backup = ledger.lease(name, count, until, **timing), assigned.backup
    if backup is not None and ledger.lease_backup(name, backup, until, **timing):
        blocks = (backup,)
    if blocks:
        member.parked_since = None
    return blocks


def _count_of_parked(
    ledger: BlockLedger, member: GroupMember, needed_seconds: float, say: Callable[[str], None]
) -> int:
    """Blocks for a member for which the others would not wait. It gets none, unless the others have
    had the time that they need and blocks are still free.
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
