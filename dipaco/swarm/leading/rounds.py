"""Rounds of averaging, planned and watched by their leader.

Senders commit themselves to their parts and send them, reducers give means, and last senders show
sketches (`training.sum_sketch`). A round ends with the mean of every slice, or with the names of
members without which the next is held. A reducer that dies loses nothing, since senders keep their
sums until the step is closed. A part that its reducer has not got goes through the leader, which so
sees who is at fault: a sender if the leader has not got the part either, else the reducer.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Collection

import msgspec

from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.leading.group import CHECK_SECONDS, SwarmGroup
from dipaco.swarm.leading.leasing import MIN_WAIT_SECONDS
from dipaco.swarm.leading.members import ASSUMED_BYTES_PER_SECOND
from dipaco.swarm.leading.sum_checks import SumChecks
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import (
    DIGEST_BYTES,
    ArrivedReply,
    ArrivedRequest,
    RoundPlan,
    Sender,
    Slice,
    round_number_of,
)
from dipaco.swarm.network.streams import Signal
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.shares import Link, capped, cut, shares_of_links
from dipaco.swarm.planning.timing import Durations, round_seconds_of
from dipaco.swarm.planning.track_records import PastRounds, holder_of
from dipaco.swarm.training.slices import check_part, fetch_mean, push_part
from dipaco.swarm.training.state_holder import StateHolder

# Shares of a step's time so far: a part that is not waited for is computed again.
PATIENCE, MAX_PATIENCE_SECONDS = 0.1, 15.0
SEED_BYTES = 16
BRING_SECONDS = 5.0  # shortest limit for commitments and sketches, which are short
# Largest share of the gradient that the sessions of one credential's name add up.
MAX_SHARE = 0.5


class RoundFailed(Exception):
    """A round is to be held again. `failed`: member -> reason. Without any, a reducer was set
    aside. `not_finite`: senders of a part that is not finite.
    """

    def __init__(self, failed: dict[str, str], not_finite: frozenset[str] = frozenset()):
        super().__init__(str(failed))
        self.failed, self.not_finite = failed, not_finite


class Rounds:
    """Plans rounds and holds them."""

    def __init__(
        self,
        wire: Wire,
        holder: StateHolder,
        group: SwarmGroup,
        publish: Callable[[RoundPlan], None],
    ):
        self._wire, self._holder, self._group = wire, holder, group
        self._compute, self._publish_plan = holder.compute, publish
        self.sums = SumChecks(wire, holder.reducer)
        self.past = PastRounds()
        # (sender, reducer) pairs of this round whose parts went through this backbone
        self._forwarded: set[tuple[str, str]] = set()
        self._plan: RoundPlan | None = None  # plan of this round
        self._commitments: dict[str, bytes] = {}  # of this round's senders
        self._news = Signal()  # set when a sender has committed itself, or shown sketches
        self._term = 0
        self._durations = Durations()  # ratios of rounds' durations to the expected ones
        self._expected_seconds = 1.0  # expected duration of the current round

    def begin_term(self) -> None:
        """Begins this backbone's term as the leader."""
        self._term = secrets.randbits(30)
        self.past.begin_term()
        self._forwarded, self._plan = set(), None

    # --- what senders bring --------------------------------------------------------------------

    def commit(self, round_number: int, sender: str, digests: bytes) -> None:
        """A sender commits itself to its parts, once. Raises as `take_sketches`."""
        plan = self._plan_of(round_number, sender)
        if len(digests) != DIGEST_BYTES * len(plan.slices):
            raise BadMessage(problem=f"it has {len(digests)} bytes of digests")
        if plan.commitments is None:
            self._commitments.setdefault(sender, digests)
            self._news.set()

    def take_sketches(self, round_number: int, sender: str, content: bytes) -> None:
        """Raises `SwarmRefuses`, `BadMessage`."""
        plan = self._plan_of(round_number, sender)
        if plan.seed:
            self.sums.take(plan, sender, content)
            self._news.set()

    def slice_to_forward(self, round_number: int, sender: str, reducer: str) -> Slice:
        """The slice of a reducer to which a part is passed on. Raises `SwarmRefuses`."""
        plan = self._plan_of(round_number, sender)
        for part in plan.slices:
            if plan.commitments and part.reducer == reducer != self._wire.name:
                return part
        raise SwarmRefuses(reason="only parts of a round are passed on, to its reducers")

    async def forward(self, round_number: int, sender: str, reducer: str, content: bytes) -> None:
        """Passes a part on to its reducer. Raises `SwarmRefuses`, `BadMessage`."""
        part = self.slice_to_forward(round_number, sender, reducer)
        plan = self.plan_held
        check_part(plan, part, sender, content)
        self._forwarded.add((sender, reducer))
        try:
            await push_part(self._wire, self._holder.reducer, plan, part, content, sender=sender)
        except PEER_ERRORS as error:
            reason = f"{reducer} does not take it from here either"
            raise SwarmRefuses(reason=reason) from error

    def _plan_of(self, round_number: int, sender: str) -> RoundPlan:
        plan = self._plan
        if plan is None or plan.number != round_number:
            raise SwarmRefuses(reason="that round is not held now")
        if sender not in {one.name for one in plan.senders}:
            raise SwarmRefuses(reason=f"{sender} has nothing to add in that round")
        return plan

    @property
    def plan_held(self) -> RoundPlan:
        """The plan of this round, with all that became known since."""
        assert self._plan is not None
        return self._plan

    def publish(self, plan: RoundPlan) -> RoundPlan:
        """Tells all peers of a round, or of news in its plan."""
        self._plan = plan
        self._holder.reducer.begin(plan)
        self._publish_plan(plan)
        return plan

    # --- planning ------------------------------------------------------------------------------

    def plan(self) -> RoundPlan:
        """The senders, the slice of each reducer, and the longest duration of the round."""
        blocks_by_peer = self._group.ledger.blocks_by_peer
        self.past.set_aside_unreached(self._forwarded, set(blocks_by_peer))
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
        holders = ["", *map(holder_of, names[1:])]
        shares = capped(shares_of_links(links), holders, MAX_SHARE)
        slices = tuple(
            Slice(start=part.start, stop=part.stop, reducer=name, address=self._address(name))
            for name, part in zip(names, cut(shares, num_values), strict=True)
            if part.stop > part.start
        )
        self.past.count += 1
        self._forwarded, self._commitments, self.sums.sketches = set(), {}, {}
        is_alone = all(part.reducer == self._wire.name for part in slices)
        self._plan = RoundPlan(
            number=round_number_of(self._term, self.past.count),
            step=self._holder.step,
            senders=tuple(senders),
            slices=slices,
            codec=self._compute.settings.codec,
            within_seconds=self._within_seconds(links),
            commitments=() if is_alone else None,
        )
        return self._plan

    def _within_seconds(self, links: list[Link]) -> float:
        step_seconds, num_values = self._group.rows.seconds, self._compute.num_values
        expected, most = round_seconds_of(links, num_values, MIN_WAIT_SECONDS, step_seconds)
        self._expected_seconds = expected
        learned = expected * self._durations.deadline_seconds(1.0)
        patience = min(PATIENCE * step_seconds, MAX_PATIENCE_SECONDS)
        return max(MIN_WAIT_SECONDS, min(learned, most), patience)

    def _link(self, name: str, *, sends: bool) -> Link:
        if name in self._group.members:
            member = self._group.members[name]
            return member.link(
                sends=sends,
                can_reduce=member.holds(self._holder.lineage) and self.past.may_add_up(name),
                slowdown=self.past.slowdown(name),
            )
        meter = self._wire.meter
        return Link(
            up=meter.up.per_second or ASSUMED_BYTES_PER_SECOND,
            down=meter.down.per_second or ASSUMED_BYTES_PER_SECOND,
            can_reduce=self._wire.address is not None,
            sends=sends,
        )

    def _address(self, name: str) -> str:
        if name == self._wire.name:
            return self._wire.address or ""
        return self._group.members[name].address or ""

    # --- holding a round -----------------------------------------------------------------------

    async def hold(self, plan: RoundPlan) -> list[bytes]:
        """Gathers the coded means of all slices. Raises `RoundFailed`."""
        started = time.monotonic()
        gathering: dict[str, asyncio.Task[bytes]] = {}
        try:
            plan = await self._all_committed(plan)
            for part in plan.slices:
                gathering[part.reducer] = asyncio.ensure_future(self._gather(plan, part))
            contents = await self._all_means(plan, gathering)
            if plan.commitments:
                plan = await self._all_sketches(plan)
            await self._look_at(plan, contents)
        finally:
            for task in gathering.values():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*gathering.values(), return_exceptions=True)
        self._durations.add((time.monotonic() - started) / self._expected_seconds)
        senders = [one.name for one in plan.senders]
        self.past.note_good([part.reducer for part in plan.slices], senders)
        return contents

    async def _all_committed(self, plan: RoundPlan) -> RoundPlan:
        """Waits until all senders have committed themselves, and tells everyone to what."""
        if plan.commitments is not None:
            return plan
        names = [one.name for one in plan.senders]
        await self._all_bring(plan, self._commitments, "it did not commit itself to its part")
        commitments = tuple(self._commitments[name] for name in names)
        return self.publish(msgspec.structs.replace(plan, commitments=commitments))

    async def _all_sketches(self, plan: RoundPlan) -> RoundPlan:
        """Draws the seed, now that no mean can be changed, and waits for all senders' sketches."""
        seed = secrets.token_bytes(SEED_BYTES)
        plan = self.publish(msgspec.structs.replace(plan, seed=seed, missing=()))
        await self._all_bring(plan, self.sums.sketches, "it did not show the sketch of its part")
        return plan

    async def _all_bring(self, plan: RoundPlan, brought: Collection[str], reason: str) -> None:
        """Waits until all senders have brought something. Raises `RoundFailed`."""
        deadline = time.monotonic() + max(plan.within_seconds, BRING_SECONDS)
        names = {one.name for one in plan.senders}
        while missing := names - set(brought):
            if gone := self._gone(missing):
                raise RoundFailed(gone)
            if time.monotonic() > deadline:
                for name in missing:
                    self.past.note_late(name)
                raise RoundFailed(dict.fromkeys(sorted(missing), reason))
            await self._news.wait(CHECK_SECONDS)

    async def _all_means(
        self, plan: RoundPlan, gathering: dict[str, asyncio.Task[bytes]]
    ) -> list[bytes]:
        """The coded mean of every slice. Raises `RoundFailed`: there is none of one, and why."""
        if not await self._are_there(plan, gathering):
            missing = tuple(sorted(await self._missing(plan, gathering)))
            plan = self.publish(msgspec.structs.replace(plan, missing=missing))
            if not await self._are_there(plan, gathering):
                self._raise_late(plan, await self._missing(plan, gathering))
        return [gathering[part.reducer].result() for part in plan.slices]

    async def _are_there(self, plan: RoundPlan, gathering: dict[str, asyncio.Task[bytes]]) -> bool:
        """Waits until all means are there, or time is up. Raises as `_raise_failures`."""
        deadline = time.monotonic() + plan.within_seconds
        while time.monotonic() < deadline:
            _, waiting = await asyncio.wait(gathering.values(), timeout=CHECK_SECONDS)
            self._raise_failures(plan, gathering)
            if not waiting:
                return True
        return False

    def _raise_failures(self, plan: RoundPlan, gathering: dict[str, asyncio.Task[bytes]]) -> None:
        """Raises `RoundFailed` if a reducer has given no mean, or a member is gone."""
        failed: dict[str, str] = {}
        senders = {one.name for one in plan.senders}
        is_open = not all(task.done() for task in gathering.values())
        gone = self._gone(senders | set(gathering)) if is_open else {}
        for part in plan.slices:
            task = gathering[part.reducer]
            if task.done() and (error := task.exception()) is not None:
                self.past.note_unreliable(part.reducer)
                failed[part.reducer] = f"it does not add up its slice: {error}"
            elif not task.done() and part.reducer in gone.keys() - senders:
                self.past.note_unreliable(part.reducer)  # its senders are suspended instead
        if gone or failed:
            raise RoundFailed(gone | failed)

    def _gone(self, names: Collection[str]) -> dict[str, str]:
        """Those of these members that are gone, and why."""
        quiet = "it fell silent in the middle of an averaging"
        gone = dict.fromkeys(set(names) & set(self._group.silent_members()), quiet)
        return gone | {
            name: self._group.departed.get(name, "it has left")
            for name in set(names) - set(self._group.members) - {self._wire.name}
        }

    async def _missing(
        self, plan: RoundPlan, gathering: dict[str, asyncio.Task[bytes]]
    ) -> set[tuple[str, str]]:
        """(sender, reducer) of each part that its reducer has not got. Raises `RoundFailed`: a
        reducer does not answer, or misses none and gives no sum.
        """
        expected = {one.name for one in plan.senders}
        missing: set[tuple[str, str]] = set()
        failed: dict[str, str] = {}
        for part in plan.slices:
            if gathering[part.reducer].done():
                continue
            try:
                arrived = await self._arrived(plan, part)
            except PEER_ERRORS:
                failed[part.reducer] = "it took a slice and does not answer"
                continue
            missing |= {(name, part.reducer) for name in expected - arrived}
            if not expected - arrived:
                failed[part.reducer] = "it took a slice and does not give the sum"
        for reducer in failed:
            self.past.note_unreliable(reducer)
        if failed:
            raise RoundFailed(failed)
        return missing

    def _raise_late(self, plan: RoundPlan, missing: Collection[tuple[str, str]]) -> None:
        """Raises `RoundFailed` for parts that were missed twice. If the leader has the part, its
        reducer is set aside, and stays.
        """
        late: dict[str, str] = {}
        for sender, reducer in missing:
            if (sender, reducer) in self._forwarded:
                self.past.set_aside(reducer)
            elif sender not in late:
                late[sender] = f"its part did not arrive within {2 * plan.within_seconds:.1f} s"
                self.past.note_late(sender)
        raise RoundFailed(late)

    async def _look_at(self, plan: RoundPlan, contents: list[bytes]) -> None:
        """Raises `RoundFailed` if a mean is wrong or not finite. A peer that has lied is banned."""
        found = await self.sums.find(plan, contents)
        failed = dict.fromkeys(found.silent, "it does not show what it has added up")
        for reducer in found.silent:
            self.past.note_withheld(reducer)
        for name, lie in found.lies.items():
            self._group.ban(name, lie.reason, lie)
            failed[name] = f"refused: {lie.reason}"
        if failed or found.not_finite:
            raise RoundFailed(failed, found.not_finite)

    async def _gather(self, plan: RoundPlan, part: Slice) -> bytes:
        """The mean of one slice. Raises `PEER_ERRORS`."""
        reducer, within = self._holder.reducer, 4 * plan.within_seconds
        content = await fetch_mean(self._wire, reducer, plan, part, within_seconds=within)
        codec_of(plan.codec).decode(content, part.stop - part.start)  # it has the right length
        return content

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
