"""Reducers that lie about their sums: each is found before the step is taken, and no other peer.

The steps stay those of plain AdamW, to the same bits as without the liar where sums are in order.
"""

import asyncio
import dataclasses
import math
import re

import msgspec
import numpy as np
import pytest

from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.planning import checks
from dipaco.swarm.training.slices import mean_of
from dipaco.swarm.training.sum_sketch import has_sketch, is_mean, size_of, sketches_of
from tests.support.swarm_rig import SETTINGS, Group, OnlyAddsUp, assert_replayed, round_plan

ROUNDS = 20  # within which a liar is found


def lying(kind, lie):
    """A peer of that kind whose reducer gives another mean: `lie(mean, parts)`, in a slice."""

    class Lies(kind):
        def __init__(self, wire, backbones, holder, **settings):
            super().__init__(wire, backbones, holder, **settings)
            add_up = holder.reducer._add_up

            def add_up_and_lie(total):
                codec, num_values = codec_of(total.plan.codec), total.part.stop - total.part.start
                parts = [codec.decode(one, num_values) for one in total.parts.values()]
                add_up(total)
                mean = np.array(codec.decode(total.mean, num_values))
                total.mean = codec.encode(lie(mean, parts).astype(np.float32))

            holder.reducer._add_up = add_up_and_lie

    return Lies


def of_one_sender_twice(mean, parts):
    return mean + parts[0] / 100


def noisy(mean, parts):
    return mean + np.random.default_rng(0).normal(size=len(mean)) * np.abs(mean) * 1e-3


async def step_until_banned(group, eve):
    """Steps, until a peer is banned: within some rounds, and it alone. Returns why."""
    await group.step_until(lambda: group.leader.group.banned, most=ROUNDS)
    assert list(group.leader.group.banned) == [eve.wire.name], group.said
    return group.leader.group.banned[eve.wire.name]


@pytest.mark.parametrize(
    ("codec", "lie", "why"),
    [
        ("none", lambda mean, parts: 1.01 * mean, r"1\.0(09|1)\d* times"),
        ("none", lambda mean, parts: -mean, r"-(1|0\.99\d*|1\.0\d*) times"),
        ("int8", lambda mean, parts: 0 * mean, "0 times"),
        ("none", of_one_sender_twice, "not that of what the senders had committed|times"),
        ("int8", of_one_sender_twice, "not that of what the senders had committed|times"),
        ("none", noisy, "times what|not that"),
    ],
    ids=["scaled", "negated", "zero", "one sender twice", "the same in int8", "noisy"],
)
async def test_a_reducer_that_lies_is_found_before_the_step_is_taken(codec, lie, why):
    async with Group(dataclasses.replace(SETTINGS, codec=codec)) as group:
        await group.join_all(ana=0.0, bo=0.0)
        await group.step()
        eve = await group.join("eve", kind=lying(OnlyAddsUp, lie), bytes_per_second=1e9)
        reason = await step_until_banned(group, eve)
        assert reason.startswith("proved at step")
        assert re.search(why, reason), reason
        assert "the credential of eve is locked" in group.said
        ((who, evidence),) = group.evidence
        assert who == eve.wire.name
        assert (evidence.kind, evidence.step) == ("sum", group.holder.step - 1)
        assert evidence.claimed != evidence.found
        await group.step()
        if codec == "none":
            assert_replayed(group)


async def test_a_reducer_cannot_make_up_what_a_sender_has_sent(group):
    """It changes a sender's part and adds up right: nobody had committed itself to that."""
    await group.join("ana")
    eve = await group.join("eve", kind=OnlyAddsUp, bytes_per_second=1e9)
    add_up = eve.holder.reducer._add_up

    def alter(total):
        for name, content in total.parts.items():
            total.parts[name] = (1.01 * np.frombuffer(content, "<f4")).tobytes()
        add_up(total)

    eve.holder.reducer._add_up = alter
    assert "it made up what ana" in await step_until_banned(group, eve)
    await group.step()
    assert_replayed(group)


