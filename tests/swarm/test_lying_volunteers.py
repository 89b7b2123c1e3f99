"""Volunteers that lie, each with one pass: what they may do to the model, and to others."""

import numpy as np
import pytest
import swarm_attacks
from jax.flatten_util import ravel_pytree

from dipaco.swarm.network.messages import BlockResult
from dipaco.swarm.planning import checks
from dipaco.swarm.training.sum_sketch import sketch_of
from tests.support.swarm_rig import assert_replayed, batch_of, mean_gradient, sending

ROUNDS = 40  # within which a liar is out


async def test_a_reducer_whose_own_part_makes_the_mean_a_nan_is_out_and_no_step_has_it(group):
    """One NaN in its own part of its own slice, which no other peer adds up."""
    await group.join_all(ana=0.3, bo=0.3)
    await group.step()

    def with_a_nan(vector):
        number = group.leader._rounds.plan_held
        for part in number.slices:
            if part.reducer.startswith("eve"):
                vector[part.start] = np.nan
        return vector

    eve = await group.join("eve", kind=sending(with_a_nan), slow=0.3, bytes_per_second=1e11)
    await group.step_until(lambda: eve.wire.name in group.leader.group.banned, most=ROUNDS)
    assert list(group.leader.group.banned) == [eve.wire.name], "and nobody else"
    assert not group.evidence, "a machine's fault may be it: the third locks its credential"
    await group.steps(2)
    assert_replayed(group)


async def test_each_blocks_time_is_from_its_lease_to_its_report_by_the_leaders_clock(group):
    """A peer's word for it would park the honest, if it were small, or hold up steps."""
    await group.join("ana", slow=0.1)
    await group.steps(3)
    (ana,) = group.leader.group.members.values()
    assert 0.1 < ana.seconds_per_block < 0.4
    assert "seconds" not in BlockResult.__struct_fields__


@pytest.mark.parametrize("name", ["last-word", "forgers", "shield"])
async def test_of_each_kind_of_liar_few_sums_count_and_nobody_else_is_locked(monkeypatch, name):
    """The smallest form of `tools/swarm_attacks.py`: a reducer alone, and two friends."""
    monkeypatch.setattr(swarm_attacks, "HONEST_SUMS", 3)
    monkeypatch.setattr(swarm_attacks, "STEPS_AFTER", 1)
    monkeypatch.setattr(checks, "MEAN_GAP", 2)
    attack = swarm_attacks.ATTACKS[name]
    course = await swarm_attacks.course_of(attack, most=20)
    assert course.is_out or attack.is_bounded
    assert course.sums < 12
    assert not course.honest_locked
    assert abs(course.loss - 1) < 0.02


async def test_what_the_ledger_has_of_a_step_is_of_its_rows_and_shows_a_lie_that_no_check_met(
    group, monkeypatch
):
    await group.join("ana", slow=0.01)
    taken = await group.step()
    assert difference(taken, group.states[0], 0) < 1e-5
    monkeypatch.setattr(group.leader._checks, "begin", lambda plan, rows: None)
    await group.join("eve", kind=sending(np.negative), slow=0.01)
    while len(taken.record.blocks) < 2:
        taken = await group.step()
    assert difference(taken, group.states[-2], taken.closed.step) > 0.1


def difference(taken, before, step):
    """How far the sketch of a step's mean is from that of its rows' gradient, in times its size."""
    gradient = mean_gradient()
    vector = np.asarray(ravel_pytree(gradient(before.parts, batch_of(step))[0])[0])
    ours = sketch_of(vector, taken.closed.after.encode(), 0)
    return np.linalg.norm(np.array(taken.record.sketch) - ours) / np.linalg.norm(ours)
