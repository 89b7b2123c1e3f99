"""A member of a group, as `dipaco status` and the leader's sentences show it."""

import time
from typing import Any

from dipaco.control.swarms import PROVED
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.network.messages import JoinRequest


def status_of(member: GroupMember, block_rows: int) -> dict[str, Any]:
    """JSON values."""
    kind = kind_of(member.join_request).strip(" ()") or "computes"
    is_parked = member.parked_since is not None
    return {
        "kind": f"{kind}, parked: too slow for these steps" if is_parked else kind,
        "computes": member.join_request.computes,
        "samples_per_second": member.blocks_per_second.per_second * block_rows,
        "samples": member.counted * block_rows,
        "bytes_up": member.last_poll.bytes_up if member.last_poll else 0,
        "bytes_down": member.last_poll.bytes_down if member.last_poll else 0,
        "seconds": time.monotonic() - member.joined_at,
    }


def locked_sentence(name: str, reasons: tuple[str, ...]) -> str:
    """Why a credential is not let in, for its holder and for `dipaco status`."""
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
