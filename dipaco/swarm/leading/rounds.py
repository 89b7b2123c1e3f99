"""The rounds of a leader: who sends, who adds up how much, and who is to blame where no mean came.

A round ends with the mean of every slice, or with the names of those without whom the next one is
held. Reducers that die lose nothing, since senders keep their sums until the step is closed.
"""

import asyncio
import contextlib
import dataclasses
import secrets
import time
from typing import Any, NamedTuple

from dipaco.swarm.leading.group import CHECK_SECONDS, MIN_WAIT_SECONDS, SwarmGroup
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import (
    Ack,
    ArrivedReply,
    ArrivedRequest,
    JoinRequest,
    MeanReply,
    MeanRequest,
    PushRequest,
    RoundPlan,
    Sender,
    Slice,
    round_number_of,
)
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.deadlines import Durations
from dipaco.swarm.planning.shares import Link, cut, shares_of_links
from dipaco.swarm.training.state_holder import StateHolder, decoded


class RoundOutcome(NamedTuple):
    """Of one round: either there are means, or somebody failed."""

    contents: list[bytes]  # the coded mean of each slice
    failed: dict[str, str]  # who, and how


class Rounds:
    """Plans rounds and holds them.

    Args:
      wire, holder: of the backbone that leads.
      group: its members, and the ledger of the step.
    """

    def __init__(self, wire: Wire, holder: StateHolder, group: SwarmGroup):
        assert holder.compute is not None
        self._wire, self._holder, self._group = wire, holder, group
        self._compute = holder.compute
        self._unreliable_reducers: set[str] = set()  # took a slice once and did not give it
        self._slowed: dict[str, float] = {}  # so much slower than it says, since it was late
        self._term, self._count = 0, 0
        self._patience = Durations()  # how long rounds took, over what was expected of them
        self._expected_seconds = 1.0  # of the round that is held

    def begin_term(self) -> None:
        """This backbone leads, from now on."""
        self._term, self._count = secrets.randbits(30), 0

    # --- what should happen --------------------------------------------------------------------

    def plan(self) -> RoundPlan:
        """Who sends, who adds up how much, and how long it may take."""
        blocks_by_peer = self._group.ledger.blocks_by_peer
        names = [self._wire.name, *sorted(self._group.members)]
        links, senders = [], []
        for name in names:
            sends = name in blocks_by_peer
            if sends:
                blocks = blocks_by_peer[name]
                targets = sum(self._group.losses[block][1] for block in blocks)
                senders.append(Sender(name=name, blocks=blocks, targets=targets))
            links.append(self._link(name, sends=sends))
        num_values = self._compute.num_values
        slices = tuple(
            Slice(start=part.start, stop=part.stop, reducer=name, address=self._address(name))
            for name, part in zip(names, cut(shares_of_links(links), num_values), strict=True)
            if part.stop > part.start
        )
        for part in slices:
            if part.reducer in self._group.members:
                self._group.members[part.reducer].reduced += 1
        self._count += 1
        # Every link in turn has to move at most two vectors for itself and what it adds up.
        slowest = min(min(link.up, link.down) for link in links)
        guess = MIN_WAIT_SECONDS + 4.0 * num_values * (2 + len(links)) / slowest
        self._expected_seconds = guess
        return RoundPlan(
            number=round_number_of(self._term, self._count),
            step=self._holder.step,
            senders=tuple(senders),
            slices=slices,
            codec=self._compute.settings.codec,
            within_seconds=max(MIN_WAIT_SECONDS, guess * self._patience.deadline_seconds(1.0)),
        )

    def _link(self, name: str, *, sends: bool) -> Link:
        if name in self._group.members:
            member = self._group.members[name]
            is_ready = member.is_at(self._holder.position) or not member.join_request.holds_state
            return member.link(
                sends=sends,
                can_reduce=is_ready and name not in self._unreliable_reducers,
                slowed=self._slowed.get(name, 1.0),
            )
        own = GroupMember(
            name,
            certificate=None,  # ty: ignore[invalid-argument-type]
            join_request=JoinRequest(
                version="", address=self._wire.address, computes=False, holds_state=True
            ),
        )
        link = own.link(sends=sends, can_reduce=True)
        meter = self._wire.meter
        up, down = meter.up.per_second or link.up, meter.down.per_second or link.down
        return dataclasses.replace(link, up=up, down=down)

    def _address(self, name: str) -> str:
        if name == self._wire.name:
            return self._wire.address or ""
        return self._group.members[name].address or ""

    # --- what happens --------------------------------------------------------------------------

    async def hold(self, plan: RoundPlan) -> RoundOutcome:
        """Gathers the means of all slices; or says who is to blame that there are none."""
        started = time.monotonic()
        gathering = {
            part.reducer: asyncio.ensure_future(self._gather(plan, part)) for part in plan.slices
        }
        await self._push_departed_sum(plan)
        everything = asyncio.gather(*gathering.values(), return_exceptions=True)
        departed = await self._watch(plan, gathering, everything)
        failed = departed if not everything.done() else {}
        for part in plan.slices:
            task = gathering[part.reducer]
            if task.done() and (error := task.exception()) is not None:
                self._unreliable_reducers.add(part.reducer)
                failed.setdefault(part.reducer, f"it does not add up its slice: {error}")
            elif task.done():
                for sender, reason in task.result()[1].items():
                    self._group.ban(sender, reason)
                    failed.setdefault(sender, f"refused: {reason}")
        if not failed and not all(task.done() for task in gathering.values()):
            failed = await self._late_peers(plan, gathering)
        if failed:
            for task in gathering.values():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await everything
            return RoundOutcome([], failed)
        self._patience.add((time.monotonic() - started) / self._expected_seconds)
        return RoundOutcome([gathering[part.reducer].result()[0] for part in plan.slices], {})

    async def _watch(
        self,
        plan: RoundPlan,
        gathering: dict[str, asyncio.Task[Any]],
        everything: asyncio.Future[Any],
    ) -> dict[str, str]:
        """Until all is there, or something is known to have failed, or time is up; who is gone."""
        deadline = time.monotonic() + plan.within_seconds
        concerned = {one.name for one in plan.senders} | set(gathering)
        departed: dict[str, str] = {}
        while not everything.done() and time.monotonic() < deadline and not departed:
            await asyncio.wait([everything], timeout=CHECK_SECONDS)
            departed = dict.fromkeys(
                concerned & set(self._group.silent_members()),
                "it fell silent in the middle of an averaging",
            )
            departed |= {
                name: self._group.departed.get(name, "it has left")
                for name in concerned - set(self._group.members) - {self._wire.name}
            }
            early = [task for task in gathering.values() if task.done()]
            if any(task.exception() or task.result()[1] for task in early):
                break
        return departed

    async def _gather(self, plan: RoundPlan, part: Slice) -> tuple[bytes, dict[str, str]]:
        """The coded mean of one slice, or whom its reducer has refused."""
        if part.reducer == self._wire.name:
            slot = await self._holder.reducer.slot(plan.number, part.start, part.stop)
            content, _, refused = await self._holder.reducer.outcome(slot)
            return content, refused
        body = MeanRequest(
            round_number=plan.number, step=plan.step, start=part.start, stop=part.stop
        )
        mean, content = await self._wire.ask(
            part.address, "fetch", body, MeanReply, within_seconds=3 * plan.within_seconds
        )
        if not mean.refused:
            decoded(content, plan.codec, part.stop - part.start)  # as long as it should be
        known = {one.name for one in plan.senders}
        return content, {who: why for who, why in mean.refused.items() if who in known}

    async def _late_peers(
        self, plan: RoundPlan, gathering: dict[str, asyncio.Task[Any]]
    ) -> dict[str, str]:
        """The deadline has passed: asks reducers whose parts they miss."""
        late: dict[str, str] = {}
        expected = {one.name for one in plan.senders}
        for part in plan.slices:
            if gathering[part.reducer].done():
                continue
            try:
                arrived = await self._arrived(plan, part)
            except PEER_ERRORS:
                self._unreliable_reducers.add(part.reducer)
                late[part.reducer] = "it took a slice and does not answer"
                continue
            for name in expected - arrived:
                late[name] = f"its part did not arrive within {plan.within_seconds:.1f} s"
                self._slowed[name] = 2.0 * self._slowed.get(name, 1.0)
            if not expected - arrived:
                self._unreliable_reducers.add(part.reducer)
                late[part.reducer] = "it took a slice and does not give the sum"
        return late

    async def _arrived(self, plan: RoundPlan, part: Slice) -> set[str]:
        """Whose parts a reducer has."""
        if part.reducer == self._wire.name:
            return set(self._holder.reducer.arrived(plan.number))
        answer, _ = await self._wire.ask(
            part.address,
            "arrived",
            ArrivedRequest(round_number=plan.number),
            ArrivedReply,
            within_seconds=2 * MIN_WAIT_SECONDS,
        )
        return set(answer.senders)

    async def _push_departed_sum(self, plan: RoundPlan) -> None:
        """Sums of peers that have left are the leader's own contribution."""
        departed_sum = self._group.departed_sum
        if departed_sum is None or self._wire.name not in {one.name for one in plan.senders}:
            return
        encode = codec_of(plan.codec).encode
        for part in plan.slices:
            content = encode(departed_sum[part.start : part.stop])
            if part.reducer == self._wire.name:
                slot = await self._holder.reducer.slot(plan.number, part.start, part.stop)
                self._holder.reducer.push(slot, self._wire.name, content)
                continue
            body = PushRequest(
                round_number=plan.number, step=plan.step, start=part.start, stop=part.stop
            )
            with contextlib.suppress(*PEER_ERRORS):
                await self._wire.ask(
                    part.address,
                    "push",
                    body,
                    Ack,
                    payload=content,
                    within_seconds=plan.within_seconds,
                )
