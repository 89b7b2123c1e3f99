"""Reducers that lie about their sums: each is found before the step is taken, and no other peer.

The steps stay those of plain AdamW, to the same bits as without the liar where sums are in order.
"""

import dataclasses
import re

import numpy as np
import pytest

from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.roles.auxiliary import Auxiliary
from dipaco.swarm.training.sum_proof import _is_coded
from tests.support.swarm_rig import SETTINGS, Group, assert_replayed

ROUNDS = 20  # within which a liar is found


def lying(kind, lie):
    """A peer of that kind whose reducer gives another mean: `lie(mean, parts)`, in a slice."""

    class Lies(kind):
        def __init__(self, wire, backbones, holder, **settings):
            super().__init__(wire, backbones, holder, **settings)
            add_up = holder.reducer._add_up

            def add_up_and_lie(total, targets):
                parts = dict(total.parts)
                add_up(total, targets)
                if total.mean is not None:
                    codec = codec_of(total.plan.codec)
                    mean = codec.decode(total.mean, total.stop - total.start)
                    total.mean = codec.encode(lie(np.array(mean), parts).astype(np.float32))

            holder.reducer._add_up = add_up_and_lie

    return Lies


def of_one_sender_twice(mean, parts):
    return mean + next(iter(parts.values())) / 100


def noisy(mean, parts):
    return mean + np.random.default_rng(0).normal(size=len(mean)) * np.abs(mean) * 1e-3


async def step_until_banned(group, eve):
    """Steps, until a peer is banned: within some rounds, and it alone. Returns why."""
    while not group.leader.group.banned:
        assert len(group.outcomes) < ROUNDS
        await group.step()
    assert list(group.leader.group.banned) == [eve.wire.name], group.said
    return group.leader.group.banned[eve.wire.name]


@pytest.mark.parametrize(
    ("codec", "lie", "why"),
    [
        ("none", lambda mean, parts: 1.01 * mean, r"1\.0(09|1)\d* times"),
        ("float16", lambda mean, parts: -mean, r"-(1|0\.99\d*|1\.0\d*) times"),
        ("int8", lambda mean, parts: 0 * mean, "0 times"),
        ("none", of_one_sender_twice, "not that of what the senders had signed|times"),
        ("int8", of_one_sender_twice, "not that of what the senders had signed|times"),
        ("float16", noisy, "times what|not that"),
    ],
    ids=["scaled", "negated", "zero", "one sender twice", "the same in int8", "noisy"],
)
async def test_a_reducer_that_lies_is_found_before_the_step_is_taken(codec, lie, why):
    async with Group(dataclasses.replace(SETTINGS, codec=codec)) as group:
        for name in ("ana", "bo"):
            await group.join(name, bytes_per_second=1e8)
        await group.step()
        eve = await group.join("eve", kind=lying(Auxiliary, lie), bytes_per_second=1e9)
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
    """It changes a sender's part and adds up right: the part does not have the root that was
    signed.
    """
    await group.join("ana", bytes_per_second=1e8)
    eve = await group.join("eve", kind=Auxiliary, bytes_per_second=1e9)
    push = eve.holder.reducer.push

    def alter(total, sender, content, header=b""):
        push(total, sender, (1.01 * np.frombuffer(content, "<f4")).tobytes(), header)

    eve.holder.reducer.push = alter
    assert "was not signed by any sender" in await step_until_banned(group, eve)
    await group.step()
    assert_replayed(group)


async def test_a_reducer_that_leaves_a_sender_out_is_found(group):
    await group.join("ana", bytes_per_second=1e8, slow=0.01)
    await group.join("bo", bytes_per_second=1e8, slow=0.01)
    eve = await group.join("eve", kind=Auxiliary, bytes_per_second=1e9)
    add_up = eve.holder.reducer._add_up

    def leave_one_out(total, targets):
        name = min(targets)
        total.parts[name] = 0 * total.parts[name]
        add_up(total, targets)

    eve.holder.reducer._add_up = leave_one_out
    await step_until_banned(group, eve)
    await group.step()
    assert_replayed(group)


async def test_a_reducer_that_shows_nothing_gets_no_slice_again_and_is_not_called_a_liar(group):
    """It may have lost what it had; a liar gains nothing by it."""
    await group.join("ana", bytes_per_second=1e8)
    eve = await group.join("eve", kind=lying(Auxiliary, lambda mean, parts: 1.01 * mean),
                           bytes_per_second=1e9)  # fmt: skip
    eve.wire._handlers.pop("proof")
    await group.steps(4)
    assert not group.leader.group.banned
    assert any(f"{eve.wire.name} is gone" in sentence for sentence in group.said)
    assert_replayed(group)
    reducers = {part.reducer for one in group.outcomes for part in one.closed.slices}
    assert eve.wire.name not in reducers


def test_reducers_are_not_accused_by_a_machine_that_has_no_subnormal_numbers():
    """The one thing in which machines may differ: there, less than 2^-126 is zero."""
    codec = codec_of("none")
    mean = np.array([1e-39, 2.0**-126, 1.0], np.float32)
    flushed = codec.encode(np.array([0, 2.0**-126, 1.0], np.float32))
    assert _is_coded(codec, mean, flushed, flushed, 3)
    off = codec.encode(np.array([1e-39, 2.0**-126, np.nextafter(np.float32(1), 2)], np.float32))
    assert not _is_coded(codec, mean, off, off, 3), "the last bit shows"


@pytest.mark.parametrize("scale", [np.inf, np.nan, 0.0, -1.0, 2.0, 0.5])
def test_a_scale_that_is_not_that_of_the_largest_value_is_a_lie(scale):
    """With a large one a mean would seem to be rounded to zero."""
    codec = codec_of("float16")
    mean = np.linspace(-1, 1, 9, dtype=np.float32)
    honest = codec.encode(mean)
    assert _is_coded(codec, mean, honest, honest, 9)
    with np.errstate(all="ignore"):
        wrong = np.float32(scale).tobytes() + (mean / np.float32(scale)).astype("<f2").tobytes()
        assert not _is_coded(codec, mean, wrong, wrong, 9)
