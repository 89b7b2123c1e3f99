"""Faulty and hostile peers are refused or removed, with a reason; the group's steps stay right."""

import asyncio
import re
import time
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from dipaco.observe.details import details
from dipaco.runs.opening import create_or_open
from dipaco.runs.reading.status import status_of
from dipaco.runs.version import program_version
from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.network.credentials import DAY_SECONDS, Authority
from dipaco.swarm.network.messages import (
    Ack,
    BlockResult,
    GroupInfo,
    JoinRequest,
    PushRequest,
    WorkReply,
    WorkRequest,
)
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.state_holder import StateHolder
from tests.support.swarm_rig import AUTHORITY, assert_replayed, issue, wire_of
from tests.support.tiny_run import TOY


async def refused_to_join(group, credential, why, **hello):
    wire = await wire_of(credential)
    body = JoinRequest(
        version=hello.get("version", program_version()),
        address=wire.address,
        computes=True,
        holds_state=True,
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
    long_ago = time.time() - 30 * DAY_SECONDS
    await refused_to_join(group, issue("old", now=long_ago), "expired")
    forged = issue("forger", authority=Authority(bytes(32), "run"))
    believing = msgspec.structs.replace(forged, authority=AUTHORITY.public_key)
    await refused_to_join(group, believing, "not issued by this run")
    revoked = issue("gone")
    group.wire.verifier.revoked = {revoked.certificate.serial}
    await refused_to_join(group, revoked, "revoked")
    await refused_to_join(group, issue("new"), "runs dipaco 9.9", version="9.9")
    await refused_to_join(group, issue("odd"), "another config", config="abc")
    await group.step()
    await group.step()
    assert_replayed(group)


class SendsBad(Volunteer):
    """Sends another gradient than it has computed."""

    alter = staticmethod(lambda vector: vector)

    def gradient_sum(self, plan):
        vector = super().gradient_sum(plan)
        return None if vector is None else self.alter(np.array(vector))


def sending(function):
    return type("SendingBad", (SendsBad,), {"alter": staticmethod(function)})


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
        (lambda vector: vector[: len(vector) // 2], "bytes of values"),
    ],
    ids=["nan", "huge", "wrong shape"],
)
async def test_a_bad_gradient_is_refused_and_others_compute_its_rows(group, alter, why):
    await group.join("ana", slow=0.005)
    await group.join("bo", slow=0.005)
    for _ in range(2):
        await group.step()
    await group.join("eve", kind=sending(alter))
    eve = group.volunteers["eve"][0]
    for _ in range(40):
        await group.step()
        if group.leader.group.banned:
            break
    (name,) = group.leader.group.banned
    assert name == eve.wire.name
    assert re.search(why, group.leader.group.banned[name])
    await group.step()
    assert_replayed(group)


async def test_a_pass_under_which_a_nan_came_three_times_is_locked_and_status_says_why(
    group, tmp_path
):
    run_of_group, _ = create_or_open(tmp_path / "run", TOY)
    swarms, eves = run_of_group.ledger.swarms, issue("eve")
    serial, until = eves.certificate.serial, eves.certificate.not_after
    swarms.issue(serial, "eve", "volunteer", until)
    members = group.leader.group
    members._on_banned = lambda certificate, session, reason, evidence: swarms.refuse(
        certificate.serial, session, reason, evidence
    )
    await group.join("ana", slow=0.01)
    await group.join("bo", slow=0.01)
    for number in range(1, 4):
        assert "the credential of eve is locked" not in group.said
        eve = await group.join("eve", kind=sending(with_a_nan), credential=eves)
        while eve.wire.name not in members.banned:
            assert len(group.outcomes) < 60
            await group.step()
        assert len(swarms.refusals()[serial]) == number
        await group.kill("eve")
    assert "the credential of eve is locked" in group.said
    with pytest.raises(SwarmRefuses, match=r"eve is locked: 3 of its sessions .*NaN"):
        await group.join("eve", credential=eves)
    await group.step()
    assert_replayed(group)
    status = "\n".join(details(status_of(run_of_group)))
    run_of_group.ledger.close()
    reason = "the gradient holds a NaN or an infinity"
    assert f"locked: the credential of eve ({serial}): {'; '.join([reason] * 3)}" in status


class Misreports(Volunteer):
    """Computes what it should, and says something else of it."""

    says: ClassVar = {}  # field of `BlockResult` -> value

    async def _request_work(self, work):
        done = tuple(msgspec.structs.replace(one, **self.says) for one in work.done)
        return await super()._request_work(msgspec.structs.replace(work, done=done))


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"targets": 0.0}, "counts 0 targets in block"),
        ({"targets": float("nan")}, "counts nan targets in block"),
        ({"loss": -1.0}, "has a loss of -1"),
        ({"seconds": float("nan")}, "a block took nan seconds"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
async def test_a_peer_that_misreports_a_block_is_named_and_out_and_the_step_closes(
    group, says, why
):
    """The leader lent the rows: it knows how many targets they have."""
    await group.join("ana", slow=0.02)
    await group.step()
    await group.join("eve", kind=type("Eve", (Misreports,), {"says": says}))
    eve = group.volunteers["eve"][0].wire.name
    while eve not in group.leader.group.banned:
        await asyncio.wait_for(group.step(), 3.0)
    assert why in group.leader.group.banned[eve]
    assert list(group.leader.group.banned) == [eve]
    await asyncio.wait_for(group.step(), 3.0)
    assert_replayed(group)


async def idle_volunteer_in(group):
    """Eve, who computes nothing, in the middle of a step: (wire, volunteer, step)."""
    wire = await wire_of(issue("eve"))
    idle = Volunteer(wire, (group.wire.address,), StateHolder(wire, group.compute))
    await idle.join()
    step = asyncio.ensure_future(group.step())
    await asyncio.sleep(0.02)
    return wire, idle, step


async def test_rows_that_were_never_leased_cannot_be_claimed(group):
    await group.join("ana", slow=0.05)
    wire, idle, step = await idle_volunteer_in(group)
    done = tuple(BlockResult(block=b, loss=1.0, targets=46.0, seconds=0.1) for b in (5, 6))
    work = WorkRequest(step=0, lineage="root", done=done, wants_more=False)
    with pytest.raises(SwarmRefuses, match="which it never had"):
        await wire.ask(group.wire.address, "work", work, WorkReply, within_seconds=5.0)
    with pytest.raises(SwarmRefuses, match="which it never had"):
        await idle.join()
    await step
    assert_replayed(group)
    await wire.transport.close()


async def test_a_sum_cannot_be_brought_where_there_was_no_other_leader(group):
    """A sum that claims to be for another leader is not adopted; the claim alone is no offence."""
    await group.join("ana", slow=0.05)
    wire, _, step = await idle_volunteer_in(group)
    for blocks, refused in (((5, 6), False), ((5, 99), True)):
        done = tuple(BlockResult(block=b, loss=1.0, targets=46.0, seconds=0.1) for b in blocks)
        work = WorkRequest(
            step=0, lineage="root", done=done, wants_more=False, for_last_leader=True
        )
        asked = wire.ask(group.wire.address, "work", work, WorkReply, within_seconds=5.0)
        if refused:
            with pytest.raises(SwarmRefuses, match="block 99, which there is not"):
                await asked
        else:
            assert (await asked)[0].accepted == ()
    await step
    assert_replayed(group)
    await wire.transport.close()


async def test_a_peer_that_is_no_sender_cannot_push_into_a_round(group):
    await group.join("ana", slow=0.02)
    await group.step()
    wire = await wire_of(issue("eve"))
    closed = group.outcomes[-1].closed
    part = closed.slices[0]
    body = PushRequest(round_number=closed.round_number, step=0, start=part.start, stop=part.stop)
    with pytest.raises(SwarmRefuses, match="has nothing to add"):
        await wire.ask(part.address, "push", body, Ack, payload=b"", within_seconds=5.0)
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
    await group.join("eve", kind=NeverGives, bytes_per_second=1e9, slow=0.01)
    eve = group.volunteers["eve"][0]
    sentence = f"{eve.wire.name} is gone: it took a slice and does not answer"
    deadline = time.monotonic() + 60  # steps are quick, and it must arrive first
    while sentence not in "".join(group.said):
        assert time.monotonic() < deadline, group.said
        await group.step()
    for _ in range(3):
        await group.step()
    reducers = {part.reducer for outcome in group.outcomes[-3:] for part in outcome.closed.slices}
    assert eve.wire.name not in reducers, "it gets no slice any more"
    assert_replayed(group)


@pytest.mark.slow
async def test_a_peer_that_is_stopped_in_a_block_loses_its_rows_to_others(group):
    await group.join("ana")
    for _ in range(2):
        await group.step()
    await group.join("slug")
    slug = group.volunteers["slug"][0]
    while slug.wire.name not in group.outcomes[-1].blocks_by_peer:
        await group.step()
    slug.compute._seconds = 25.0  # far longer than its blocks took before
    started = time.monotonic()
    for _ in range(3):
        await group.step()
    assert time.monotonic() - started < 22.0, "another computes its block as well"
    assert_replayed(group)


async def test_a_far_slower_volunteer_is_parked_with_a_sentence_and_no_step_waits_for_it(group):
    said = []
    await group.join("ana", slow=0.02)
    await group.join("bo", slow=0.02)
    await group.step()
    await group.join("slug", slow=2.0, say=said.append)
    slug = group.volunteers["slug"][0]
    deadline = time.monotonic() + 40
    while slug.wire.name not in group.leader.group.members or slug.does != "is parked":
        assert time.monotonic() < deadline, group.said
        await asyncio.wait_for(group.step(), 10.0)
    assert any("is parked" in sentence for sentence in group.said)
    assert any("waits" in sentence for sentence in said)
    assert "parked" in group.leader.group.status()["peers"][slug.wire.name]["kind"]
    assert_replayed(group)


async def test_a_volunteer_that_rests_says_so_once_and_why(group):
    said = []
    ana = await group.join("ana")
    bo = await group.join("bo", say=said.append)
    while not all(group.leader.group.active_members()[one.wire.name].counted for one in (ana, bo)):
        await group.step()
    for _ in range(2):
        group.leader.group._active.note_failed(bo.wire.name, 60.0)
    deadline = time.monotonic() + 40
    while bo.does != "is suspended":
        assert time.monotonic() < deadline, said
        await asyncio.wait_for(group.step(), 10.0)
    for _ in range(3):
        await group.step()
    assert sum("suspended" in sentence for sentence in said) == 1
    assert group.leader.group.status()["peers"][bo.wire.name]["does"] == "is suspended"
    group.leader.group.count({bo.wire.name: ()})
    while bo.does == "is suspended":
        assert time.monotonic() < deadline, said
        await asyncio.wait_for(group.step(), 10.0)
    assert_replayed(group)
