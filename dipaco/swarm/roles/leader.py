"""The backbone that leads: leases the rows of each step, has the group average, takes the step.

A step is closed when every row of its batch is in exactly one peer's sum and the leader has the
mean, whole. Until then nothing has happened: who dies takes its rows back to the ledger, others
compute them, and the round is held again without it. So each step is that of one large machine,
whoever comes and goes.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

import dipaco
from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.leading.group import CHECK_SECONDS, SwarmGroup
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.leading.past_means import PastMeans
from dipaco.swarm.leading.rounds import Rounds
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import (
    NOT_LEADING,
    Ack,
    ClosedStep,
    GroupInfo,
    GroupState,
    HeldStateRequest,
    JoinRequest,
    LeaveRequest,
    ManifestRequest,
    PastMeanRequest,
    PollRequest,
    RoundPlan,
    SettingsRequest,
    StateManifest,
    WorkReply,
    WorkRequest,
    digest,
    lineage_after,
)
from dipaco.swarm.network.wire import PeerReply, PeerRequest, Wire
from dipaco.swarm.planning.progress import RefreshSettings, refresh_seconds
from dipaco.swarm.training.compute import pack_rows
from dipaco.swarm.training.state_bytes import CHUNK_BYTES
from dipaco.swarm.training.state_holder import StateHolder, decoded


@dataclasses.dataclass(frozen=True)
class StepOutcome:
    """What the leader tells its process when a step is closed."""

    closed: ClosedStep
    rows: dict[str, tuple[int, ...]]  # peer -> blocks
    targets: float
    seconds: float


class Leader:
    """Leads a group, phase by phase.

    Args:
      wire, holder: of this backbone.
      refreshing: how often peers look.
      say: told what happens, in sentences.
      on_refused: told (who, why).
    """

    def __init__(
        self,
        wire: Wire,
        holder: StateHolder,
        *,
        refreshing: RefreshSettings | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        on_refused: Callable[[str, str], None] = lambda sender, reason: None,
    ):
        assert holder.compute is not None
        self._wire, self._holder, self._compute = wire, holder, holder.compute
        self._refreshing = refreshing or RefreshSettings()
        self._on_refused = on_refused
        self.group = SwarmGroup(wire.name, self._compute.settings, say, on_refused)
        self._rounds = Rounds(wire, holder, self.group)
        self._means = PastMeans(self._compute.num_values)
        self.is_leading = False
        self._backbones: tuple[str, ...] = ()
        self._takes_over = False
        self._batch: Mapping[str, np.ndarray] = {}
        self._offered: StateManifest | None = None
        self.group_state = GroupState(
            number=0,
            leader=wire.name,
            origin="",
            step=-1,
            lineage="",
            is_open=False,
            is_over=False,
            plan=None,
            closed=(),
            keep=-1,
            backbones=(),
            revoked=(),
            refresh_seconds=1.0,
        )
        self._group_state_changed = asyncio.Event()
        for method, body, handle in (
            ("settings", SettingsRequest, self._settings),
            ("hello", JoinRequest, self._hello),
            ("listen", PollRequest, self._listen),
            ("work", WorkRequest, self._work),
            ("manifest", ManifestRequest, self._manifest),
            ("held", HeldStateRequest, self._held),
            ("mean", PastMeanRequest, self._mean),
            ("bye", LeaveRequest, self._bye),
        ):
            wire.register(method, body, handle)

    # --- phases --------------------------------------------------------------------------------

    def begin_phase(self, backbones: tuple[str, ...], *, takes_over: bool = False) -> None:
        """The holder has the state that the phase begins, or goes on, with.

        Args:
          backbones: their addresses.
          takes_over: another has led until now, and its peers may come with rows of the next step.
        """
        self.is_leading, self._backbones, self._takes_over = True, backbones, takes_over
        self._rounds.begin_term()
        here = self._holder
        self._publish(
            origin=here.origin,
            step=here.step,
            lineage=here.lineage,
            plan=None,
            backbones=backbones,
        )

    def end_phase(self) -> None:
        self._publish(is_open=False, plan=None)

    def end(self) -> None:
        """The run needs nobody any more."""
        self._publish(is_open=False, is_over=True, plan=None)

    def update_backbones(self, addresses: tuple[str, ...], revoked: tuple[str, ...]) -> None:
        """What the run's ledger says by now."""
        self._backbones = addresses
        if not self.is_leading:
            return
        if (addresses, revoked) != (self.group_state.backbones, self.group_state.revoked):
            self._publish(backbones=addresses, revoked=revoked)
        self._wire.verifier.revoked = frozenset(revoked)
        for member in list(self.group.members.values()):
            if member.certificate.serial in revoked:
                self.group.ban(member.name, "its pass was revoked")

    # --- a step --------------------------------------------------------------------------------

    async def take_step(
        self,
        batch: Mapping[str, np.ndarray],
        learning_rate: float,
        should_stop: Callable[[], bool],
    ) -> StepOutcome | None:
        """One group step; None where it was told to stop before it was closed."""
        here, started = self._holder, time.monotonic()
        self._batch = batch
        self.group.begin_step(here.step, takes_over=self._takes_over)
        self._takes_over = False
        self._publish(step=here.step, lineage=here.lineage, is_open=True, plan=None)
        while True:
            if not await self._all_rows_summed(should_stop):
                return None
            plan = self._rounds.plan()
            losses = list(self.group.losses.values())  # whoever goes takes its own along
            here.reducer.begin(plan)
            self._publish(plan=plan)
            contents, failed = await self._rounds.hold(plan)
            if not failed:
                break
            for name, reason in failed.items():
                self.group.remove_failed(name, reason)
            self._publish(plan=None)
        rows = {one.name: one.blocks for one in plan.senders}
        self.group.count(rows)
        loss = sum(loss for loss, _ in losses) / max(plan.targets, 1.0)
        closed = self._closed(plan, contents, learning_rate, loss)
        mean = np.concatenate(
            [
                decoded(content, plan.codec, part.stop - part.start)
                for part, content in zip(plan.slices, contents, strict=True)
            ]
        )
        await here.advance(mean, closed)
        self._means.keep(closed, contents)
        past = tuple(
            one
            for one in (*self.group_state.closed, closed)
            if self._means.can_catch_up_from(one.step, one.before)
        )
        self._publish(step=here.step, lineage=here.lineage, plan=None, closed=past)
        return StepOutcome(closed, rows, plan.targets, time.monotonic() - started)

    async def _all_rows_summed(self, should_stop: Callable[[], bool]) -> bool:
        """Waits until every row is in somebody's sum; False where it was told to stop."""
        group = self.group
        while not group.ledger.is_complete:
            if should_stop():
                return False
            group.remove_silent()
            if group.should_wake():
                self._publish()
            await _soon(group.changed, CHECK_SECONDS)
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

    # --- what everybody may know ---------------------------------------------------------------

    def _publish(self, **changes: Any) -> None:
        refresh = refresh_seconds(self.group.progress(), self._refreshing)
        fields = {"number": self.group_state.number + 1, "refresh_seconds": refresh}
        self.group_state = msgspec.structs.replace(self.group_state, **(fields | changes))
        self._group_state_changed.set()
        self._group_state_changed = asyncio.Event()

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

    # --- answers -------------------------------------------------------------------------------

    async def _hello(self, body: JoinRequest, question: PeerRequest) -> PeerReply:
        if not self.is_leading:
            return self._welcome(), b""
        self.group.check_not_banned(question.sender)
        reason = ""
        if body.version != dipaco.__version__:
            reason = f"it runs dipaco {body.version}; this group runs {dipaco.__version__}"
        elif body.config and body.config != self._compute.settings.digest:
            reason = "it trains another config than this group"
        if reason:
            self._on_refused(question.sender, reason)
            raise SwarmRefuses(reason=reason)
        self.group.add_member(question.sender, question.certificate, body)
        return self._welcome(), b""

    def _welcome(self) -> GroupInfo:
        if not self.is_leading:
            return GroupInfo(leader="", backbones=self._backbones)
        settings = self._compute.settings
        return GroupInfo(
            leader=self._wire.name,
            settings=settings.to_json(),
            config=settings.digest,
            backbones=self._backbones,
        )

    async def _settings(self, body: SettingsRequest, question: PeerRequest) -> PeerReply:
        return self._welcome(), b""

    def _member(self, question: PeerRequest) -> GroupMember:
        if not self.is_leading:
            raise SwarmRefuses(reason=NOT_LEADING)
        return self.group.member(question.sender)

    async def _listen(self, body: PollRequest, question: PeerRequest) -> PeerReply:
        member = self._member(question)
        member.listens(body)
        try:
            deadline = time.monotonic() + self.group_state.refresh_seconds
            while (body.leader, body.known) == (self.group_state.leader, self.group_state.number):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                await _soon(self._group_state_changed, left)
        finally:
            member.falls_silent()
        if question.sender not in self.group.members:
            self._member(question)  # says why
        return self.group_state, b""

    async def _work(self, body: WorkRequest, question: PeerRequest) -> PeerReply:
        member = self._member(question)
        position = body.step, body.lineage
        if position != (self._holder.step, self._holder.lineage) or not self.group_state.is_open:
            return WorkReply(accepted=(), blocks=(), within_seconds=0.0), b""
        if body.forget:
            self.group.forget(member.name)
            return WorkReply(accepted=(), blocks=(), within_seconds=0.0), b""
        if body.kept:
            is_ours = self.group.adopt(member, body.done)
            blocks = tuple(one.block for one in body.done) if is_ours else ()
            return WorkReply(accepted=blocks, blocks=(), within_seconds=0.0), b""
        accepted = tuple(one.block for one in body.done if self.group.accept(member, one))
        blocks: tuple[int, ...] = ()
        within = 0.0
        if body.wants_more and self.group_state.plan is None:
            blocks, within = self.group.lease(member)
        rows = [self._compute.rows_of(self._batch, block) for block in blocks]
        self.group.changed.set()
        return WorkReply(accepted=accepted, blocks=blocks, within_seconds=within), pack_rows(rows)

    async def _manifest(self, body: ManifestRequest, question: PeerRequest) -> PeerReply:
        self._member(question)
        codec_of(body.codec)
        here, offered = self._holder, self._offered
        # Those who fetch the state of some steps ago are not made to begin anew: whoever has it
        # catches up by the means of the steps since.
        if (
            offered is None
            or offered.origin != here.origin
            or not (
                self._means.can_catch_up_from(offered.step, offered.lineage)
                or (offered.step, offered.lineage) == (here.step, here.lineage)
            )
        ):
            here.keep(here.step)
            self._publish(keep=here.step)
            offered = self._offered = self._offer(here.position)
        return await self._with_digests(offered, body.codec), b""

    async def _held(self, body: HeldStateRequest, question: PeerRequest) -> PeerReply:
        """Whoever leads; asked by a backbone that has begun anew."""
        here = self._holder
        if question.certificate.role != "backbone":
            raise SwarmRefuses(reason="only a backbone is told")
        if here.origin != body.origin or here.step < 0:
            raise SwarmRefuses(reason="nothing of that phase is held here")
        here.keep(here.step)
        offered = msgspec.structs.replace(
            self._offer(here.position), donors=(self._wire.address or "",)
        )
        return await self._with_digests(offered, "none"), b""

    async def _with_digests(self, offered: StateManifest, codec: str) -> StateManifest:
        kept = await self._holder.pinned_bytes(offered.step, offered.lineage, codec)
        digests = await asyncio.to_thread(lambda: kept.digests)
        return msgspec.structs.replace(offered, digests=digests)

    def _offer(self, position: tuple[str, int, str]) -> StateManifest:
        """The state that is held now, and who has it."""
        donors = [
            member.address
            for member in self.group.members.values()
            # Who has only just come may hold what it was told, not what it has reached.
            if member.address
            and member.is_at(position)
            and member.last_poll is not None
            and member.last_poll.steps_taken > 0
            and member.last_poll.is_exact
        ]
        return StateManifest(
            origin=position[0],
            step=position[1],
            lineage=position[2],
            chunk_bytes=CHUNK_BYTES,
            digests=(),
            donors=(*donors, self._wire.address or ""),
            losses=tuple(self._holder.losses),
        )

    async def _mean(self, body: PastMeanRequest, question: PeerRequest) -> PeerReply:
        self._member(question)
        content = self._means.find(body)
        if content is None:
            raise BadMessage(problem=f"the mean of step {body.step} is not kept any more")
        return Ack(), content

    async def _bye(self, body: LeaveRequest, question: PeerRequest) -> PeerReply:
        member, here = self._member(question), self._holder
        is_ours = (body.step, body.lineage) == (here.step, here.lineage)
        if question.payload and is_ours and self.group_state.plan is None:
            summed = decoded(question.payload, "none", self._compute.num_values)
            self.group.transfer(member.name, body.blocks, summed)
        self.group.remove(member.name, "it has left")
        return Ack(), b""


async def _soon(event: asyncio.Event, within_seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            await event.wait()
