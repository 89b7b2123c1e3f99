"""A leader's replies to peers: joining, polls, leases of rows, states for newcomers, past means."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dipaco.runs.version import is_this_program, program_version
from dipaco.swarm.errors import BadMessage, SwarmRefuses
from dipaco.swarm.leading.gradient_checks import LentCheck
from dipaco.swarm.leading.group import SwarmGroup
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.leading.rounds import Rounds
from dipaco.swarm.network import messages
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.credentials import printable
from dipaco.swarm.network.differences import WHOLE, StateUpdate, difference
from dipaco.swarm.network.streams import Signal
from dipaco.swarm.network.wire import PeerReply, PeerRequest, Wire
from dipaco.swarm.training.compute import CHUNK_BYTES, pack_rows
from dipaco.swarm.training.state_holder import StateHolder

# A newcomer fetches at most so many means, if a newer state could be offered as well.
MOST_MEANS = 3
WAITING_SECONDS = 5.0  # A volunteer that waits for a leader asks again within this time.
KEPT_STATES = 16  # states from which a difference can be sent


class PublishedState:
    """The latest state of the group."""

    def __init__(self, leader: str):
        self.changed = Signal()
        self._past: dict[int, messages.GroupState] = {}  # keyed by number, the newest last
        self._updates: dict[int, StateUpdate] = {}  # keyed by the number of the base
        self.value = messages.GroupState(leader=leader)

    def publish(self, **changes: Any) -> None:
        """Sets fields of the state. Peers that poll get it at once."""
        self._past[self.value.number], self._updates = self.value, {}
        while len(self._past) > KEPT_STATES:
            del self._past[next(iter(self._past))]
        number = self.value.number + 1
        self.value = msgspec.structs.replace(self.value, number=number, **changes)
        self.changed.set()

    def update_for(self, leader: str, number: int) -> StateUpdate:
        """The update for a peer that knows the state with this number by this leader."""
        known = self._past.get(number) if leader == self.value.leader else None
        if (leader, number) == (self.value.leader, self.value.number):
            known = self.value
        base = WHOLE if known is None else number
        if base not in self._updates:  # most peers know the same state
            self._updates[base] = difference(known, self.value)
        return self._updates[base]


KEPT_BYTES = 512 << 20
MAX_STEPS = 16


class PastMeans:
    """The last means in their coded form."""

    def __init__(self, num_values: int):
        self._max_steps = max(1, min(MAX_STEPS, KEPT_BYTES // max(4 * num_values, 1)))
        self._slices: dict[tuple[int, str], dict[tuple[int, int], bytes]] = {}

    def add(self, closed: messages.ClosedStep, contents: list[bytes]) -> None:
        """Adds a step that was taken, with the mean of each of its slices."""
        self._slices[closed.step, closed.before] = {
            (part.start, part.stop): content
            for part, content in zip(closed.slices, contents, strict=True)
        }
        while len(self._slices) > self._max_steps:
            del self._slices[next(iter(self._slices))]

    def can_catch_up_from(self, step: int, lineage: str) -> bool:
        """True if a peer at that state finds the mean that it needs next."""
        return (step, lineage) in self._slices

    def find(self, request: messages.PastMeanRequest) -> bytes | None:
        of_step = self._slices.get((request.step, request.before), {})
        return of_step.get((request.start, request.stop))


class LeaderService:
    """Handles the requests of peers to their leader."""

    def __init__(
        self,
        wire: Wire,
        holder: StateHolder,
        group: SwarmGroup,
        rounds: Rounds,
        published: PublishedState,
        past_means: PastMeans,
        on_refused: Callable[[str, str], None],
    ):
        self._wire, self._holder, self._compute = wire, holder, holder.compute
        self._group, self._published, self._past_means = group, published, past_means
        self.rounds, self._on_refused = rounds, on_refused
        self.lent: Mapping[str, LentCheck] = {}  # keyed by the checker
        self.is_leading, self.end = False, ""
        self._told: set[str] = set()  # peers that know that the run is over
        self.backbones: tuple[str, ...] = ()  # addresses
        self.overview: Callable[[], messages.RunOverview] = messages.RunOverview
        self._offered: messages.StateManifest | None = None
        self._fetching: set[str] = set()  # members that fetch it
        # Volunteers that asked while this did not lead, and when.
        self._waiting: dict[str, float] = {}
        wire.register("settings", messages.SettingsRequest, self._settings)
        wire.register("run", messages.Ack, self._run)
        wire.register("join", messages.JoinRequest, self._join)
        wire.register("poll", messages.PollRequest, self._poll)
        wire.register("work", messages.WorkRequest, self._work)
        wire.register("manifest", messages.Ack, self._manifest)
        wire.register("held", messages.HeldStateRequest, self._held)
        wire.register("past_mean", messages.PastMeanRequest, self._past_mean)
        wire.register("leave", messages.Ack, self._leave)
        wire.register("check", messages.Ack, self._check)
        wire.register("checked", messages.Ack, self._checked, admits=self._admit_checked)
        wire.register("commit", messages.BringRequest, self._commit)
        wire.register("sketch", messages.BringRequest, self._sketch)
        wire.register("forward", messages.ForwardRequest, self._forward, admits=self._admit_forward)

    # --- joining and leaving -------------------------------------------------------------------

    async def _join(self, body: messages.JoinRequest, request: PeerRequest) -> PeerReply:
        if not self.is_leading or self.end:
            self._note_waiting(request.sender, body.computes)
            return self._group_info(request.sender), b""
        self._group.check_not_banned(request.sender)
        self._group.check_not_locked(request.certificate)
        reason = ""
        if not is_this_program(body.version):
            reason = (
                f"it runs dipaco {printable(body.version)}; this group runs {program_version()}"
            )
        elif body.config and body.config != self._compute.settings.digest:
            reason = "it trains another config than this group"
        if reason:
            self._on_refused(request.sender, reason)
            raise SwarmRefuses(reason=reason)
        address = body.address
        if address is not None:
            address = await self._wire.reached_at(address, request)
        is_reached = body.address is None or address is not None
        body = msgspec.structs.replace(body, address=address)
        self._group.add_member(request.sender, request.certificate, body)
        info = self._group_info(request.sender)
        return msgspec.structs.replace(info, is_reached=is_reached, seen_at=address or ""), b""

    async def _settings(self, body: messages.SettingsRequest, request: PeerRequest) -> PeerReply:
        self._note_waiting(request.sender, body.computes)
        return self._group_info(request.sender), b""

    async def _run(self, body: messages.Ack, request: PeerRequest) -> PeerReply:
        """Every backbone answers, whether it leads or not."""
        self._group.check_not_locked(request.certificate)
        return self.overview(), b""

    def _note_waiting(self, sender: str, computes: bool) -> None:
        if computes and not self.is_leading:
            self._waiting[sender] = time.monotonic()

    def waiting(self) -> frozenset[str]:
        """Volunteers that have asked lately while this backbone did not lead."""
        since = time.monotonic() - WAITING_SECONDS
        self._waiting = {name: at for name, at in self._waiting.items() if at > since}
        return frozenset(self._waiting)

    def untold(self) -> set[str]:
        """Peers that take part, or wait to, and have not been told that the run is over."""
        silent = self._group.silent_members()
        return (self._group.members.keys() | self.waiting()) - self._told - set(silent)

    def _group_info(self, sender: str) -> messages.GroupInfo:
        if self.end:
            self._told.add(sender)
            return messages.GroupInfo(leader="", end=self.end, backbones=self.backbones)
        if not self.is_leading:
            return messages.GroupInfo(leader="", backbones=self.backbones)
        settings, leader = self._compute.settings.to_json(), self._wire.name
        return messages.GroupInfo(leader=leader, settings=settings, backbones=self.backbones)

    async def _leave(self, body: messages.Ack, request: PeerRequest) -> PeerReply:
        self._group.remove(self._member(request).name, "it has left")
        return messages.Ack(), b""

    def _member(self, request: PeerRequest) -> GroupMember:
        """Raises `SwarmRefuses` if it is no member, or if this backbone does not lead."""
        if not self.is_leading:
            raise SwarmRefuses(reason=messages.NOT_LEADING)
        return self._group.member(request.sender)

    # --- the group's state ---------------------------------------------------------------------

    async def _poll(self, body: messages.PollRequest, request: PeerRequest) -> PeerReply:
        member, published = self._member(request), self._published
        member.poll_begins(body)
        try:
            deadline = time.monotonic() + messages.POLL_SECONDS
            while (body.leader, body.known) == (published.value.leader, published.value.number):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                await published.changed.wait(left)
        except asyncio.CancelledError:
            member.has_hung_up = True
            raise
        finally:
            member.poll_ends()
        if request.sender not in self._group.members:
            self._member(request)  # raises, with the reason
        if self.end:
            self._told.add(request.sender)
        return published.update_for(body.leader, body.known), b""

    # --- rows ----------------------------------------------------------------------------------

    async def _work(self, body: messages.WorkRequest, request: PeerRequest) -> PeerReply:
        member, published = self._member(request), self._published.value
        if body.was_late:
            member.time_late_block(self._holder.step)
        here, rows, at = self._holder, self._group.rows, (body.step, body.lineage)
        nothing, is_open = (messages.WorkReply(), b""), rows.at == at  # its rows are this step's
        if not published.is_open or at != (here.step, here.lineage):
            return nothing
        member.works_at = body.lineage
        if body.sum_is_lost:
            if is_open:
                self._group.drop_sum(member.name)
            return nothing
        if body.for_last_leader:
            if not (is_open and self._group.adopt(member, body.done)):
                return nothing
            blocks = tuple(one.block for one in body.done)
            return messages.WorkReply(accepted=blocks), b""
        done = body.done if is_open else ()
        accepted = tuple(one.block for one in done if self._group.accept(member, one))
        lease = messages.WorkReply()
        if body.wants_more and published.plan is None:
            lease = self._group.lease(member)
        payload = [self._compute.rows_of(rows.batch, block) for block in lease.blocks]
        self._group.changed.set()
        if not lease.blocks and member.parked_since is not None:
            lease.why = lease.why or "is parked"
        lease.accepted = accepted
        return lease, pack_rows(payload)

    async def _check(self, body: messages.Ack, request: PeerRequest) -> PeerReply:
        lent = self._lent_to(request)
        lent.taken.set()
        rows = [self._compute.rows_of(lent.rows.batch, block) for block in lent.blocks]
        return lent.rows.leasing(lent.blocks), pack_rows(rows)

    async def _admit_checked(self, body: messages.Ack, request: PeerRequest) -> None:
        self._lent_to(request)

    async def _checked(self, body: messages.Ack, request: PeerRequest) -> PeerReply:
        given = self._lent_to(request).given
        if not given.done():
            given.set_result(codec_of("none").decode(request.payload, self._compute.num_values))
        return messages.Ack(), b""

    def _lent_to(self, request: PeerRequest) -> LentCheck:
        if (lent := self.lent.get(self._member(request).name)) is None:
            raise SwarmRefuses(reason=f"{request.sender} has nothing to check")
        return lent

    # --- averaging -----------------------------------------------------------------------------

    async def _commit(self, body: messages.BringRequest, request: PeerRequest) -> PeerReply:
        self.rounds.commit(body.round_number, self._member(request).name, body.content)
        return messages.Ack(), b""

    async def _sketch(self, body: messages.BringRequest, request: PeerRequest) -> PeerReply:
        self.rounds.take_sketches(body.round_number, self._member(request).name, body.content)
        return messages.Ack(), b""

    async def _admit_forward(self, body: messages.ForwardRequest, request: PeerRequest) -> None:
        name = self._member(request).name
        self.rounds.slice_to_forward(body.round_number, name, body.reducer)

    async def _forward(self, body: messages.ForwardRequest, request: PeerRequest) -> PeerReply:
        """Passes on a part of a sender that has no connection to its reducer."""
        name = self._member(request).name
        await self.rounds.forward(body.round_number, name, body.reducer, request.payload)
        return messages.Ack(), b""

    # --- states and means ----------------------------------------------------------------------

    async def _manifest(self, body: messages.Ack, request: PeerRequest) -> PeerReply:
        self._member(request)
        here, offered = self._holder, self._offered
        if offered is None or not self._is_still_offered(offered):
            here.pin(here.step)
            self._published.publish(pinned_step=here.step)
            offered, self._fetching = self._offer(), set()
        self._offered = offered
        self._fetching.add(request.sender)
        return await self._with_digests(offered), b""

    def _is_still_offered(self, offered: messages.StateManifest) -> bool:
        """True if a state is still offered to newcomers. A state of some steps ago is, while its
        means are kept, to peers that already fetch it and to those that arrive meanwhile: they
        catch up with the means of the later steps.
        """
        here, position = self._holder, offered.position
        if position == here.position:
            return True
        if offered.origin != here.origin:
            return False
        if not self._past_means.can_catch_up_from(offered.step, offered.lineage):
            return False
        members = self._group.members
        fetching = [members[one] for one in self._fetching if one in members]
        is_new = here.step - offered.step <= MOST_MEANS * self._compute.settings.local_steps
        return is_new or any(not one.has_come_to(position) for one in fetching)

    async def _held(self, body: messages.HeldStateRequest, request: PeerRequest) -> PeerReply:
        """Every backbone answers, whether it leads or not."""
        here = self._holder
        if request.certificate.role != "backbone":
            raise SwarmRefuses(reason="only a backbone may ask for it")
        if here.origin != body.origin or here.step < 0:
            raise SwarmRefuses(reason="nothing of that phase is held here")
        here.pin(here.step)
        offered = msgspec.structs.replace(self._offer(), donors=(self._wire.address or "",))
        return await self._with_digests(offered), b""

    async def _with_digests(self, offered: messages.StateManifest) -> messages.StateManifest:
        packed = await self._holder.pinned_bytes(offered.step, offered.lineage)
        digests = await asyncio.to_thread(lambda: packed.digests)
        return msgspec.structs.replace(offered, digests=digests)

    def _offer(self) -> messages.StateManifest:
        """The present state, and the peers that have it."""
        position = self._holder.position
        donors = [
            member.address
            for member in self._group.members.values()
            if member.address and member.can_donate(position)
        ]
        return messages.StateManifest(
            **position._asdict(),
            chunk_bytes=CHUNK_BYTES,
            digests=(),
            donors=(*donors, self._wire.address or ""),
            losses=tuple(self._holder.losses),
        )

    async def _past_mean(self, body: messages.PastMeanRequest, request: PeerRequest) -> PeerReply:
        self._member(request)
        content = self._past_means.find(body)
        if content is None:
            raise BadMessage(problem=f"the mean of step {body.step} is not kept any more")
        return messages.Ack(), content
