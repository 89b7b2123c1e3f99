"""Peers that send other gradients than those of their rows are found within twenty steps, and no
honest peer is.
"""

import asyncio
import dataclasses
import gc
import random
import re
import weakref
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from dipaco.swarm.leading import gradient_checks
from dipaco.swarm.leading.gradient_checks import GradientChecks
from dipaco.swarm.leading.step_rows import StepRows
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.planning import checks
from dipaco.swarm.planning.checks import TOLERANCES, CheckDraws, Compared, judge
from dipaco.swarm.roles.volunteer import Volunteer
from tests.support.swarm_rig import (
    COMPUTE,
    RATES,
    SETTINGS,
    Group,
    assert_replayed,
    batch_of,
    first_state,
    largest_difference,
    round_plan,
    sending,
)

STEPS = 20  # within which a liar is found
FLOAT32 = TOLERANCES["float32"]


def another_one():
    """That of another step, for as long as it has one."""
    seen = []

    def change(vector):
        seen.append(vector)
        return seen[0] if len(seen) > 1 else np.roll(vector, 7)

    return change


CHANGES = {
    "scaled": lambda vector: np.float32(1.01) * vector,
    "negated": lambda vector: -vector,
    "another one": another_one(),
    "nothing": lambda vector: 0 * vector,
}


@pytest.mark.parametrize(
    ("change", "first_step"), [*((change, 0) for change in CHANGES), ("scaled", 3)]
)
async def test_a_peer_that_sends_another_gradient_is_found(group, change, first_step):
    await group.join("ana", slow=0.01)
    eve = await group.join("eve", kind=sending(CHANGES[change], first_step), slow=0.01)
    lies = 0
    while not group.evidence:
        outcome = await group.step()
        lies += outcome.closed.step >= first_step and eve.wire.name in outcome.record.blocks
        assert lies <= STEPS, group.said
        await asyncio.sleep(0.02)  # for checks beside the steps
    ((who, evidence),) = group.evidence
    assert who == eve.wire.name
    assert evidence.kind == "gradient"
    assert evidence.problem.startswith("its gradient ")
    assert evidence.claimed != evidence.found
    assert list(group.leader.group.banned) == [who], "and no other"
    assert "the credential of eve is locked" in group.said
    if first_step == 0:
        assert lies == 0, "it never counted"
        await group.step()
        assert_replayed(group)


async def test_a_liar_that_is_faster_than_all_others_keeps_no_step_from_its_end(group):
    """Its sum is in doubt, it comes back, and computes the same rows again."""
    await group.join("ana", slow=0.15)
    eve = await group.join("eve", kind=sending(CHANGES["scaled"]))
    while not group.leader.group.banned:
        await asyncio.wait_for(group.step(), 15)
    assert list(group.leader.group.banned) == [eve.wire.name]
    assert_replayed(group)


# --- checks by other volunteers ------------------------------------------------------------


class ChecksWrongly(Volunteer):
    """Computes its own rows, and says another sum of those that it checks."""

    async def _check(self, mine):
        self.compute, compute = Doubled(self.compute), self.compute
        try:
            await super()._check(mine)
        finally:
            self.compute = compute


class Doubled:
    def __init__(self, compute):
        self._compute = compute

    def gradient(self, *of_rows):
        vector, *counts = self._compute.gradient(*of_rows)
        return 2 * vector, *counts

    def __getattr__(self, name):
        return getattr(self._compute, name)


@pytest.fixture
def without_time(monkeypatch):
    """The leader computes again what it must, and lends all other checks."""
    monkeypatch.setattr(gradient_checks, "MAX_OPEN", 0)
    monkeypatch.setattr(checks, "MEAN_GAP", 1)


@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.usefixtures("without_time")
async def test_volunteers_check_each_other_where_the_leader_has_no_time(codec):
    async with Group(dataclasses.replace(SETTINGS, codec=codec)) as group:
        found, computed = group.leader._checks, []
        own = found._sum
        found._sum = lambda blocks, rows: computed.append(rows.step) or own(blocks, rows)
        await group.join_all(ana=0.3, bo=0.3, cy=0.3)  # none seems slow on a busy machine
        eve = await group.join("eve", kind=sending(CHANGES["scaled"], 6), slow=0.3)
        await group.step_until(lambda: group.evidence, most=40)
        ((who, evidence),) = group.evidence
        assert (who, evidence.kind) == (eve.wire.name, "gradient")
        assert list(group.leader.group.banned) == [who]
        status = group.leader.status()["checks"]
        assert len(computed) < status["done"] <= status["due"], "most by volunteers"
        honest = [step for step in computed if step < 6]  # the first sum of each is not lent
        assert len(honest) <= 4, "the leader computes newcomers' sums, and where two differ"


