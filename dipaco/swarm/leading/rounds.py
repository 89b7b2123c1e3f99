"""Rounds of averaging, planned and watched by their leader.

A round ends with the mean of every slice, or with the names of the members that kept it from
ending. The next one is held without them. A reducer that dies loses nothing, since senders keep
their sums until the step is closed. If a sender and a reducer do not reach each other, the leader
passes the part on (`network.relay`). If that is no help (`planning.relays`) or fails
(`planning.blame`), the next rounds have no slice for that reducer, and both stay.
"""

import asyncio
import contextlib
import secrets
import time
from typing import Any, NamedTuple

from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.leading.group import CHECK_SECONDS, SwarmGroup
from dipaco.swarm.leading.leasing import MIN_WAIT_SECONDS
from dipaco.swarm.leading.members import ASSUMED_BYTES_PER_SECOND, GroupMember
from dipaco.swarm.leading.sum_proofs import SumProofs
from dipaco.swarm.network.messages import (
    ArrivedReply,
    ArrivedRequest,
    RoundPlan,
    Sender,
    Slice,
    round_number_of,
)
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.accusations import Accusations, Judgement
from dipaco.swarm.planning.blame import blame
from dipaco.swarm.planning.deadlines import Durations
from dipaco.swarm.planning.relays import reducers_of_no_help
from dipaco.swarm.planning.round_seconds import round_seconds_of
from dipaco.swarm.planning.shares import Link, cut, shares_of_links
from dipaco.swarm.planning.suspensions import holder_of
from dipaco.swarm.training.reducer import SliceMean
from dipaco.swarm.training.slices import fetch_mean, push_slice
from dipaco.swarm.training.state_holder import StateHolder
from dipaco.swarm.training.sum_proof import SpotPart

# A reducer gets no slice for so long if a sender cannot reach it, or if it alone refuses one.
SET_ASIDE_ROUNDS = 20
MAX_DOUBLINGS = 5  # limit for a reducer that repeatedly did not give its sum
MAX_SLOWDOWN = 32.0  # limit of a late member's slowdown
# Shares of a step's time so far: a part that is not waited for is computed again.
PATIENCE, MAX_PATIENCE_SECONDS = 0.1, 15.0


class RoundOutcome(NamedTuple):
    """The result of a round: means, or members that failed."""

    contents: list[bytes]  # the coded mean of each slice; none if the round must be held again
    failed: dict[str, str]  # member -> reason
    excused: frozenset[str] = frozenset()  # failed members that are not suspended for it


