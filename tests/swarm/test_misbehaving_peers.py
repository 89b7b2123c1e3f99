"""Faulty and hostile peers are refused or removed, with a reason; the group's steps stay right."""

import asyncio
import re
import time

import numpy as np
import pytest

from dipaco.observe.details import details
from dipaco.runs.reading.status import status_of
from dipaco.runs.version import program_version
from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.network.messages import (
    BlockResult,
    GroupInfo,
    JoinRequest,
    WorkReply,
    WorkRequest,
)
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.state_holder import StateHolder
from tests.support.swarm_rig import assert_replayed, issue, saying, sending, wire_of


async def refused_to_join(group, credential, why, **hello):
    wire = await wire_of(credential)
    body = JoinRequest(
        version=hello.get("version", program_version()),
        address=wire.address,
        computes=True,
        config=hello.get("config", ""),
    )
    with pytest.raises(SwarmRefuses, match=why):
        await wire.ask(group.wire.address, "join", body, GroupInfo, within_seconds=5.0)
    assert not any(
        name.startswith(credential.certificate.name) for name in group.leader.group.members
    )
    assert any(why in reason for _, reason in group.refused), "it is shown"
    await wire.transport.close()


async def test_bad_credentials_other_versions_and_other_configs_are_refused(group):
    await group.join("ana")
    revoked = issue("gone")
    group.wire.verifier.revoked = {revoked.certificate.serial}
    await refused_to_join(group, revoked, "revoked")
    await refused_to_join(group, issue("new"), "runs dipaco 9.9", version="9.9\x1b[2J")
    assert all(reason.isprintable() for _, reason in group.refused)
    await refused_to_join(group, issue("odd"), "another config", config="abc")
    await group.step()
    await group.step()
    assert_replayed(group)


def with_a_nan(vector):
    vector[7] = np.nan
    return vector


@pytest.mark.parametrize(
    ("alter", "why"),
    [
        (with_a_nan, "NaN"),
        # By who adds it up, or by the leader, which has computed its rows again: who is first.
        (
            lambda vector: 1e6 * vector,
            "times as large as the group's|(times|away from) that of its rows",
        ),
    ],
    ids=["nan", "huge"],
)
async def test_a_bad_gradient_is_refused_and_others_compute_its_rows(group, alter, why):
    await group.join_all(ana=0.005, bo=0.005)
    await group.steps(2)
    eve = await group.join("eve", kind=sending(alter))
    banned = group.leader.group.banned
    await group.step_until(lambda: banned, most=40)
    assert list(banned) == [eve.wire.name]
    assert re.search(why, banned[eve.wire.name])
    await group.step()
    assert_replayed(group)