@pytest.mark.usefixtures("without_time")
async def test_a_checker_that_lies_locks_no_honest_one_and_is_out(group):
    await group.join_all(ana=0.01, bo=0.01)
    eve = await group.join("eve", kind=ChecksWrongly, slow=0.01)
    while not group.evidence:
        await group.step()
        await asyncio.sleep(0.02)
        assert len(group.outcomes) < 60, group.said
    assert [who for who, _ in group.evidence] == [eve.wire.name]
    assert list(group.leader.group.banned) == [eve.wire.name]
    assert_replayed(group)


@pytest.mark.usefixtures("without_time")
async def test_a_checker_that_does_not_come_holds_up_nothing(group, monkeypatch):
    found = group.leader._checks
    monkeypatch.setattr(gradient_checks, "TAKEN_SECONDS", 0.1)
    monkeypatch.setattr(Volunteer, "on_check", lambda self, plan: None)
    await group.join_all(ana=0.01, bo=0.01)
    await group.step_until(lambda: found.num_due >= found.num_checked + 4)
    assert not group.leader.group.banned
    await asyncio.sleep(0)
    assert not found.lent


# --- the verdict -----------------------------------------------------------------------------


def compared(given, expected, rounding=None):
    rounding = np.zeros(len(given)) if rounding is None else rounding
    return Compared(given.astype(np.float32), expected.astype(np.float32), rounding)


@pytest.fixture(scope="module")
def gradients():
    """Of each block of a step, as one machine computes them."""
    parts = jax.device_put(first_state()).parts
    return [
        np.asarray(COMPUTE.gradient(parts, COMPUTE.rows_of(batch_of(0), block), 0)[0])
        for block in range(SETTINGS.num_blocks)
    ]


def other_machines(gradients):
    """The sum, as machines that differ have it."""
    total = sum(gradients[1:], gradients[0])
    size = np.abs(total)
    rng = np.random.default_rng(0)
    yield sum(reversed(gradients[:-1]), gradients[-1])
    yield sum(gradient.astype(np.float64) for gradient in gradients)
    for bits in (23, 16, 10):  # of products: float32, split bfloat16, TF32
        yield total + 2.0**-bits * size * rng.normal(size=len(total))


@pytest.mark.parametrize("num_values", [64, 1024, None])
def test_machines_that_differ_are_never_accused(gradients, num_values):
    total = sum(gradients[1:], gradients[0])
    for other in other_machines(gradients):
        starts = range(0, len(total), num_values or len(total))
        spots = [
            compared(other[at : at + (num_values or len(total))],
                     total[at : at + (num_values or len(total))])
            for at in starts
        ]  # fmt: skip
        assert not judge(spots, FLOAT32).problem
        for one in spots:
            assert not judge([one], FLOAT32).problem


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_what_a_codec_loses_is_no_lie_and_a_lie_shows_through_every_codec(gradients, codec):
    total, coded = sum(gradients[1:], gradients[0]), codec_of(codec)

    def verdict(vector):
        content = coded.encode(vector.astype(np.float32))
        rounding = coded.rounding(content, len(vector))
        given = coded.decode(content, len(vector))
        return judge([compared(given, total, rounding)], FLOAT32)

    assert not verdict(total).problem
    assert "is 1.0" in verdict(1.01 * total).problem
    assert re.search(r"is 0\.9[89]", verdict(0.99 * total).problem)
    for lie in (-total, gradients[0] * 8, np.roll(total, 1), 2 * total, 0 * total):
        assert verdict(lie).is_clear


def test_a_lie_in_one_slice_of_small_values_is_seen():
    rng = np.random.default_rng(0)
    large, small = rng.normal(size=1024), 1e-3 * rng.normal(size=1024)
    found = judge([compared(large, large), compared(-small, small)], FLOAT32)
    assert found.problem
    assert found.spot == 1
    assert not judge([compared(large, large), compared(small, small)], FLOAT32).problem
    nan = np.full(1024, np.nan)
    assert judge([compared(nan, large)], FLOAT32).is_clear


# --- the schedule ----------------------------------------------------------------------------


EVE = "eve/1"


