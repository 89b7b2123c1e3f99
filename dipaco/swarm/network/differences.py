"""The group's state on the wire, as the changes since the state that a peer has.

A plan names every sender and reducer of a group, and every closed step names its reducers again. So
names and addresses are sent once and then numbered, in an order that both sides find by themselves:
`_table`. A step's slices are the slices of its round's plan, which the peer has.
"""

from collections.abc import Sequence

import msgspec

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.messages import (
    ClosedStep,
    GroupState,
    PeerMessage,
    RoundPlan,
    Sender,
    Slice,
)

WHOLE = -1  # the base of an update that needs none

_Entry = tuple[str, str]  # name, address


class NumberedSlices(PeerMessage):
    """Slices, with reducers as positions in the table."""

    reducers: tuple[int, ...]
    starts: tuple[int, ...]
    stops: tuple[int, ...]


class NumberedPlan(PeerMessage):
    """A plan, with peers as positions in the table."""

    number: int
    step: int
    senders: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]  # the blocks of each sender
    targets: tuple[float, ...]
    slices: NumberedSlices
    codec: str
    within_seconds: float
    commitments: tuple[bytes, ...] | None
    seed: bytes
    missing: tuple[tuple[str, str], ...]


class NumberedStep(PeerMessage):
    """A closed step. `slices` is None if they equal those of the known plan."""

    closed: ClosedStep  # without slices
    slices: NumberedSlices | None


class StateUpdate(PeerMessage):
    """A state as a difference from the state with the number `base`."""

    base: int
    state: GroupState  # without plan and closed steps
    table: tuple[_Entry, ...]  # entries that the base's table lacks
    keeps_plan: bool
    plan: NumberedPlan | None
    kept_steps: tuple[int, ...]  # positions among the base's closed steps
    steps: tuple[NumberedStep, ...]


def difference(known: GroupState | None, new: GroupState) -> StateUpdate:
    """The update that turns `known` into `new` by `updated`. Without `known`, all of it."""
    known_table = [] if known is None else _table(known)
    has = set(known_table)
    added = tuple(entry for entry in _table(new) if entry not in has)
    table = [*known_table, *added]
    position = {entry: number for number, entry in reversed(list(enumerate(table)))}
    of_name = {entry[0]: number for number, entry in reversed(list(enumerate(table)))}
    known_steps = () if known is None else known.closed
    known_plan = None if known is None else known.plan

    def numbered(slices: Sequence[Slice]) -> NumberedSlices:
        return NumberedSlices(
            reducers=tuple(position[part.reducer, part.address] for part in slices),
            starts=tuple(part.start for part in slices),
            stops=tuple(part.stop for part in slices),
        )

    def numbered_step(closed: ClosedStep) -> NumberedStep:
        is_known = known_plan is not None and closed.slices == known_plan.slices
        bare = msgspec.structs.replace(closed, slices=())
        return NumberedStep(closed=bare, slices=None if is_known else numbered(closed.slices))

    keeps_plan = known is not None and known.plan == new.plan
    plan = None
    if new.plan is not None and not keeps_plan:
        plan = NumberedPlan(
            number=new.plan.number,
            step=new.plan.step,
            senders=tuple(of_name[one.name] for one in new.plan.senders),
            blocks=tuple(one.blocks for one in new.plan.senders),
            targets=tuple(one.targets for one in new.plan.senders),
            slices=numbered(new.plan.slices),
            codec=new.plan.codec,
            within_seconds=new.plan.within_seconds,
            commitments=new.plan.commitments,
            seed=new.plan.seed,
            missing=new.plan.missing,
        )
    kept = _kept(known_steps, new.closed)
    return StateUpdate(
        base=WHOLE if known is None else known.number,
        state=msgspec.structs.replace(new, plan=None, closed=()),
        table=added,
        keeps_plan=keeps_plan,
        plan=plan,
        kept_steps=tuple(kept),
        steps=tuple(numbered_step(one) for one in new.closed[len(kept) :]),
    )


def updated(known: GroupState | None, update: StateUpdate) -> GroupState:
    """The state that an update describes.

    Raises:
      BadMessage: the update starts from another state than `known`.
    """
    if update.base == WHOLE:
        known = None
    elif known is None or known.number != update.base:
        raise BadMessage(problem=f"it is a difference to state {update.base}, which is not here")
    table = [*([] if known is None else _table(known)), *update.table]
    known_steps = () if known is None else known.closed
    known_plan = None if known is None else known.plan
    try:
        plan = known_plan if update.keeps_plan else _plan(update.plan, table)
        steps = [known_steps[number] for number in update.kept_steps]
        for one in update.steps:
            if one.slices is not None:
                slices = _slices(one.slices, table)
            elif known_plan is not None:
                slices = known_plan.slices
            else:
                raise BadMessage(problem="it names slices of a plan that is not here")
            steps.append(msgspec.structs.replace(one.closed, slices=slices))
    except (IndexError, ValueError) as error:
        raise BadMessage(problem=f"its numbers do not fit the state: {error}") from error
    return msgspec.structs.replace(update.state, plan=plan, closed=tuple(steps))


def _kept(known: Sequence[ClosedStep], new: Sequence[ClosedStep]) -> list[int]:
    """Positions of the known steps with which the new ones begin."""
    for first in range(len(known)):
        count = len(known) - first
        if tuple(known[first:]) == tuple(new[:count]):
            return list(range(first, len(known)))
    return []


def _table(state: GroupState) -> list[_Entry]:
    """Every reducer with its address, and the senders that add up nothing, each once."""
    slices = [part for one in state.closed for part in one.slices]
    senders: Sequence[Sender] = ()
    if state.plan is not None:
        slices += state.plan.slices
        senders = state.plan.senders
    entries = dict.fromkeys((part.reducer, part.address) for part in slices)
    named = {name for name, _ in entries}
    entries |= dict.fromkeys((one.name, "") for one in senders if one.name not in named)
    return list(entries)


def _plan(plan: NumberedPlan | None, table: list[_Entry]) -> RoundPlan | None:
    if plan is None:
        return None
    senders = zip(plan.senders, plan.blocks, plan.targets, strict=True)
    return RoundPlan(
        number=plan.number,
        step=plan.step,
        senders=tuple(
            Sender(name=table[number][0], blocks=blocks, targets=targets)
            for number, blocks, targets in senders
        ),
        slices=_slices(plan.slices, table),
        codec=plan.codec,
        within_seconds=plan.within_seconds,
        commitments=plan.commitments,
        seed=plan.seed,
        missing=plan.missing,
    )


def _slices(slices: NumberedSlices, table: list[_Entry]) -> tuple[Slice, ...]:
    of_slices = zip(slices.reducers, slices.starts, slices.stops, strict=True)
    return tuple(
        Slice(start=start, stop=stop, reducer=table[number][0], address=table[number][1])
        for number, start, stop in of_slices
    )
