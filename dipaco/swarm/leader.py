"""The backbone that leads: leases the rows of each step, has the group average, takes the step.

A step is closed when every row of its batch is in exactly one peer's sum and the leader has the
mean, whole. Until then nothing has happened: who dies takes its rows back to the ledger, others
compute them, and the round is held again without it. Reducers that die lose nothing, since senders
keep their sums until the step is closed. So each step is that of one large machine, whoever comes
and goes.
"""

import asyncio
import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

import dipaco
from dipaco.errors import BadMessage, SwarmRefuses
from dipaco.swarm.codecs import codec_of
from dipaco.swarm.compute import pack_rows
from dipaco.swarm.deadlines import Durations
from dipaco.swarm.holder import Holder, decoded
from dipaco.swarm.leases import BlockLedger, blocks_to_lease
from dipaco.swarm.members import Member
from dipaco.swarm.messages import (
    Arrived,
    AskArrived,
    AskManifest,
    AskMean,
    AskSettings,
    Board,
    Bye,
    Closed,
    Done,
    Fetch,
    Hello,
    Leased,
    Listen,
    Manifest,
    Mean,
    Plan,
    Push,
    Sender,
    Slice,
    Welcome,
    Work,
    digest,
    lineage_after,
    number_of_round,
)
from dipaco.swarm.peer import NOT_LEADING, PEER_ERRORS, UNKNOWN
from dipaco.swarm.progress import Estimate, Refreshing, estimate, refresh_seconds
from dipaco.swarm.shares import cut, shares_of_links
from dipaco.swarm.state import CHUNK_BYTES
from dipaco.swarm.wire import Answer, Question, Wire

TICK_SECONDS = 0.1
LEAST_PATIENCE_SECONDS = 1.0  # what an operating system may keep a process waiting
SECONDS_AT_STAKE = 20.0  # of a peer's work, lent at once
KEPT_MEANS_BYTES = 512 << 20  # of past steps, for peers that are late