async def test_a_reducer_that_shows_nothing_gets_no_slice_again_and_is_not_called_a_liar(group):
    """It may have lost what it had; a liar gains nothing by it."""
    await group.join("ana")
    eve = await group.join(
        "eve", kind=lying(OnlyAddsUp, lambda mean, parts: 1.01 * mean), bytes_per_second=1e9
    )
    eve.wire._handlers.pop("part")
    await group.steps(4)
    assert not group.leader.group.banned
    assert any(f"{eve.wire.name} is gone" in sentence for sentence in group.said)
    assert_replayed(group)
    reducers = {part.reducer for one in group.outcomes for part in one.closed.slices}
    assert eve.wire.name not in reducers


def test_reducers_are_not_accused_by_a_machine_that_has_no_subnormal_numbers():
    """The one thing in which machines may differ: there, less than 2^-126 is zero."""
    encode = codec_of("none").encode
    mean = np.array([1e-39, 2.0**-126, 1.0], np.float32)
    assert is_mean("none", mean, encode(np.array([0, 2.0**-126, 1.0], np.float32)))
    off = np.array([1e-39, 2.0**-126, np.nextafter(np.float32(1), 2)], np.float32)
    assert not is_mean("none", mean, encode(off)), "the last bit shows"
    assert not is_mean("none", mean, encode(np.array([1e-39, np.nan, 1.0], np.float32)))


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_a_mean_that_is_wrong_in_a_single_value_has_another_sketch_and_a_rounded_one_has_not(codec):
    """Of as many senders, whose parts all have gone through the codec."""
    rng, coded, count, senders = np.random.default_rng(0), codec_of(codec), 5000, ("ana", "bo")
    sent = [coded.encode(rng.normal(size=count).astype(np.float32)) for _ in senders]
    plan = msgspec.structs.replace(
        round_plan(1, senders, [(100, 100 + count, "eve", "")], codec=codec), seed=b"seed"
    )
    parts = {name: coded.decode(one, count) for name, one in zip(senders, sent, strict=True)}
    of_parts = [np.frombuffer(sketches_of(plan, [one]), "<f8") for one in sent]
    mean = mean_of(parts, plan.targets, count)
    (part,), total = plan.slices, sum(of_parts)
    assert has_sketch(plan, part, coded.encode(mean), total)
    size = math.sqrt(size_of(of_parts[0]) / count)
    assert size == pytest.approx(1.0, rel=0.4)
    off = {"none": 1e-4, "int8": 3.0}[codec]
    for at in (0, 1234, count - 1):
        wrong = mean.copy()
        wrong[at] += off
        assert not has_sketch(plan, part, coded.encode(wrong), total), at
    assert not has_sketch(
        plan, part, coded.encode(1.001 * mean if codec == "none" else 1.2 * mean), total
    )
    assert not has_sketch(plan, part, coded.encode(mean), np.full(64, np.nan))


async def test_a_check_that_outlasts_its_round_does_not_look_at_the_next_ones_sketches(
    group, monkeypatch
):
    """Over a link that comes and goes a part is shown late, and an honest sender was locked."""
    monkeypatch.setattr(checks, "MEAN_GAP", 1)
    await group.join_all(ana=0.01, bo=0.01)
    await group.steps(4)  # checks of both are not waited for any more
    rounds, part_of = group.leader._rounds, group.leader._rounds.sums.part_of

    async def late(plan, part, sender):
        content = await part_of(plan, part, sender)
        while rounds.plan_held.number == plan.number or sender not in rounds.sums.sketches:
            await asyncio.sleep(0.001)
        return content

    rounds.sums.part_of = late
    await group.steps(3)
    rounds.sums.part_of = part_of
    await group.steps(2)
    assert not group.leader.group.banned, group.said
    assert group.leader.status()["checks"]["done"] > 8