def test_each_sum_is_drawn_independently_newcomers_more_often_and_nobody_less_than_one_in_19():
    draws, checked = CheckDraws(random.Random(0)), []
    for step in range(40_000):
        if draws.is_due("s1", EVE, step):
            assert draws.is_due("s1", EVE, step), "it is asked again where a round is held again"
            draws.passed("s1")
            checked.append(step)
    assert checked[0] == 0
    gaps = np.diff(checked[20:])
    assert 18 < gaps.mean() < 20
    assert 50 < np.quantile(gaps, 0.95) < 60
    assert np.bincount(gaps).max() < 0.08 * len(gaps), "no gap is more usual than the next"
    assert 20 < checked[10] < 19 * 10


def test_sessions_of_one_credential_are_drawn_one_by_one_so_that_one_of_many_is_soon_found():
    draws = CheckDraws(random.Random(0))
    for _ in range(100):
        draws.passed("s1")
    found = [any(draws.is_due("s1", f"eve/{n}", step) for n in range(16)) for step in range(2000)]
    assert 0.5 < np.mean(found) < 0.65


def test_a_doubt_makes_a_newcomer_of_anybody():
    draws = CheckDraws(random.Random(0))
    for step in range(500):
        if draws.is_due("s1", EVE, step):
            draws.passed("s1")
    assert draws.is_proven("s1")
    draws.doubt("s1")
    assert not draws.is_proven("s1")
    assert draws.is_due("s1", EVE, 499)


class OneGradient:
    """Programs whose gradients are counted for as long as they are held."""

    settings = SimpleNamespace(model=SimpleNamespace(compute_dtype="float32"))

    def __init__(self):
        self.made = []

    def rows_of(self, batch, block):
        return None

    def gradient(self, *of_rows):
        vector = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
        self.made.append(weakref.ref(vector))
        return vector, 0.0, 1.0

    def num_held(self):
        gc.collect()
        return sum(made() is not None for made in self.made)


@pytest.mark.parametrize(("factor", "num_sums"), [(9.0, 1), (1.02, 2)], ids=["a lie", "in doubt"])
async def test_no_gradient_is_held_for_a_sum_that_was_found_off(factor, num_sums):
    banned = []
    certificate = SimpleNamespace(role="volunteer", serial="one")
    eve = SimpleNamespace(name=EVE, certificate=certificate)
    group = SimpleNamespace(
        members={eve.name: eve}, ban=lambda name, reason, evidence: banned.append(name)
    )
    compute = OneGradient()
    sent = np.float32(factor) * compute.gradient()[0]
    part = (0, len(sent), "back/1", "")

    async def part_of(plan, part, sender):
        return sent.tobytes()

    sums = SimpleNamespace(
        part_of=part_of,
        check_sketch=lambda *about: None,
        sizes=lambda plan: {eve.name: 1.0},
        sketches={},
    )
    checks = GradientChecks(compute, group, sums, lambda reducer: None)
    for step in range(num_sums):
        plan, rows = round_plan(step, [eve.name], [part], step), StepRows(step, [1.0])
        checks.begin(plan, rows)
        assert list(await checks.settle(plan, rows)) == [eve.name]
        checks.begin(round_plan(9, [], [part], step + 1), rows)  # the step is over
        async with asyncio.timeout(10):  # its thread holds the gradient a moment longer
            while compute.num_held():
                await asyncio.sleep(0.001)
    assert banned == [eve.name]


async def test_what_a_sender_sends_in_eight_bits_is_its_gradient_and_nothing_of_an_earlier_step():
    """A leader could not check what a codec has lost of an earlier sum: of a token's row that has
    no gradient now, it would be all that there is.
    """
    async with Group(dataclasses.replace(SETTINGS, codec="int8")) as group:
        await group.join("ana")
        await group.steps(3)
    codec = codec_of("int8")

    def in_eight_bits(vector, slices):
        parts = [vector[one.start : one.stop] for one in slices]
        return np.concatenate([codec.decode(codec.encode(part), len(part)) for part in parts])

    for number, outcome in enumerate(group.outcomes):
        state, slices = group.states[number], outcome.closed.slices
        found = [
            group.compute.gradient(state.parts, group.compute.rows_of(batch_of(number), block), 0)
            for block in range(SETTINGS.num_blocks)
        ]
        total = in_eight_bits(np.asarray(sum(one[0] for one in found)), slices)
        mean = in_eight_bits(total / np.float32(sum(one[2] for one in found)), slices)
        after = group.compute.step(state, mean, float(RATES[number]), 1)
        assert largest_difference(after, group.states[number + 1]) < 1e-5, number