class Rounds:
    """Plans rounds and holds them.

    Args:
      wire, holder: parts of the leading backbone.
      group: its members, and the ledger of the step.
    """

    def __init__(self, wire: Wire, holder: StateHolder, group: SwarmGroup):
        assert holder.compute is not None
        self._wire, self._holder, self._group = wire, holder, group
        self._compute = holder.compute
        self._unreliable: dict[str, int] = {}  # reducers -> how often they did not give their mean
        # reducers, or their holders -> last round without a slice
        self._set_aside: dict[str, int] = {}
        self._unreached: set[tuple[str, str]] = set()  # (sender, reducer) pairs of this round
        # pairs of this round whose parts went through this backbone
        self._relayed: set[tuple[str, str]] = set()
        self._plan: RoundPlan | None = None  # plan of this round
        self._accusations = Accusations(wire.name)
        self._proofs = SumProofs(wire, holder.reducer)
        self._slowdowns: dict[str, float] = {}  # factors by which late members' speeds are divided
        self._term, self._count = 0, 0
        self._durations = Durations()  # ratios of rounds' durations to the expected ones
        self._expected_seconds = 1.0  # expected duration of the current round

    def begin_term(self) -> None:
        """Begins this backbone's term as the leader."""
        self._term, self._count = secrets.randbits(30), 0
        self._accusations.clear()
        self._set_aside.clear()  # its numbers are rounds of the last term
        self._unreached, self._relayed, self._plan = set(), set(), None

    def note_unreached(self, round_number: int, sender: str, reducer: str) -> None:
        """A sender reports that it has no connection to a reducer of a round."""
        if self._term and round_number == round_number_of(self._term, self._count):
            self._unreached.add((sender, reducer))

    def relayed_to(self, round_number: int, sender: str, reducer: str) -> str:
        """The address of a reducer to which a sender's part is passed on.

        Raises:
          SwarmRefuses: they do not belong to the present round.
        """
        plan = self._plan
        to = {} if plan is None else {part.reducer: part.address for part in plan.slices}
        if (
            plan is None
            or plan.number != round_number
            or sender not in {one.name for one in plan.senders}
            or reducer not in set(to) - {self._wire.name}
        ):
            raise SwarmRefuses(reason="only parts of a round are passed on, to its reducers")
        self._relayed.add((sender, reducer))
        return to[reducer]

    @property
    def spots(self) -> dict[str, list[SpotPart]]:
        """Each sender's part of the round, at some values of each slice."""
        return self._proofs.spots

    # --- planning ------------------------------------------------------------------------------

    def plan(self) -> RoundPlan:
        """The senders, the slice of each reducer, and the longest duration of the round."""
        blocks_by_peer = self._group.ledger.blocks_by_peer
        for name in reducers_of_no_help(self._relayed, set(blocks_by_peer)):
            self._set_aside[name] = self._count + SET_ASIDE_ROUNDS
        names = [self._wire.name, *sorted(self._group.members)]
        links, senders = [], []
        for name in names:
            sends = name in blocks_by_peer
            if sends:
                blocks = blocks_by_peer[name]
                targets = sum(self._group.rows.targets[block] for block in blocks)
                senders.append(Sender(name=name, blocks=blocks, targets=targets))
            links.append(self._link(name, sends=sends))
        num_values = self._compute.num_values
        slices = tuple(
            Slice(start=part.start, stop=part.stop, reducer=name, address=self._address(name))
            for name, part in zip(names, cut(shares_of_links(links), num_values), strict=True)
            if part.stop > part.start
        )
        self._count += 1
        self._unreached, self._relayed = set(), set()
        self._proofs.begin_round()
        self._plan = RoundPlan(
            number=round_number_of(self._term, self._count),
            step=self._holder.step,
            senders=tuple(senders),
            slices=slices,
            codec=self._compute.settings.codec,
            within_seconds=self._within_seconds(links),
        )
        return self._plan

    def _within_seconds(self, links: list[Link]) -> float:
        step_seconds, num_values = self._group.rows.seconds, self._compute.num_values
        length = round_seconds_of(links, num_values, MIN_WAIT_SECONDS, step_seconds)
        self._expected_seconds = length.expected
        learned = length.expected * self._durations.deadline_seconds(1.0)
        patience = min(PATIENCE * step_seconds, MAX_PATIENCE_SECONDS)
        return max(MIN_WAIT_SECONDS, min(learned, length.most), patience)

    def _link(self, name: str, *, sends: bool) -> Link:
        if name in self._group.members:
            member = self._group.members[name]
            until = max(self._set_aside.get(one, -1) for one in (name, holder_of(name)))
            return member.link(
                sends=sends,
                can_reduce=self._is_ready(member) and until < self._count,
                slowdown=self._slowdowns.get(name, 1.0),
            )
        meter = self._wire.meter
        return Link(
            up=meter.up.per_second or ASSUMED_BYTES_PER_SECOND,
            down=meter.down.per_second or ASSUMED_BYTES_PER_SECOND,
            can_reduce=self._wire.address is not None,
            sends=sends,
        )

    def _is_ready(self, member: GroupMember) -> bool:
        """True if it can add up. With delayed updates the next round may begin before peers have
        taken the step. They take it meanwhile.
        """
        here = self._holder
        if member.holds(here.lineage) or not member.join_request.holds_state:
            return True
        return here.before is not None and member.holds(here.before.lineage)

    def _address(self, name: str) -> str:
        if name == self._wire.name:
            return self._wire.address or ""
        return self._group.members[name].address or ""

    # --- holding a round -----------------------------------------------------------------------

    async def hold(self, plan: RoundPlan) -> RoundOutcome:
        """Gathers the means of all slices, or finds the members without which there are none."""
        started = time.monotonic()
        deadline = started + plan.within_seconds
        gathering = {
            part.reducer: asyncio.ensure_future(self._gather(plan, part)) for part in plan.slices
        }
        await self._push_departed_sum(plan)
        everything = asyncio.gather(*gathering.values(), return_exceptions=True)
        gone = await self._watch(plan, gathering, everything, deadline)
        failed = gone if not everything.done() else {}
        senders = {one.name for one in plan.senders}
        refused: dict[str, dict[str, str]] = {}
        for part in plan.slices:
            task = gathering[part.reducer]
            if task.done() and (error := task.exception()) is not None:
                self._note_unreliable(part.reducer)
                failed.setdefault(part.reducer, f"it does not add up its slice: {error}")
            elif task.done() and (lie := task.result().lie) is not None:
                self._group.ban(part.reducer, lie.reason, lie)
                failed[part.reducer] = f"refused: {lie.reason}"
            elif task.done() and task.result().refused:
                refused[part.reducer] = task.result().refused
            elif not task.done() and part.reducer in gone.keys() - senders:
                self._note_unreliable(part.reducer)  # its senders are suspended instead
        found = self._refuse_senders(plan, refused)
        excused = found.unproved - failed.keys()
        for sender, reason in found.left_out.items():
            failed.setdefault(sender, f"refused: {reason}")
        is_held = all(task.done() for task in gathering.values())
        if not failed and not is_held:
            is_early = time.monotonic() < deadline  # other parts may still arrive
            failed = await self._late_members(plan, gathering, is_early=is_early)
        if failed or not is_held:
            for task in gathering.values():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await everything
            # Suspension is no penalty for a member without rows: it adds up nothing for a while.
            excused |= failed.keys() - senders
            return RoundOutcome([], failed, excused)
        self._durations.add((time.monotonic() - started) / self._expected_seconds)
        self._forgive(plan)
        contents = [gathering[part.reducer].result().content for part in plan.slices]
        return RoundOutcome(contents, {})

    def _note_unreliable(self, reducer: str) -> None:
        """A reducer took a slice and did not give its mean, so it adds up nothing for a while."""
        times = self._unreliable.get(reducer, 0)
        self._unreliable[reducer] = times + 1
        rounds = SET_ASIDE_ROUNDS * 2 ** min(times, MAX_DOUBLINGS)
        self._set_aside[reducer] = self._count + rounds

    def _forgive(self, plan: RoundPlan) -> None:
        """The parts of all senders arrived, and all slices were added up."""
        for part in plan.slices:
            if (times := self._unreliable.pop(part.reducer, 0)) > 1:
                self._unreliable[part.reducer] = times - 1
        for one in plan.senders:
            slowdown = self._slowdowns.pop(one.name, 1.0) / 2.0
            if slowdown > 1.0:
                self._slowdowns[one.name] = slowdown

    def _refuse_senders(self, plan: RoundPlan, refused: dict[str, dict[str, str]]) -> Judgement:
        """Bans senders at fault. Returns all senders that reducers have refused, and why."""
        senders = [one.name for one in plan.senders]
        found = self._accusations.judge(refused, senders, holder_of)
        for sender in sorted(found.at_fault - {self._wire.name}):
            self._group.ban(sender, found.left_out[sender])
        for reducer in found.in_doubt:
            self._set_aside[holder_of(reducer)] = self._count + SET_ASIDE_ROUNDS
        return found

    async def _watch(
        self,
        plan: RoundPlan,
        gathering: dict[str, asyncio.Task[SliceMean]],
        everything: asyncio.Future[Any],
        deadline: float,
    ) -> dict[str, str]:
        """Waits until all means are there, a member failed, or time is up. Returns the members of
        the round that are gone.
        """
        concerned = {one.name for one in plan.senders} | set(gathering)
        gone: dict[str, str] = {}
        while not everything.done() and time.monotonic() < deadline and not gone:
            await asyncio.wait([everything], timeout=CHECK_SECONDS)
            gone = dict.fromkeys(
                concerned & set(self._group.silent_members()),
                "it fell silent in the middle of an averaging",
            )
            gone |= {
                name: self._group.departed.get(name, "it has left")
                for name in concerned - set(self._group.members) - {self._wire.name}
            }
            if self._missing_connections(plan, gathering):
                break
            early = [task for task in gathering.values() if task.done()]
            if any(
                task.exception() or task.result().refused or task.result().lie for task in early
            ):
                break
        return gone

    async def _gather(self, plan: RoundPlan, part: Slice) -> SliceMean:
        """The mean of one slice, or the senders that its reducer has refused."""
        found = await fetch_mean(
            self._wire,
            self._holder.reducer,
            plan,
            part,
            within_seconds=3 * plan.within_seconds,
        )
        if part.reducer == self._wire.name:
            self._proofs.note_own(plan, part, found)
            return found
        known = {one.name for one in plan.senders}
        refused = {name: why for name, why in found.refused.items() if name in known}
        if refused:
            return SliceMean(found.content, refused)
        return await self._proofs.proved(plan, part, found.content)

    def _missing_connections(
        self, plan: RoundPlan, gathering: dict[str, asyncio.Task[SliceMean]]
    ) -> set[tuple[str, str]]:
        """The reported pairs (sender, reducer) whose reducer has not given its mean."""
        open_slices = {name for name, task in gathering.items() if not task.done()}
        return self._unreached & {(one.name, to) for one in plan.senders for to in open_slices}

    async def _late_members(
        self,
        plan: RoundPlan,
        gathering: dict[str, asyncio.Task[SliceMean]],
        *,
        is_early: bool,
    ) -> dict[str, str]:
        """Finds why there is no mean: a connection is missing, or the time is up. Only then
        reducers are asked which parts they miss. A reducer that only some senders cannot reach is
        set aside.

        `is_early`: the round's time is not up.
        """
        late: dict[str, str] = {}
        expected = {one.name for one in plan.senders}
        missing = self._missing_connections(plan, gathering)
        for part in () if is_early else plan.slices:
            if gathering[part.reducer].done():
                continue
            try:
                arrived = await self._arrived(plan, part)
            except PEER_ERRORS:
                self._note_unreliable(part.reducer)
                late[part.reducer] = "it took a slice and does not answer"
                continue
            missing |= {(name, part.reducer) for name in expected - arrived}
            if not expected - arrived:
                self._note_unreliable(part.reducer)
                late[part.reducer] = "it took a slice and does not give the sum"
        fault = blame(missing, set(gathering) - {self._wire.name})
        for name in fault.senders:
            late[name] = (
                "it reaches too few of those that add up"
                if is_early
                else f"its part did not arrive within {plan.within_seconds:.1f} s"
            )
            self._slowdowns[name] = min(2.0 * self._slowdowns.get(name, 1.0), MAX_SLOWDOWN)
        for name in fault.reducers:
            self._set_aside[name] = self._count + SET_ASIDE_ROUNDS
        return late

    async def _arrived(self, plan: RoundPlan, part: Slice) -> set[str]:
        """Senders whose parts a reducer has."""
        if part.reducer == self._wire.name:
            return set(self._holder.reducer.arrived(plan.number))
        reply, _ = await self._wire.ask(
            part.address,
            "arrived",
            ArrivedRequest(round_number=plan.number),
            ArrivedReply,
            within_seconds=2 * MIN_WAIT_SECONDS,
            recipient=part.reducer,
        )
        return set(reply.senders)

    async def _push_departed_sum(self, plan: RoundPlan) -> None:
        """Sends the sums of members that left, as the leader. If the reducer refuses a slice, it is
        missing from the round, which is then repeated.
        """
        departed_sum = self._group.rows.departed_sum
        if departed_sum is None or self._wire.name not in {one.name for one in plan.senders}:
            return
        for part in plan.slices:
            with contextlib.suppress(*PEER_ERRORS):
                await push_slice(
                    self._wire,
                    self._holder.reducer,
                    plan,
                    part,
                    departed_sum,
                    within_seconds=plan.within_seconds,
                )
