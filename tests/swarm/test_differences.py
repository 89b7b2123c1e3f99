"""The group's state as differences: a peer has what the leader has, in few bytes."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.differences import WHOLE, StateUpdate, difference, updated
from dipaco.swarm.network.messages import ClosedStep, GroupState, Sender
from tests.support.swarm_rig import round_plan

SEALED_BYTES = 800  # of a reply beside its body: certificate, signatures, names


ADDRESS = "203.0.113.77:38021"


def plan_of(number, senders, reducers):
    sends = [
        Sender(name=name, blocks=(2 * i, 2 * i + 1), targets=1022.0)
        for i, name in enumerate(senders)
    ]
    width, more = 40_000, {"within_seconds": 3.0}
    slices = [(i * width, (i + 1) * width, name, ADDRESS) for i, name in enumerate(reducers)]
    return round_plan((7 << 32) + number, sends, slices, step=number, **more)


def closed_of(plan):
    return ClosedStep(
        step=plan.step,
        before=f"{plan.step:024x}",
        after=f"{plan.step + 1:024x}",
        round_number=plan.number,
        slices=plan.slices,
        digests=tuple(bytes([i % 256]) * 16 for i in range(len(plan.slices))),
        codec="none",
        learning_rate=1e-3,
        loss=4.5,
    )


def state_of(number, plan=None, closed=()):
    return GroupState(
        number=number,
        leader="back/00000000",
        origin="train modular path 0 phase 3",
        step=number,
        lineage=f"{number:024x}",
        is_open=True,
        end="",
        plan=plan,
        closed=tuple(closed),
        pinned_step=-1,
        backbones=(ADDRESS,),
        revoked=(),
    )


def through_the_wire(update):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(update), type=StateUpdate)


NAMES = st.lists(st.sampled_from([f"peer{i}/0000" for i in range(6)]), unique=True, max_size=6)
PLANS = st.none() | st.builds(plan_of, st.integers(0, 5), NAMES, NAMES)
STATES = st.builds(
    lambda number, plan, closed: state_of(number, plan, map(closed_of, closed)),
    st.integers(0, 9),
    PLANS,
    st.lists(st.builds(plan_of, st.integers(0, 5), NAMES, NAMES), max_size=4),
)


@settings(max_examples=60)
@given(st.none() | STATES, STATES, st.booleans())
def test_a_peer_that_has_any_state_gets_any_other_by_their_difference(known, new, closes):
    if closes and known is not None and known.plan is not None:
        new = msgspec.structs.replace(new, closed=(*known.closed[1:], closed_of(known.plan)))
    update = through_the_wire(difference(known, new))
    assert updated(known, update) == new
    assert updated(None, through_the_wire(difference(None, new))) == new


def test_a_difference_to_another_state_is_refused():
    update = difference(state_of(4), state_of(5))
    assert difference(None, state_of(5)).base == WHOLE
    for known in (None, state_of(3)):
        with pytest.raises(BadMessage, match="difference to state 4"):
            updated(known, update)
    with pytest.raises(BadMessage, match="do not fit"):
        updated(state_of(4), msgspec.structs.replace(update, num_kept=3))
    for content in (b"", b"no state", update.content[:-9]):
        with pytest.raises(BadMessage, match="cannot be read"):
            updated(state_of(4), msgspec.structs.replace(update, content=content))


def test_a_step_of_256_peers_takes_the_leader_five_megabytes():
    names = [f"volunteer-{i:03}/{i:08x}" for i in range(256)]
    past = [closed_of(plan_of(number, names, names)) for number in range(16)]
    plan = plan_of(16, names, names)
    states = [
        state_of(1, None, past),
        state_of(2, plan, past),  # averaging
        state_of(3, None, [*past[1:], closed_of(plan)]),  # the step is taken
        state_of(4, None, [*past[1:], closed_of(plan)]),  # the next is open
        state_of(5, None, [*past[1:], closed_of(plan)]),  # rows of a peer that left are free
    ]
    sent = [
        len(msgspec.msgpack.encode(difference(known, new)))
        for known, new in itertools.pairwise(states)
    ]
    assert 256 * sum(each + SEALED_BYTES for each in sent) <= 5e6
    whole = sum(len(msgspec.msgpack.encode(state)) for state in states[1:])
    assert sum(sent) < whole / 50
