"""The leading backbone: it has each step's rows computed and averaged, and takes the step.

A step is closed when every row of its batch is in exactly one peer's sum and the leader has the
whole mean. Until then nothing has happened. If a peer dies, its rows are free again, others compute
them, and the round is held again without it. So each step equals a step of one large machine,
whichever peers come and go.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dipaco.control.members.swarms import GroupStep
from dipaco.errors import Diverged
from dipaco.swarm.leading.gradient_checks import GradientChecks
from dipaco.swarm.leading.group import CHECK_SECONDS, OnBanned, SwarmGroup
from dipaco.swarm.leading.rounds import RoundFailed, Rounds
from dipaco.swarm.leading.service import LeaderService, PastMeans, PublishedState
from dipaco.swarm.leading.sum_checks import NOT_FINITE
from dipaco.swarm.network.messages import (
    RUN_OVER,
    ClosedStep,
    GroupState,
    RoundPlan,
    RunOverview,
    digest,
    lineage_after,
)
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.planning.track_records import IdleVolunteers
from dipaco.swarm.training.slices import decoded_mean
from dipaco.swarm.training.state_holder import StateHolder
from dipaco.swarm.training.sum_sketch import sketch_of


class StepOutcome(NamedTuple):
    """A closed step, for the process of its leader."""

    closed: ClosedStep
    record: GroupStep


class Leader:
    """Leads a group, phase by phase."""

    def __init__(
        self,
        wire: Wire,
        holder: StateHolder,
        *,
        say: Callable[[str], None] = lambda sentence: None,
        on_refused: Callable[[str, str], None] = lambda sender, reason: None,
        on_banned: OnBanned = lambda certificate, session, reason, evidence: (),
    ):
        self._wire, self._holder, self._compute = wire, holder, holder.compute
        settings, self._say = holder.compute.settings, say
        self.group = SwarmGroup(wire.name, settings, say, on_refused, on_banned)
        self._past_means = PastMeans(holder.compute.num_values)
        self._published = PublishedState(wire.name)
        self._rounds = Rounds(
            wire, holder, self.group, lambda plan: self._published.publish(plan=plan)
        )
        self._checks = GradientChecks(
            holder.compute, self.group, self._rounds.sums, self._rounds.past.note_withheld
        )
        self._service = LeaderService(
            wire, holder, self.group, self._rounds, self._published, self._past_means, on_refused
        )
        self._service.lent = self._checks.lent
        self._last_senders: Set[str] | None = None  # senders in the last leader's rounds
        self._idle = IdleVolunteers()
        self._averaging_seconds = 0.0  # duration of the last averaging

    def answer_with(self, overview: Callable[[], RunOverview]) -> None:
        """Sets the reply to peers that ask how the run is."""
        self._service.overview = overview

    @property
    def is_leading(self) -> bool:
        return self._service.is_leading

    def num_volunteers(self) -> int:
        """Number of volunteers that compute here, or wait until this backbone leads, without idle
        ones. Each call looks once more. Time in an averaging does not count against them, nor as
        long a time after it, in which they fetch the mean.
        """
        here = self.group.members if self.is_leading else {}
        computing = {name: one for name, one in here.items() if one.join_request.computes}
        useful = {name: one.useful_at for name, one in computing.items()}
        has_rows = self.group_state.is_open and not self.group.ledger.is_complete
        limits = {
            name: self._averaging_seconds + one.block_deadline_seconds
            if one.seconds_per_block
            else 0.0
            for name, one in computing.items()
        }
        idle = self._idle.look(useful, has_rows, time.monotonic(), limits)
        return len((self._service.waiting() | computing.keys()) - idle)

    @property
    def group_state(self) -> GroupState:
        return self._published.value

    # --- phases --------------------------------------------------------------------------------

    def start_leading(self) -> None:
        self._service.is_leading = True

    def stop_leading(self) -> None:
        """Notes that another backbone leads."""
        self._service.is_leading = False

    def begin_phase(
        self, backbones: tuple[str, ...], *, last_senders: Set[str] | None = None
    ) -> None:
        """Begins a phase, or goes on, at the holder's state. `last_senders`: see `begin_step`."""
        self.start_leading()
        self._service.backbones, self._last_senders = backbones, last_senders
        self._rounds.begin_term()
        self._published.publish(**self._holder.position._asdict(), plan=None, backbones=backbones)

    def end_phase(self) -> None:
        self._published.publish(is_open=False, plan=None)

    def end(self, why: str = RUN_OVER) -> None:
        """Announces the end of the run to all peers that ask. It need not lead."""
        self._service.end = why
        self._published.publish(is_open=False, end=why, plan=None)

    def num_untold(self) -> int:
        """Number of peers that do not know yet that the run is finished."""
        return len(self._service.untold())

    def update_backbones(self, addresses: tuple[str, ...], revoked: tuple[str, ...]) -> None:
        """Takes the ledger's present addresses, and serials of revoked credentials."""
        self._service.backbones = addresses
        if not self.is_leading:
            return
        if (addresses, revoked) != (self.group_state.backbones, self.group_state.revoked):
            self._published.publish(backbones=addresses, revoked=revoked)
        self._wire.verifier.revoked = frozenset(revoked)
        for member in list(self.group.members.values()):
            if member.certificate.serial in revoked:
                self.group.remove(member.name, "its credential was revoked")

    # --- a step --------------------------------------------------------------------------------

    async def take_step(
        self,
        batch: Mapping[str, np.ndarray],
        learning_rate: float,
        should_stop: Callable[[], bool],
        steps: int = 1,
    ) -> StepOutcome | None:
        """Takes one step of the group. None if `should_stop` before it was closed. `steps`: local
        ones that the batch is for. Raises `Diverged`.
        """
        here, started = self._holder, time.monotonic()
        assert here.state is not None
        self.group.begin_step(
            here.step,
            self._compute.targets_of_blocks(batch),
            last_senders=self._last_senders,
            lineage=here.lineage,
            start=self._compute.start_of(here.state),
            batch=batch,
        )
        self._last_senders = None
        self._published.publish(step=here.step, lineage=here.lineage, is_open=True, plan=None)
        while True:
            if not await self._all_rows_summed(should_stop):
                return None
            plan = self._rounds.publish(self._rounds.plan())
            loss = self.group.rows.mean_loss  # a member that goes takes its loss along
            rows, averaged_at = self.group.rows, time.monotonic()
            self._checks.begin(plan, rows)
            try:
                contents = await self._rounds.hold(plan)
                failed = await self._checks.settle(self._rounds.plan_held, rows)
                if not failed:
                    break
            except RoundFailed as error:
                failed = error.failed
                await self._refuse_not_finite(plan, error.not_finite)
            senders = {one.name for one in plan.senders}
            for name, reason in failed.items():
                # Suspension is no penalty without rows: it adds up nothing for a while.
                self.group.remove_failed(name, reason, counts=name in senders)
            self._published.publish(plan=None)
        if checkers := self._checks.to_take:
            self._rounds.publish(msgspec.structs.replace(self._rounds.plan_held, checkers=checkers))
            await self._checks.wait_until_taken()
        self._averaging_seconds = time.monotonic() - averaged_at
        if not math.isfinite(loss) and not math.isfinite(loss := await self._checks.loss_of(rows)):
            raise Diverged(step=len(self._holder.losses) + 1, loss=loss)
        blocks_by_peer = {one.name: list(one.blocks) for one in plan.senders}
        self.group.count(blocks_by_peer)
        closed = self._closed(plan, contents, learning_rate, loss, steps)
        mean = decoded_mean(plan.codec, plan.slices, contents)
        sketch = await asyncio.to_thread(sketch_of, mean, closed.after.encode(), 0)
        await here.advance(mean, closed)
        self._past_means.add(closed, contents)
        past = tuple(
            one
            for one in (*self.group_state.closed, closed)
            if self._past_means.can_catch_up_from(one.step, one.before)
        )
        self._published.publish(step=here.step, lineage=here.lineage, plan=None, closed=past)
        record = GroupStep(
            step=closed.step,
            lineage=closed.after,
            loss=loss,
            targets=plan.targets,
            seconds=time.monotonic() - started,
            blocks=blocks_by_peer,
            sketch=tuple(sketch),  # the seed is the lineage
            steps=steps,
        )
        return StepOutcome(closed, record)

    async def _refuse_not_finite(self, plan: RoundPlan, names: Set[str]) -> None:
        """Bans the senders of parts that are not finite. Raises `Diverged`: the leader finds the
        same for one's rows, so that it is nobody's fault.
        """
        blocks_of = {one.name: one.blocks for one in plan.senders}
        for name in sorted(names):
            if not await self._checks.is_finite(blocks_of[name], self.group.rows):
                raise Diverged(step=len(self._holder.losses) + 1, loss=math.nan)
        for name in names - {self._wire.name}:
            self.group.ban(name, NOT_FINITE)

    async def _all_rows_summed(self, should_stop: Callable[[], bool]) -> bool:
        """Waits until every row is in a peer's sum. False if `should_stop`."""
        group = self.group
        while not group.ledger.is_complete:
            if should_stop():
                return False
            group.check_members()
            if group.should_wake():
                self._published.publish()
            await group.changed.wait(CHECK_SECONDS)
        return not should_stop()

    def _closed(
        self, plan: RoundPlan, contents: list[bytes], learning_rate: float, loss: float, steps: int
    ) -> ClosedStep:
        digests = tuple(map(digest, contents))
        before = self._holder.lineage
        return ClosedStep(
            step=self._holder.step,
            before=before,
            after=lineage_after(before, digests, learning_rate),
            round_number=plan.number,
            slices=plan.slices,
            digests=digests,
            codec=plan.codec,
            learning_rate=learning_rate,
            loss=loss,
            steps=steps,
        )

    def status(self) -> dict[str, Any]:
        """The JSON values that `dipaco status` shows."""
        meter, losses = self._wire.meter, self._holder.losses
        return {
            "step": self._holder.step,
            "is_open": self.group_state.is_open,
            "loss": losses[-1] if losses else None,
            "leader_address": self._wire.address,
            "bytes_up": meter.bytes_up,
            "bytes_down": meter.bytes_down,
            "adds_up": self._adds_up(),
            "checks": {"due": self._checks.num_due, "done": self._checks.num_checked},
        } | self.group.status()

    def _adds_up(self) -> dict[str, float]:
        """Each peer's share of the gradient that it has added up in the last step."""
        slices = self.group_state.closed[-1].slices if self.group_state.closed else ()
        return {
            part.reducer: round((part.stop - part.start) / self._compute.num_values, 3)
            for part in slices
        }
