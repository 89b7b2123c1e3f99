"""A group member as `dipaco status` and the leader's sentences show it."""

import time
from collections.abc import Sequence
from typing import Any

from dipaco.control.members.swarms import PROVED
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.leading.step_rows import StepRows
from dipaco.swarm.network.messages import JoinRequest

WHY = {  # a machine has no rows, by what it does
    "is parked": "parked: too slow for these steps",
    "is suspended": "suspended: two averagings in a row did not end with it",
}


def status_of(
    member: GroupMember, block_rows: int, open_rows: Sequence[StepRows], *, is_suspended: bool
) -> dict[str, Any]:
    """The member's status as JSON values.

    Args:
      member: a member of the group.
      block_rows: rows in a block.
      open_rows: rows of this step, and of the next if they are open.
      is_suspended: true if it is suspended.
    """
    kind = kind_of(member.join_request).strip(" ()") or "computes"
    does = _what_it_does(member, open_rows, is_suspended=is_suspended)
    return {
        "kind": f"{kind}, {WHY[does]}" if does in WHY else kind,
        "computes": member.join_request.computes,
        "does": does,
        "samples_per_second": member.blocks_per_second.per_second * block_rows,
        "declared_samples_per_second": member.declared_samples_per_second,
        "samples": member.counted * block_rows,
        "bytes_up": member.last_poll.bytes_up if member.last_poll else 0,
        "bytes_down": member.last_poll.bytes_down if member.last_poll else 0,
        "seconds": time.monotonic() - member.joined_at,
    }


def _what_it_does(member: GroupMember, open_rows: Sequence[StepRows], *, is_suspended: bool) -> str:
    if not member.join_request.computes:
        return "adds up"
    if any(rows.ledger.held_by(member.name) for rows in open_rows):
        return "computes"
    if is_suspended:
        return "is suspended"
    if member.parked_since is not None:
        return "is parked"
    this_step = open_rows[0].ledger
    has_outer_steps = this_step.is_complete and member.name in this_step.blocks_by_peer
    return "averages" if has_outer_steps else "waits"


def locked_sentence(name: str, reasons: tuple[str, ...]) -> str:
    """The reason why a credential is not let in, for its holder and for `dipaco status`."""
    for reason in reasons:
        if reason.startswith(PROVED):
            return f"the credential of {name} is locked: {reason}"
    return (
        f"the credential of {name} is locked: {len(reasons)} of its sessions were refused, the "
        f"last since {reasons[-1]}. Ask for a new one"
    )


def kind_of(request: JoinRequest) -> str:
    """ " (a client, only adds up)", or nothing."""
    kinds = []
    if request.address is None:
        kinds.append("a client")
    if not request.computes:
        kinds.append("only adds up" if not request.holds_state else "a backbone")
    return f" ({', '.join(kinds)})" if kinds else ""
