"""The group's state on the wire, as the changes since the state that a peer has.

Closed steps that the peer knows are only counted. The rest is deflated, with the known state's plan
and last step as the dictionary: names and addresses of a group are the same in every round.
"""

import zlib

import msgspec

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.messages import ClosedStep, GroupState, PeerMessage

WHOLE = -1  # the base of an update that needs none
MAX_BYTES = 64 << 20  # limit of a state


class StateUpdate(PeerMessage):
    """A state as a difference from the state with the number `base`."""

    base: int
    num_kept: int  # The last closed steps of the base, with which those of the state begin.
    keeps_plan: bool
    content: bytes  # the state without these, deflated


def difference(known: GroupState | None, new: GroupState) -> StateUpdate:
    """The update that turns `known` into `new` by `updated`. Without `known`, all of it."""
    past = () if known is None else known.closed
    kept = next((n for n in range(len(past), 0, -1) if past[-n:] == new.closed[:n]), 0)
    keeps_plan = known is not None and known.plan == new.plan
    plan = None if keeps_plan else new.plan
    bare = msgspec.structs.replace(new, closed=new.closed[kept:], plan=plan)
    deflating = zlib.compressobj(zdict=_dictionary(known))
    content = deflating.compress(msgspec.msgpack.encode(bare)) + deflating.flush()
    base = WHOLE if known is None else known.number
    return StateUpdate(base=base, num_kept=kept, keeps_plan=keeps_plan, content=content)


def updated(known: GroupState | None, update: StateUpdate) -> GroupState:
    """The described state. Raises `BadMessage`: the update starts from another than `known`."""
    if update.base == WHOLE:
        known = None
    elif known is None or known.number != update.base:
        raise BadMessage(problem=f"it is a difference to state {update.base}, which is not here")
    past = () if known is None else known.closed
    if not 0 <= update.num_kept <= len(past):
        raise BadMessage(problem="its steps do not fit those that are known")
    inflating = zlib.decompressobj(zdict=_dictionary(known))
    try:
        content = inflating.decompress(update.content, MAX_BYTES)
        state = msgspec.msgpack.decode(content, type=GroupState)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(problem=f"the state cannot be read: {error}") from error
    closed = (*past[len(past) - update.num_kept :], *state.closed)
    plan = known.plan if known is not None and update.keeps_plan else state.plan
    return msgspec.structs.replace(state, closed=closed, plan=plan)


def _dictionary(known: GroupState | None) -> bytes:
    """What both ends have. Deflating looks back 32 kB, and the plan is the newest."""
    last: tuple[ClosedStep, ...] = () if known is None else known.closed[-1:]
    return msgspec.msgpack.encode((last, None if known is None else known.plan))