async def test_a_sum_of_another_size_never_counts_and_no_reducer_is_blamed_for_it(group):
    """Nobody takes it, neither the reducers nor the leader, to which it is sent next."""
    await group.join_all(ana=0.005, bo=0.005)
    await group.steps(2)
    eve = await group.join("eve", kind=sending(lambda vector: vector[: len(vector) // 2]))
    late = f"{eve.wire.name} is gone: its part did not arrive"
    await group.step_until(lambda: any(one.startswith(late) for one in group.said), most=40)
    await group.steps(2)
    assert not group.leader._rounds.past.last_aside
    assert not any(eve.wire.name in outcome.record.blocks for outcome in group.outcomes)
    assert_replayed(group)


async def test_a_pass_under_which_a_nan_came_three_times_is_locked_and_status_says_why(group, run):
    swarms, eves = run.ledger.swarms, issue("eve")
    serial, until = eves.certificate.serial, eves.certificate.not_after
    swarms.issue(serial, "eve", "volunteer", until)
    members = group.leader.group
    members._on_banned = lambda certificate, session, reason, evidence: swarms.refuse(
        certificate.serial, session, reason, evidence
    )
    await group.join_all(ana=0.01, bo=0.01)
    for number in range(1, 4):
        assert "the credential of eve is locked" not in group.said
        eve = await group.join("eve", kind=sending(with_a_nan), credential=eves)
        await group.step_until(lambda name=eve.wire.name: name in members.banned, most=60)
        assert len(swarms.refusals()[serial]) == number
        await group.kill("eve")
    assert "the credential of eve is locked" in group.said
    with pytest.raises(SwarmRefuses, match=r"eve is locked: 3 of its sessions .*NaN"):
        await group.join("eve", credential=eves)
    await group.step()
    assert_replayed(group)
    status = "\n".join(details(status_of(run)))
    reason = "the gradient holds a NaN or an infinity"
    assert f"locked: the credential of eve ({serial}): {'; '.join([reason] * 3)}" in status


async def test_a_peer_that_misreports_a_block_is_named_and_out_and_the_step_closes(group):
    """The leader lent the rows: it knows how many targets they have."""
    await group.join("ana", slow=0.02)
    await group.step()
    banned = group.leader.group.banned
    for says, why in (
        ({"targets": 0.0}, "counts 0 targets in block"),
        ({"targets": float("nan")}, "counts nan targets in block"),
        ({"loss": -1.0}, "has a loss of -1"),
    ):
        name = f"eve{len(banned)}"
        eve = (await group.join(name, kind=saying(**says))).wire.name
        while eve not in banned:
            await asyncio.wait_for(group.step(), 3.0)
        assert why in banned[eve]
        await group.kill(name)
    assert len(banned) == 3, "and nobody else"
    await asyncio.wait_for(group.step(), 3.0)
    assert_replayed(group)


async def test_rows_that_were_never_leased_cannot_be_claimed_nor_brought_from_no_other_leader(
    group,
):
    """A sum that claims to be for another leader is not adopted; the claim alone is no offence."""
    await group.join("ana", slow=0.05)
    wire = await wire_of(issue("eve"))
    idle = Volunteer(wire, (group.wire.address,), StateHolder(wire, group.compute))
    for blocks, is_brought, why in (
        ((5, 6), True, ""),
        ((5, 99), True, "block 99, which there is not"),
        ((5, 6), False, "which it never had"),
    ):
        await idle.join()
        step = asyncio.ensure_future(group.step())
        await asyncio.sleep(0.02)
        here = {"step": group.holder.step, "lineage": group.holder.lineage}
        done = tuple(BlockResult(block=b, loss=1.0, targets=46.0) for b in blocks)
        work = WorkRequest(done=done, wants_more=False, for_last_leader=is_brought, **here)
        asked = wire.ask(group.wire.address, "work", work, WorkReply, within_seconds=5.0)
        if why:
            with pytest.raises(SwarmRefuses, match=why):
                await asked
            with pytest.raises(SwarmRefuses, match=why):
                await idle.join()
            group.leader.group.banned.clear()
        else:
            assert (await asked)[0].accepted == ()
        await step
    assert_replayed(group)
    await wire.transport.close()


class NeverGives(Volunteer):
    """Takes a slice, and never replies to a request about it."""

    def __init__(self, wire, *arguments, **settings):
        super().__init__(wire, *arguments, **settings)

        async def silence(body, question):
            await asyncio.sleep(1000)

        for method in ("slice_mean", "arrived", "push"):
            kind, _ = wire._handlers[method]
            wire.register(method, kind, silence)


async def test_a_reducer_that_never_replies_is_removed_and_gets_no_slice_again(group):
    await group.join("ana")
    await group.step()
    eve = await group.join("eve", kind=NeverGives, bytes_per_second=1e9, slow=0.01)
    sentence = f"{eve.wire.name} is gone: it took a slice and does not answer"
    await group.step_until(lambda: sentence in "".join(group.said))
    await group.steps(3)
    reducers = {part.reducer for outcome in group.outcomes[-3:] for part in outcome.closed.slices}
    assert eve.wire.name not in reducers, "it gets no slice any more"
    assert_replayed(group)


async def test_a_peer_that_is_stopped_in_a_block_loses_its_rows_to_others(group):
    await group.join("ana")
    await group.steps(2)
    slug = await group.join("slug")
    await group.step_until(lambda: slug.wire.name in group.outcomes[-1].record.blocks)
    slug.compute._seconds = 25.0  # far longer than its blocks took before
    started = time.monotonic()
    await group.steps(3)
    assert time.monotonic() - started < 22.0, "another computes its block as well"
    assert_replayed(group)


async def test_a_far_slower_volunteer_is_parked_with_a_sentence_and_no_step_waits_for_it(group):
    said = []
    await group.join_all(ana=0.02, bo=0.02)
    await group.step()
    slug = await group.join("slug", slow=2.0, say=said.append)
    while slug.wire.name not in group.leader.group.members or slug.does != "is parked":
        await asyncio.wait_for(group.step(), 10.0)
    assert any("is parked" in sentence for sentence in group.said)
    assert any("waits" in sentence for sentence in said)
    assert "parked" in group.leader.group.status()["peers"][slug.wire.name]["kind"]
    assert_replayed(group)


async def test_a_volunteer_that_rests_says_so_once_and_why(group):
    said = []
    ana = await group.join("ana")
    bo = await group.join("bo", say=said.append)
    active = group.leader.group.active_members
    await group.step_until(lambda: all(active()[one.wire.name].counted for one in (ana, bo)))
    for _ in range(2):
        group.leader.group._suspensions.note_failed(bo.wire.name, time.monotonic(), 60.0)
    while bo.does != "is suspended":
        await asyncio.wait_for(group.step(), 10.0)
    await group.steps(3)
    assert sum("suspended" in sentence for sentence in said) == 1
    assert group.leader.group.status()["peers"][bo.wire.name]["does"] == "is suspended"
    group.leader.group.count({bo.wire.name: ()})
    while bo.does == "is suspended":
        await asyncio.wait_for(group.step(), 10.0)
    assert_replayed(group)
