"""The backbone that leads: it has each step's rows computed and averaged, and takes the step.

A step is closed when every row of its batch is in exactly one peer's sum and the leader has the
whole mean. Until then nothing has happened: the rows of a peer that dies are free again, others
compute them, and the round is held again without it. So each step is that of one large machine,
whichever peers come and go.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dipaco.swarm.leading.gradient_checks import GradientChecks
from dipaco.swarm.leading.group import CHECK_SECONDS, OnBanned, SwarmGroup
from dipaco.swarm.leading.past_means import PastMeans
from dipaco.swarm.leading.published_state import PublishedState, wait_until_set
from dipaco.swarm.leading.rounds import Rounds
from dipaco.swarm.leading.service import LeaderService
from dipaco.swarm.network.messages import (
    ClosedStep,
    GroupState,
    RoundPlan,
    RunOverview,
    digest,
    lineage_after,
)
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.planning.progress import RefreshSettings
from dipaco.swarm.training.slices import decoded_mean
from dipaco.swarm.training.state_holder import StateHolder


class StepOutcome(NamedTuple):
    """A closed step, for the process of its leader."""

    closed: ClosedStep
    blocks_by_peer: dict[str, tuple[int, ...]]
    targets: float
    seconds: float


class Leader:
    """Leads a group, phase by phase.

    Args:
      wire, holder: of this backbone.
      refreshing: how often peers poll.
      say: called with a sentence about what happens.
      on_refused: called with (peer, reason).
      on_banned: as for `SwarmGroup`.
    """

    def __init__(
        self,
        wire: Wire,
        holder: StateHolder,
        *,
        refreshing: RefreshSettings | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        on_refused: Callable[[str, str], None] = lambda sender, reason: None,
        on_banned: OnBanned = lambda certificate, session, reason, evidence: (),
    ):
        assert holder.compute is not None
        self._wire, self._holder, self._compute = wire, holder, holder.compute
        settings = holder.compute.settings
        self.group = SwarmGroup(wire.name, settings, say, on_refused, on_banned)
        self._rounds = Rounds(wire, holder, self.group)
        self._checks = GradientChecks(holder.compute, self.group)
        self._past_means = PastMeans(holder.compute.num_values)
        self._published = PublishedState(wire.name, self.group, refreshing or RefreshSettings())
        self._service = LeaderService(
            wire, holder, self.group, self._published, self._past_means, on_refused
        )
        self._service.on_unreached = self._rounds.note_unreached
        self._service.accepts_departed = self._checks.accepts
        self._takes_over = False

    def answer_with(self, overview: Callable[[], RunOverview]) -> None:
        """What is said to who asks how the run is."""
        self._service.overview = overview

    @property
    def is_leading(self) -> bool:
        return self._service.is_leading

    def num_hands(self) -> int:
        """Volunteers that compute here, or wait until this backbone leads."""
        here = self.group.members.values() if self.is_leading else ()
        return self._service.num_waiting() + sum(one.join_request.computes for one in here)

    @property
    def group_state(self) -> GroupState:
        return self._published.value

    # --- phases --------------------------------------------------------------------------------

    def start_leading(self) -> None:
        self._service.is_leading = True

    def stop_leading(self) -> None:
        """Another backbone leads."""
        self._service.is_leading = False

    def begin_phase(self, backbones: tuple[str, ...], *, takes_over: bool = False) -> None:
        """The holder has the state that the phase begins, or goes on, with.

        Args:
          backbones: their addresses.
          takes_over: another has led until now, and its peers may bring rows of the next step.
        """
        self.start_leading()
        self._service.backbones, self._takes_over = backbones, takes_over
        self._rounds.begin_term()
        self._published.publish(**self._holder.position._asdict(), plan=None, backbones=backbones)

    def end_phase(self) -> None:
        self._published.publish(is_open=False, plan=None)

    def end(self) -> None:
        """The run is finished; peers leave."""
        self._published.publish(is_open=False, is_over=True, plan=None)

    def update_backbones(self, addresses: tuple[str, ...], revoked: tuple[str, ...]) -> None:
        """What the run's ledger has now: addresses, and serials of revoked credentials."""
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
    ) -> StepOutcome | None:
        """One step of the group; None where `should_stop` before it was closed."""
        here, started = self._holder, time.monotonic()
        assert here.state is not None
        self._service.batch = batch
        targets = self._compute.targets_of_blocks(batch)
        self.group.begin_step(here.step, targets, takes_over=self._takes_over)
        self._takes_over = False
        self._published.publish(step=here.step, lineage=here.lineage, is_open=True, plan=None)
        while True:
            if not await self._all_rows_summed(should_stop):
                return None
            plan = self._rounds.plan()
            losses = list(self.group.losses.values())  # a member that goes takes its own along
            here.reducer.begin(plan)
            self._published.publish(plan=plan)
            self._checks.begin(plan, here.state.parts, batch)
            contents, failed = await self._rounds.hold(plan)
            failed |= await self._checks.settle(plan, self._rounds.spots) if contents else {}
            if not failed and contents:
                break
            for name, reason in failed.items():
                self.group.remove_failed(name, reason)
            self._published.publish(plan=None)
        blocks_by_peer = {one.name: one.blocks for one in plan.senders}
        self.group.count(blocks_by_peer)
        loss = sum(losses) / max(plan.targets, 1.0)
        closed = self._closed(plan, contents, learning_rate, loss)
        await here.advance(decoded_mean(plan.codec, plan.slices, contents), closed)
        self._past_means.add(closed, contents)
        past = tuple(
            one
            for one in (*self.group_state.closed, closed)
            if self._past_means.can_catch_up_from(one.step, one.before)
        )
        self._published.publish(step=here.step, lineage=here.lineage, plan=None, closed=past)
        return StepOutcome(closed, blocks_by_peer, plan.targets, time.monotonic() - started)

    async def _all_rows_summed(self, should_stop: Callable[[], bool]) -> bool:
        """Waits until every row is in a peer's sum; False where `should_stop`."""
        group = self.group
        while not group.ledger.is_complete:
            if should_stop():
                return False
            group.check_members()
            if group.should_wake():
                self._published.publish()
            await wait_until_set(group.changed, CHECK_SECONDS)
            group.changed.clear()
        return not should_stop()

    def _closed(
        self, plan: RoundPlan, contents: list[bytes], learning_rate: float, loss: float
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
        )

    def status(self) -> dict[str, Any]:
        """What `dipaco status` shows: JSON values."""
        meter, losses = self._wire.meter, self._holder.losses
        return {
            "step": self._holder.step,
            "is_open": self.group_state.is_open,
            "loss": losses[-1] if losses else None,
            "leader_address": self._wire.address,
            "bytes_up": meter.bytes_up,
            "bytes_down": meter.bytes_down,
        } | self.group.status()
