"""With local steps a group equals Algorithm 1 with one path per member, whose module is parameters
and optimiser state together, under the plain mean.
"""

import asyncio
import dataclasses
import itertools

import jax
import numpy as np
import pytest

from dipaco.algorithm import algorithm1
from dipaco.inner.local_steps import floats_of, moved
from dipaco.inner.state import PathState
from dipaco.outer.config import OuterSettings
from dipaco.swarm.training.compute import Compute
from dipaco.topology import Level, Topology
from tests.support.swarm_rig import (
    BATCH,
    RATES,
    SETTINGS,
    STEPS,
    Group,
    batch_of,
    first_state,
    largest_difference,
    plain_step,
    sending,
)

LOCAL = dataclasses.replace(SETTINGS, block_rows=4, local_steps=4, schedule_steps=1000)
MEMBERS = BATCH // LOCAL.block_rows
MEAN = OuterSettings(learning_rate=1.0, momentum=0.0, rescale_by_fan_in=False)


@pytest.fixture(scope="module")
def compute():
    return Compute(LOCAL)


@pytest.fixture
def group(compute):
    group = Group(LOCAL)
    group.compute = compute
    return group


def states_of_algorithm1(boundaries):
    """States at the end of each phase, by the steps where phases begin and the last one ends."""
    topology = Topology(
        levels=(Level(name="all", parts=("state",)), Level(name="member", experts=MEMBERS))
    )
    shared = topology.modules_of(0)[0]
    states = [first_state()]
    for first, end in itertools.pairwise(boundaries):

        def train_path(path, phase, parts, carried, at=states[-1], first=first, end=end):
            state = jax.device_put(filled(at, parts))
            for step in range(first, end):
                rows = slice(path * LOCAL.block_rows, (path + 1) * LOCAL.block_rows)
                batch = {name: of[rows] for name, of in batch_of(step).items()}
                state, _ = plain_step()(state, batch, RATES[step])
            return part_of(jax.device_get(state)), None

        modules = {module: {} for module in topology.modules}
        modules[shared] = part_of(states[-1])
        (stepped,) = algorithm1.train(
            topology, modules, train_path, [1] * MEMBERS, phases=1, outer=MEAN
        )
        after = filled(states[-1], stepped[shared])
        states.append(moved(after, [0.0] * len(floats_of(after)), end - first))
    return states


def part_of(state):
    return {"state": {f"{number:03}": leaf for number, leaf in enumerate(floats_of(state))}}


def filled(state, parts):
    """A state with other parameters and averages, and the same counts."""
    given = iter([parts["state"][name] for name in sorted(parts["state"])])
    return jax.tree.map(
        lambda leaf: next(given) if np.issubdtype(leaf.dtype, np.floating) else leaf, state
    )


def assert_is_algorithm1(group):
    boundaries = [0, *(one.closed.step + one.closed.steps for one in group.outcomes)]
    for ours, theirs in zip(group.states, states_of_algorithm1(boundaries), strict=True):
        assert largest_difference(ours, theirs) < 1e-5
        for one, other in zip(floats_of(ours), floats_of(theirs), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        assert int(ours.step) == int(theirs.step)
    for outcome in group.outcomes:
        blocks = sorted(block for blocks in outcome.record.blocks.values() for block in blocks)
        assert blocks == list(range(MEMBERS))


async def test_a_group_with_local_steps_is_algorithm_1_with_one_path_per_member(group):
    await group.join_all(ana=0.0, bo=0.01)
    await group.steps(2)
    assert [(one.closed.step, one.closed.steps) for one in group.outcomes] == [(0, 4), (4, 2)]
    assert (group.holder.step, len(group.holder.losses)) == (STEPS, STEPS)
    assert_is_algorithm1(group)


async def test_a_member_that_dies_and_a_newcomer_change_nothing(group):
    await group.join_all(ana=0.0, bo=30.0)
    stepping = asyncio.ensure_future(group.step())
    await asyncio.sleep(1.0)  # bo has a block
    await group.kill("bo")
    await stepping
    await group.join("cy")
    await group.kill("ana")
    await group.step()
    assert_is_algorithm1(group)


async def test_a_lie_in_a_move_is_found(group):
    await group.join("ana")
    await group.join("eve", kind=sending(lambda vector: -2.5 * vector))
    group.ends = 40 * LOCAL.local_steps
    while not any(session.startswith("eve") for session, _ in group.evidence):
        assert group.holder.step < group.ends
        await group.step()


def test_the_batch_of_steps_holds_each_row_once_in_the_block_of_its_member():
    batches = [batch_of(step) for step in range(3)]
    joined = LOCAL.joined(batches)
    for block in range(MEMBERS):
        rows = Compute.rows_of(_Of(LOCAL), joined, block)["tokens"].reshape(4, 4, -1)
        for step, batch in enumerate(batches):
            np.testing.assert_array_equal(rows[step], batch["tokens"][4 * block : 4 * block + 4])
        assert not rows[3].any()  # padding, which is no step
    uneven = dataclasses.replace(LOCAL, block_rows=6)
    assert uneven.rows_in(range(uneven.num_blocks)) == [24, 24, 16]
    assert len(uneven.joined(batches)["tokens"]) == 64


class _Of:
    def __init__(self, settings):
        self.settings = settings


def test_a_state_that_moves_nowhere_only_counts_its_steps():
    state = first_state()
    after = moved(state, [np.zeros_like(leaf) for leaf in floats_of(state)], 3)
    assert isinstance(after, PathState)
    assert int(after.step) == int(state.step) + 3
    for one, other in zip(floats_of(after), floats_of(state), strict=True):
        np.testing.assert_array_equal(one, other)