class Closing:
    """What the leader tells its process when a step is closed."""

    def __init__(
        self, closed: Closed, rows: dict[str, tuple[int, ...]], targets: float, seconds: float
    ):
        self.closed, self.rows, self.targets, self.seconds = closed, rows, targets, seconds


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
        holder: Holder,
        *,
        refreshing: Refreshing | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        on_refused: Callable[[str, str], None] = lambda sender, reason: None,
    ):
        assert holder.compute is not None
        self._wire, self._holder, self._compute = wire, holder, holder.compute
        self._refreshing = refreshing or Refreshing()
        self._say, self._on_refused = say, on_refused
        self.members: dict[str, Member] = {}
        self.gone: dict[str, str] = {}  # who left, and how
        self.is_leading = False
        self._backbones: tuple[str, ...] = ()
        self._banned: dict[str, str] = {}  # session -> why
        self._poor_reducers: set[str] = set()  # took a slice once and did not give it
        self._slowed: dict[str, float] = {}  # so much slower than it says, since it was late
        self._ledger = BlockLedger(-1, 0)
        self._was_lent: set[tuple[str, int]] = set()  # in this step, to whom
        self._has_woken = False
        self._batch: Mapping[str, np.ndarray] = {}
        self._losses: dict[int, tuple[float, float]] = {}  # block -> loss, targets
        self._gift: np.ndarray | None = None  # sums of who has left
        self._era, self._rounds = 0, 0
        self._patience = Durations()  # how long rounds took, over what was expected of them
        self._expected_seconds = 1.0  # of the round that is held
        self._looked_at = time.monotonic()  # for who is silent
        self._offered: Manifest | None = None
        self._means: dict[tuple[int, str], list[tuple[int, int, bytes]]] = {}
        self._board = Board(
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
        self._board_changed = asyncio.Event()
        self._ledger_changed = asyncio.Event()
        for method, body, handle in (
            ("settings", AskSettings, self._settings),
            ("hello", Hello, self._hello),
            ("listen", Listen, self._listen),
            ("work", Work, self._work),
            ("manifest", AskManifest, self._manifest),
            ("mean", AskMean, self._mean),
            ("bye", Bye, self._bye),
        ):
            wire.answers(method, body, handle)

    # --- leading -------------------------------------------------------------------------------

    def begin_phase(self, backbones: tuple[str, ...]) -> None:
        """The holder has the state that the phase begins, or goes on, with."""
        self.is_leading, self._backbones = True, backbones
        self._era, self._rounds = secrets.randbits(30), 0
        here = self._holder
        self._publish(
            origin=here.origin,
            step=here.step,
            lineage=here.lineage,
            is_open=True,
            plan=None,
            backbones=backbones,
        )

    def end_phase(self) -> None:
        self._publish(is_open=False, plan=None)

    def end(self) -> None:
        """The run needs nobody any more."""
        self._publish(is_open=False, is_over=True, plan=None)

    def knows_backbones(self, addresses: tuple[str, ...], revoked: tuple[str, ...]) -> None:
        """What the run's ledger says by now."""
        self._backbones = addresses
        if not self.is_leading:
            return
        if (addresses, revoked) != (self._board.backbones, self._board.revoked):
            self._publish(backbones=addresses, revoked=revoked)
        self._wire.verifier.revoked = frozenset(revoked)
        for member in list(self.members.values()):
            if member.certificate.serial in revoked:
                self._refuse(member.name, "its pass was revoked")

    async def take_step(
        self,
        batch: Mapping[str, np.ndarray],
        learning_rate: float,
        should_stop: Callable[[], bool],
    ) -> Closing | None:
        """One group step; None where it was told to stop before it was closed."""
        here, started = self._holder, time.monotonic()
        settings = self._compute.settings
        self._batch, self._losses, self._gift = batch, {}, None
        self._ledger = BlockLedger(here.step, settings.num_blocks)
        self._was_lent, self._has_woken = set(), False
        self._publish(step=here.step, lineage=here.lineage, plan=None)
        while True:
            while not self._ledger.is_complete:
                if should_stop():
                    return None
                self._look_after_members()
                await _soon(self._ledger_changed, TICK_SECONDS)
                self._ledger_changed.clear()
            if should_stop():
                return None
            plan = self._make_plan()
            self._count_reducers(plan)
            here.reducer.begin(plan)
            self._publish(plan=plan)
            round_started = time.monotonic()
            contents, failed = await self._hold_round(plan)
            if not failed:
                break
            for name, reason in failed.items():
                self._lose(name, reason)
            self._publish(plan=None)
        self._patience.saw((time.monotonic() - round_started) / self._expected_seconds)
        rows = self._ledger.contributors
        for name, blocks in rows.items():
            if name in self.members:
                self.members[name].counted += len(blocks)
        closed = self._close(plan, contents, learning_rate)
        mean = np.concatenate(
            [
                decoded(content, plan.codec, part.stop - part.start)
                for part, content in zip(plan.slices, contents, strict=True)
            ]
        )
        await here.advance(mean, closed)
        self._remember_mean(closed, contents)
        kept = {(step, lineage) for step, lineage in self._means}
        past = tuple(one for one in (*self._board.closed, closed) if (one.step, one.before) in kept)
        self._publish(step=here.step, lineage=here.lineage, plan=None, closed=past)
        return Closing(closed, rows, plan.targets, time.monotonic() - started)

    def _close(self, plan: Plan, contents: list[bytes], learning_rate: float) -> Closed:
        digests = tuple(map(digest, contents))
        before = self._holder.lineage
        loss = sum(loss for loss, _ in self._losses.values()) / max(plan.targets, 1.0)
        return Closed(
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

    def _remember_mean(self, closed: Closed, contents: list[bytes]) -> None:
        self._means[closed.step, closed.before] = [
            (part.start, part.stop, content)
            for part, content in zip(closed.slices, contents, strict=True)
        ]
        size = 4 * self._compute.num_values
        while len(self._means) > max(1, min(16, KEPT_MEANS_BYTES // max(size, 1))):
            del self._means[next(iter(self._means))]

    # --- the group -----------------------------------------------------------------------------

    def _publish(self, **changes: Any) -> None:
        fields = {"number": self._board.number + 1, "refresh_seconds": self.refresh_seconds()}
        self._board = msgspec.structs.replace(self._board, **(fields | changes))
        self._board_changed.set()
        self._board_changed = asyncio.Event()

    def progress(self) -> Estimate:
        """How far the group is towards its step."""
        now, rows = time.monotonic(), self._compute.settings.block_rows
        reports = [
            member.report(len(self._ledger.done_by(member.name)) * rows, rows, now, is_current=True)
            for member in self.members.values()
            if member.hello.computes
        ]
        return estimate(reports, self._compute.settings.inner.batch_size, now)

    def refresh_seconds(self) -> float:
        return refresh_seconds(self.progress(), self._refreshing)

    def _look_after_members(self) -> None:
        """Who is silent for too long is gone; leases that ran out are others'."""
        for name in self._silent():
            self._lose(name, "it fell silent")
        for name, blocks in self._ledger.expire(time.monotonic()).items():
            self._say(f"{name} is late with {len(blocks)} blocks; others get them")
        if self._ledger.num_free:
            self._wake_idle()

    def _silent(self) -> list[str]:
        """Who has not been heard of for longer than one may expect; not counting the time that
        this process itself was kept from listening.
        """
        now = time.monotonic()
        away_seconds = now - self._looked_at - 2 * TICK_SECONDS
        self._looked_at, found = now, []
        if away_seconds > 0:
            for member in self.members.values():
                member.silent_since = min(now, member.silent_since + away_seconds)
        for name, member in self.members.items():
            patience = max(LEAST_PATIENCE_SECONDS, member.silences.deadline_seconds(0.3))
            if member.silent_seconds() > patience:
                found.append(name)
        return found

    def _wake_idle(self) -> None:
        """Rows are free again, and those who wait for the next step do not know."""
        idle = any(
            member.hello.computes and not self._ledger.held_by(name)
            for name, member in self.members.items()
        )
        if idle and self._ledger.num_done and not self._has_woken:
            self._has_woken = True
            self._publish()

    def _lose(self, name: str, reason: str) -> None:
        """A member is gone, with what it had."""
        member = self.members.pop(name, None)
        freed = self._ledger.drop(name)
        for block in freed:
            self._losses.pop(block, None)
        self._has_woken = False
        if name == self._wire.name:
            self._gift = None
        if member is not None:
            self.gone[name] = reason
            self._say(f"{name} is gone: {reason}" + (f"; {len(freed)} blocks" if freed else ""))
        self._ledger_changed.set()

    def _refuse(self, name: str, reason: str) -> None:
        """A member is sent away, for this session."""
        self._banned[name] = reason
        self._on_refused(name, reason)
        self._lose(name, f"refused: {reason}")

    def status(self) -> dict[str, Any]:
        """What `dipaco status` shows: JSON values."""
        rows = self._compute.settings.block_rows
        progress, meter = self.progress(), self._wire.meter
        losses = self._holder.losses
        return {
            "step": self._holder.step,
            "is_open": self._board.is_open,
            "samples": self._ledger.num_done * rows,
            "target": self._compute.settings.inner.batch_size,
            "samples_per_second": progress.samples_per_second,
            "loss": losses[-1] if losses else None,
            "leader_address": self._wire.address,
            "bytes_up": meter.bytes_up,
            "bytes_down": meter.bytes_down,
            "peers": {
                name: {
                    "kind": _as(member.hello).strip(" ()") or "computes",
                    "samples_per_second": member.blocks_per_second.per_second * rows,
                    "samples": member.counted * rows,
                    "bytes_up": member.said.bytes_up if member.said else 0,
                    "bytes_down": member.said.bytes_down if member.said else 0,
                    "seconds": time.monotonic() - member.joined_at,
                }
                for name, member in sorted(self.members.items())
            },
            "gone": dict(list(self.gone.items())[-20:]),
        }

    # --- rounds --------------------------------------------------------------------------------

    def _make_plan(self) -> Plan:
        """Who sends, who adds up how much, and how long it may take."""
        contributors = self._ledger.contributors
        names = [self._wire.name, *sorted(self.members)]
        here = (self._holder.origin, self._holder.step, self._holder.lineage)
        links, senders = [], []
        for name in names:
            sends = name in contributors
            if sends:
                blocks = contributors[name]
                targets = sum(self._losses[block][1] for block in blocks)
                senders.append(Sender(name=name, blocks=blocks, targets=targets))
            links.append(self._link(name, here, sends=sends))
        codec = self._compute.settings.codec
        num_values = self._compute.num_values
        slices = tuple(
            Slice(start=part.start, stop=part.stop, reducer=name, address=self._address(name))
            for name, part in zip(names, cut(shares_of_links(links), num_values), strict=True)
            if part.stop > part.start
        )
        self._rounds += 1
        # Every link in turn has to move at most two vectors for itself and what it adds up.
        slowest = min(min(link.up, link.down) for link in links)
        guess = LEAST_PATIENCE_SECONDS + 4.0 * num_values * (2 + len(links)) / slowest
        self._expected_seconds = guess
        return Plan(
            number=number_of_round(self._era, self._rounds),
            step=self._holder.step,
            senders=tuple(senders),
            slices=slices,
            codec=codec,
            within_seconds=max(
                LEAST_PATIENCE_SECONDS, guess * self._patience.deadline_seconds(1.0)
            ),
        )

    def _link(self, name: str, here: tuple[str, int, str], *, sends: bool) -> Any:
        if name in self.members:
            member = self.members[name]
            is_ready = member.is_at(here) or not member.hello.holds_state
            return member.link(
                sends=sends,
                can_reduce=is_ready and name not in self._poor_reducers,
                slowed=self._slowed.get(name, 1.0),
            )
        own = Member(
            name,
            certificate=None,  # ty: ignore[invalid-argument-type]
            hello=Hello(version="", address=self._wire.address, computes=False, holds_state=True),
        )
        link = own.link(sends=sends, can_reduce=True)
        meter = self._wire.meter
        up, down = meter.up.per_second or link.up, meter.down.per_second or link.down
        return dataclasses.replace(link, up=up, down=down)

    def _address(self, name: str) -> str:
        if name == self._wire.name:
            return self._wire.address or ""
        return self.members[name].address or ""

    def _count_reducers(self, plan: Plan) -> None:
        for part in plan.slices:
            if part.reducer in self.members:
                self.members[part.reducer].reduced += 1

    async def _hold_round(self, plan: Plan) -> tuple[list[bytes], dict[str, str]]:
        """Gathers the means of all slices; or says who is to blame that there are none."""
        gathering = {
            part.reducer: asyncio.ensure_future(self._gather(plan, part)) for part in plan.slices
        }
        await self._push_gift(plan)
        everything = asyncio.gather(*gathering.values(), return_exceptions=True)
        deadline = time.monotonic() + plan.within_seconds
        concerned = {one.name for one in plan.senders} | set(gathering)
        gone: dict[str, str] = {}
        while not everything.done() and time.monotonic() < deadline and not gone:
            await asyncio.wait([everything], timeout=TICK_SECONDS)
            gone = dict.fromkeys(
                concerned & set(self._silent()), "it fell silent in the middle of an averaging"
            )
            gone |= {
                name: self.gone.get(name, "it has left")
                for name in concerned - set(self.members) - {self._wire.name}
            }
            early = [task for task in gathering.values() if task.done()]
            if any(task.exception() or task.result()[1] for task in early):
                break
        failed = gone if not everything.done() else {}
        for part in plan.slices:
            task = gathering[part.reducer]
            if task.done() and (error := task.exception()) is not None:
                self._poor_reducers.add(part.reducer)
                failed.setdefault(part.reducer, f"it does not add up its slice: {error}")
            elif task.done():
                for sender, reason in task.result()[1].items():
                    self._refuse(sender, reason)
                    failed.setdefault(sender, f"refused: {reason}")
        if not failed and not all(task.done() for task in gathering.values()):
            failed = await self._who_is_late(plan, gathering)
        if failed:
            for task in gathering.values():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await everything
            return [], failed
        return [gathering[part.reducer].result()[0] for part in plan.slices], {}

    async def _gather(self, plan: Plan, part: Slice) -> tuple[bytes, dict[str, str]]:
        if part.reducer == self._wire.name:
            slot = await self._holder.reducer.slot(plan.number, part.start, part.stop)
            content, _, refused = await self._holder.reducer.outcome(slot)
            return content, refused
        body = Fetch(round_number=plan.number, step=plan.step, start=part.start, stop=part.stop)
        mean, content = await self._wire.ask(
            part.address, "fetch", body, Mean, within_seconds=3 * plan.within_seconds
        )
        if not mean.refused:
            decoded(content, plan.codec, part.stop - part.start)  # as long as it should be
        known = {one.name for one in plan.senders}
        return content, {who: why for who, why in mean.refused.items() if who in known}

    async def _who_is_late(self, plan: Plan, gathering: dict[str, Any]) -> dict[str, str]:
        """The deadline has passed: asks reducers whose parts they miss."""
        late: dict[str, str] = {}
        expected = {one.name for one in plan.senders}
        for part in plan.slices:
            if gathering[part.reducer].done():
                continue
            if part.reducer == self._wire.name:
                arrived = self._holder.reducer.arrived(plan.number)
            else:
                try:
                    answer, _ = await self._wire.ask(
                        part.address,
                        "arrived",
                        AskArrived(round_number=plan.number),
                        Arrived,
                        within_seconds=2 * LEAST_PATIENCE_SECONDS,
                    )
                    arrived = answer.senders
                except PEER_ERRORS:
                    self._poor_reducers.add(part.reducer)
                    late[part.reducer] = "it took a slice and does not answer"
                    continue
            for name in expected - set(arrived):
                late[name] = f"its part did not arrive within {plan.within_seconds:.1f} s"
                self._slowed[name] = 2.0 * self._slowed.get(name, 1.0)
            if not expected - set(arrived):
                self._poor_reducers.add(part.reducer)
                late[part.reducer] = "it took a slice and does not give the sum"
        return late

    async def _push_gift(self, plan: Plan) -> None:
        """Sums of peers that have left are the leader's own contribution."""
        if self._gift is None or self._wire.name not in {one.name for one in plan.senders}:
            return
        encode = codec_of(plan.codec).encode
        for part in plan.slices:
            content = encode(self._gift[part.start : part.stop])
            if part.reducer == self._wire.name:
                slot = await self._holder.reducer.slot(plan.number, part.start, part.stop)
                self._holder.reducer.push(slot, self._wire.name, content)
                continue
            body = Push(round_number=plan.number, step=plan.step, start=part.start, stop=part.stop)
            with contextlib.suppress(*PEER_ERRORS):
                await self._wire.ask(
                    part.address,
                    "push",
                    body,
                    Done,
                    payload=content,
                    within_seconds=plan.within_seconds,
                )

    # --- answers -------------------------------------------------------------------------------

    async def _hello(self, body: Hello, question: Question) -> Answer:
        if not self.is_leading:
            return self._welcome(), b""
        if question.sender in self._banned:
            raise SwarmRefuses(reason=self._banned[question.sender])
        settings = self._compute.settings
        if body.version != dipaco.__version__:
            reason = f"it runs dipaco {body.version}; this group runs {dipaco.__version__}"
            self._on_refused(question.sender, reason)
            raise SwarmRefuses(reason=reason)
        if body.config and body.config != settings.digest:
            reason = "it trains another config than this group"
            self._on_refused(question.sender, reason)
            raise SwarmRefuses(reason=reason)
        self._ledger.drop(question.sender)
        self.members[question.sender] = Member(question.sender, question.certificate, body)
        self.gone.pop(question.sender, None)
        self._say(f"{question.sender} is here{_as(body)}")
        return self._welcome(), b""

    def _welcome(self) -> Welcome:
        if not self.is_leading:
            return Welcome(leader="", backbones=self._backbones)
        settings = self._compute.settings
        return Welcome(
            leader=self._wire.name,
            settings=settings.to_json(),
            config=settings.digest,
            backbones=self._backbones,
        )

    async def _settings(self, body: AskSettings, question: Question) -> Answer:
        return self._welcome(), b""

    def _member(self, question: Question) -> Member:
        if not self.is_leading:
            raise SwarmRefuses(reason=NOT_LEADING)
        if question.sender in self._banned:
            raise SwarmRefuses(reason=self._banned[question.sender])
        if question.sender not in self.members:
            raise SwarmRefuses(reason=UNKNOWN)
        return self.members[question.sender]

    async def _listen(self, body: Listen, question: Question) -> Answer:
        member = self._member(question)
        member.listens(body)
        try:
            deadline = time.monotonic() + self._board.refresh_seconds
            while (body.leader, body.known) == (self._board.leader, self._board.number):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                await _soon(self._board_changed, left)
        finally:
            member.falls_silent()
        if question.sender not in self.members:
            self._member(question)  # says why
        return self._board, b""

    async def _work(self, body: Work, question: Question) -> Answer:
        member, name = self._member(question), question.sender
        at = body.step, body.lineage
        if at != (self._holder.step, self._holder.lineage) or not self._board.is_open:
            return Leased(accepted=(), blocks=(), within_seconds=0.0), b""
        if body.forget:
            for block in self._ledger.drop(name):
                self._losses.pop(block, None)
            self._ledger_changed.set()
            return Leased(accepted=(), blocks=(), within_seconds=0.0), b""
        accepted = tuple(one.block for one in body.done if self._accept(member, one))
        blocks: tuple[int, ...] = ()
        within = 0.0
        if body.wants and self._board.plan is None:
            blocks, within = self._lease(member)
        rows = [self._compute.rows_of(self._batch, block) for block in blocks]
        self._ledger_changed.set()
        return Leased(accepted=accepted, blocks=blocks, within_seconds=within), pack_rows(rows)

    def _accept(self, member: Member, one: Any) -> bool:
        rows_before = one.block in self._ledger.done_by(member.name)
        if not 0 <= one.block < len(self._ledger):
            self._refuse(member.name, f"it claims block {one.block}, which there is not")
            raise SwarmRefuses(reason=self._banned[member.name])
        settings = self._compute.settings
        is_sane = np.isfinite(one.loss) and 0 <= one.targets <= (
            settings.block_rows * settings.length
        )
        if not is_sane:
            self._refuse(member.name, f"it says that a block has a loss of {one.loss}")
            raise SwarmRefuses(reason=self._banned[member.name])
        if not self._ledger.finish(member.name, one.block):
            if (member.name, one.block) not in self._was_lent:
                self._refuse(
                    member.name, f"it claims rows of block {one.block}, which it never had"
                )
                raise SwarmRefuses(reason=self._banned[member.name])
            return False
        if not rows_before:
            member.blocks_done += 1
            member.block_seconds.saw(one.seconds)
            member.blocks_per_second = member.blocks_per_second.after(1, max(one.seconds, 1e-6))
            self._losses[one.block] = one.loss, one.targets
        return True

    def _lease(self, member: Member) -> tuple[tuple[int, ...], float]:
        rates = [
            other.blocks_per_second.per_second
            for other in self.members.values()
            if other.hello.computes
        ]
        rate = member.blocks_per_second.per_second
        count = blocks_to_lease(
            self._ledger.num_free, rate, rates, 1.0 / rate if rate else 0.0, SECONDS_AT_STAKE
        )
        within = max(
            LEAST_PATIENCE_SECONDS,
            count * member.block_seconds.deadline_seconds(self._usual_block_seconds()),
        )
        lease = self._ledger.lease(member.name, count, time.monotonic() + within)
        if lease is None:
            return (), 0.0
        self._was_lent |= {(member.name, block) for block in lease.blocks}
        return lease.blocks, within

    def _usual_block_seconds(self) -> float:
        """Of the slowest that we know; a minute where we know nobody."""
        known = [
            1.0 / member.blocks_per_second.per_second
            for member in self.members.values()
            if member.blocks_per_second.per_second > 0
        ]
        return max(known, default=60.0)

    async def _manifest(self, body: AskManifest, question: Question) -> Answer:
        self._member(question)
        codec_of(body.codec)
        here, offered = self._holder, self._offered
        # Those who fetch the state of some steps ago are not made to begin anew: whoever has it
        # catches up by the means of the steps since.
        if (
            offered is None
            or offered.origin != here.origin
            or (
                (offered.step, offered.lineage) not in self._means
                and (offered.step, offered.lineage) != (here.step, here.lineage)
            )
        ):
            here.keep(here.step)
            self._publish(keep=here.step)
            offered = self._offered = self._offer(here.at)
        kept = await here.kept_bytes(offered.step, offered.lineage, body.codec)
        digests = await asyncio.to_thread(lambda: kept.digests)
        return msgspec.structs.replace(offered, digests=digests), b""

    def _offer(self, at: tuple[str, int, str]) -> Manifest:
        """The state that is held now, and who has it."""
        donors = [
            member.address
            for member in self.members.values()
            # Who has only just come may hold what it was told, not what it has reached.
            if member.address
            and member.is_at(at)
            and member.said is not None
            and member.said.steps_taken > 0
            and member.said.is_exact
        ]
        return Manifest(
            origin=at[0],
            step=at[1],
            lineage=at[2],
            chunk_bytes=CHUNK_BYTES,
            digests=(),
            donors=(*donors, self._wire.address or ""),
            losses=tuple(self._holder.losses),
        )

    async def _mean(self, body: AskMean, question: Question) -> Answer:
        self._member(question)
        for start, stop, content in self._means.get((body.step, body.before), []):
            if (start, stop) == (body.start, body.stop):
                return Done(), content
        raise BadMessage(problem=f"the mean of step {body.step} is not kept any more")

    async def _bye(self, body: Bye, question: Question) -> Answer:
        member = self._member(question)
        here, name = self._holder, member.name
        is_in_round = self._board.plan is not None
        is_ours = (body.step, body.lineage) == (here.step, here.lineage)
        if question.payload and is_ours and not is_in_round:
            values = decoded(question.payload, "none", self._compute.num_values)
            # What it reported meanwhile may not be in its sum any more, but nothing else is.
            if np.isfinite(values).all() and set(body.blocks) <= set(self._ledger.done_by(name)):
                self._ledger.hand_over(name, body.blocks, self._wire.name)
                self._gift = values if self._gift is None else self._gift + values
        self._lose(name, "it has left")
        return Done(), b""


def _as(hello: Hello) -> str:
    kinds = []
    if hello.address is None:
        kinds.append("a client")
    if not hello.computes:
        kinds.append("only adds up" if not hello.holds_state else "a backbone")
    return f" ({', '.join(kinds)})" if kinds else ""


async def _soon(event: asyncio.Event, within_seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_seconds):
            await event.wait()
