"""A peer that follows: listens to the group's board, takes every step that the group takes, and
sends what it has.

The board is a state, not a stream of orders: whoever misses some of it reads the next. A peer that
is a few steps behind fetches their means and catches up; one that is further, or elsewhere, fetches
the state, in chunks, from several donors.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import jax
import numpy as np

import dipaco
from dipaco.errors import DipacoError
from dipaco.swarm.errors import BadMessage, MessageRefused, SwarmRefuses, SwarmUnreachable
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.credentials import printable
from dipaco.swarm.network.messages import (
    NOT_LEADING,
    UNKNOWN_PEER,
    Ack,
    ChunkRequest,
    ClosedStep,
    GroupInfo,
    GroupState,
    JoinRequest,
    LeaveRequest,
    ManifestRequest,
    MeanReply,
    MeanRequest,
    PastMeanRequest,
    PollRequest,
    PushRequest,
    RoundPlan,
    SettingsRequest,
    Slice,
    StateManifest,
    digest,
)
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.deadlines import Durations
from dipaco.swarm.training.compute import GroupSettings
from dipaco.swarm.training.state_bytes import StateBytes, state_from_bytes
from dipaco.swarm.training.state_holder import StateHolder, decoded

CHUNKS_AT_ONCE = 4
PATIENCE_SECONDS = 600.0  # with a group whose backbones are all gone
QUIET_SECONDS = 5.0  # before it is said that nobody answers


class Peer:
    """One session with a group.

    Args:
      wire: with a transport.
      backbones: addresses to begin with; the board brings more.
      holder: its state and its slices.
      bytes_per_second: of its link, as it says itself.
      say: told what happens, in sentences.
    """

    computes = False  # gradients

    def __init__(
        self,
        wire: Wire,
        backbones: tuple[str, ...],
        holder: StateHolder,
        *,
        bytes_per_second: float = 0.0,
        say: Callable[[str], None] = lambda sentence: None,
    ):
        self.wire, self.holder, self._say = wire, holder, say
        self._backbones = list(backbones)
        self._bytes_per_second = bytes_per_second
        self.leader_address = ""
        self.group_state: GroupState | None = None
        self._news, self._is_leaving = asyncio.Event(), asyncio.Event()
        self._fetching: dict[int, dict[int, asyncio.Task[bytes]]] = {}  # round -> start -> bytes
        self._background: set[asyncio.Task[Any]] = set()
        self._begun_rounds: set[tuple[str, int]] = set()
        self._answers = Durations()  # of short questions to the leader
        self._chunks: dict[bytes, bytes] = {}  # digest -> chunk, of a state that is being fetched

    @property
    def state_codec(self) -> str:
        """How it is given the group's state; who may lead one day needs all of it."""
        return "none"

    def leave(self) -> None:
        """Soon, in order."""
        self._is_leaving.set()

    # --- finding the leader --------------------------------------------------------------------

    async def join(self) -> GroupInfo:
        """Finds who leads, and is let in.

        Raises:
          SwarmRefuses: for good.
          SwarmUnreachable: nobody has answered for `PATIENCE_SECONDS`.
        """
        compute = self.holder.compute
        join_request = JoinRequest(
            version=dipaco.__version__,
            address=self.wire.address,
            computes=self.computes,
            holds_state=compute is not None,
            config="" if compute is None else compute.settings.digest,
            bytes_per_second=self._bytes_per_second,
        )
        return await self.find_leader("hello", join_request)

    async def find_leader(self, method: str, body: JoinRequest | SettingsRequest) -> GroupInfo:
        """Asks one backbone after the other. Raises as `join`."""
        started, problem, has_said = time.monotonic(), "nobody leads", False
        while (waited := time.monotonic() - started) < PATIENCE_SECONDS:
            if waited > QUIET_SECONDS and not has_said:
                has_said = True
                minutes = (PATIENCE_SECONDS - waited) / 60
                where = ", ".join(self._backbones)
                self._say(f"no answer from {where} yet ({problem}); trying for {minutes:.0f} min")
            for address in list(self._backbones):
                if address == self.wire.address:
                    continue
                try:
                    welcome, _ = await self.wire.ask(
                        address, method, body, GroupInfo, within_seconds=20.0, from_backbone=True
                    )
                except (OSError, TimeoutError, BadMessage) as error:
                    problem = printable(str(error)) or type(error).__name__
                    continue
                self._add_backbones(welcome.backbones)
                if welcome.leader:
                    self.leader_address = address
                    return welcome
            await asyncio.sleep(random.uniform(0.2, 0.6))
        raise SwarmUnreachable(addresses=", ".join(self._backbones), problem=problem)

    # --- the board -----------------------------------------------------------------------------

    async def poll_forever(self) -> None:
        """Keeps `group_state` up to date, whoever leads. Ends when the run is over."""
        while True:
            known = self.group_state
            holder, meter = self.holder, self.wire.meter
            listen = PollRequest(
                known=-1 if known is None else known.number,
                leader="" if known is None else known.leader,
                origin=holder.origin,
                step=holder.step,
                lineage=holder.lineage,
                steps_taken=holder.steps_taken,
                is_exact=holder.is_exact,
                bytes_up=meter.bytes_up,
                bytes_down=meter.bytes_down,
                up_bytes_per_second=meter.up.per_second,
                down_bytes_per_second=meter.down.per_second,
            )
            within = 15.0 + (known.refresh_seconds if known is not None else 0.0)
            try:
                group_state, _ = await self.wire.ask(
                    self.leader_address,
                    "listen",
                    listen,
                    GroupState,
                    within_seconds=within,
                    from_backbone=True,
                )
            except SwarmRefuses as error:
                if error.values["reason"] not in (NOT_LEADING, UNKNOWN_PEER):
                    raise
                await self._join_again()
                continue
            except (OSError, TimeoutError, BadMessage, MessageRefused):
                await asyncio.sleep(0.05)
                await self._join_again()
                continue
            self._apply_group_state(group_state)
            if group_state.is_over:
                return

    async def _join_again(self) -> None:
        await self.join()
        self.group_state = None  # nothing of it holds until the next is read
        self.on_leader_lost()

    def on_leader_lost(self) -> None:
        """Another leads, or the same knows us no more: what was leased is nobody's."""

    def _apply_group_state(self, group_state: GroupState) -> None:
        self._add_backbones(group_state.backbones)
        self.wire.verifier.revoked = frozenset(group_state.revoked)
        if self.group_state is not None and group_state.leader != self.group_state.leader:
            self.on_leader_lost()
        changed = self.group_state is None or (group_state.leader, group_state.number) != (
            self.group_state.leader,
            self.group_state.number,
        )
        self.group_state = group_state
        if group_state.plan is not None:
            self.holder.reducer.begin(group_state.plan)
        self.holder.keep(group_state.keep)
        if changed:
            self.tell()

    def _add_backbones(self, backbones: tuple[str, ...]) -> None:
        for address in backbones:
            if address not in self._backbones:
                self._backbones.append(address)

    def tell(self) -> None:
        """Wakes whoever waits for the board or the state to change."""
        self._news.set()
        self._news = asyncio.Event()

    async def changed(self, within_seconds: float = 5.0) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._news.wait()

    # --- following -----------------------------------------------------------------------------

    async def follow_forever(self) -> None:
        """Takes the group's steps. Ends when the run is over."""
        while True:
            group_state = self.group_state
            if group_state is None:
                await self.changed()
                continue
            if group_state.is_over:
                return
            if self.holder.compute is None or not group_state.lineage:
                await self.changed()
                continue
            if (closed := self._next_step(group_state)) is not None:
                await self._advance(closed)
            elif self.holder.position != position_of(group_state):
                await self._fetch_state()
            else:
                if group_state.plan is not None:
                    self._begin_round(group_state.plan)
                await self.changed()

    @property
    def is_current(self) -> bool:
        group_state = self.group_state
        return (
            group_state is not None
            and group_state.is_open
            and self.holder.position == position_of(group_state)
        )

    def _next_step(self, group_state: GroupState) -> ClosedStep | None:
        here = self.holder
        if group_state.origin != here.origin:
            return None
        for closed in group_state.closed:
            if (closed.step, closed.before) == (here.step, here.lineage):
                return closed
        return None

    def gradient_sum(self, plan: RoundPlan) -> np.ndarray | None:
        """The sum that the plan expects of this peer; None where it expects, or there is, none."""
        return None

    def _begin_round(self, plan: RoundPlan) -> None:
        assert self.group_state is not None
        key = self.group_state.leader, plan.number
        if key in self._begun_rounds:
            return
        self._begun_rounds.add(key)
        self._fetching = {
            plan.number: {
                part.start: asyncio.ensure_future(self._fetch(plan, part))
                for part in plan.slices
                if part.stop > part.start
            }
        }
        vector = self.gradient_sum(plan)
        if vector is not None:
            for part in plan.slices:
                if part.stop > part.start:
                    self._spawn(self._push(plan, part, vector))

    def _spawn(self, turn: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Goes on by itself; it is held on to until it ends, which asyncio does not do."""
        task = asyncio.ensure_future(turn)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _push(self, plan: RoundPlan, part: Slice, vector: np.ndarray) -> None:
        values = vector[part.start : part.stop]
        content = await asyncio.to_thread(codec_of(plan.codec).encode, values)
        body = PushRequest(
            round_number=plan.number, step=plan.step, start=part.start, stop=part.stop
        )
        if part.reducer == self.wire.name:
            with contextlib.suppress(BadMessage):
                slot = await self.holder.reducer.slot(plan.number, part.start, part.stop)
                self.holder.reducer.push(slot, self.wire.name, content)
            return
        for _ in range(3):
            try:
                await self.wire.ask(
                    part.address,
                    "push",
                    body,
                    Ack,
                    payload=content,
                    within_seconds=2 * plan.within_seconds,
                )
                return
            except SwarmRefuses as error:
                self._say(f"what was sent did not count: {error.values['reason']}")
                return
            except PEER_ERRORS:
                await asyncio.sleep(0.05)

    async def _fetch(self, plan: RoundPlan, part: Slice) -> bytes:
        """The mean of a slice, as it is coded; empty where its reducer does not give it."""
        if part.reducer == self.wire.name:
            try:
                slot = await self.holder.reducer.slot(plan.number, part.start, part.stop)
            except BadMessage:
                return b""  # another leads by now
            content, _, _ = await self.holder.reducer.outcome(slot)
            return content
        body = MeanRequest(
            round_number=plan.number, step=plan.step, start=part.start, stop=part.stop
        )
        try:
            _, content = await self.wire.ask(
                part.address, "fetch", body, MeanReply, within_seconds=4 * plan.within_seconds
            )
        except PEER_ERRORS:
            return b""
        return content

    async def _advance(self, closed: ClosedStep) -> None:
        compute = self.holder.compute
        assert compute is not None
        contents = await asyncio.gather(
            *(
                self._mean_of(closed, part, known)
                for part, known in zip(closed.slices, closed.digests, strict=True)
            )
        )
        if any(content is None for content in contents):
            self.holder.lineage = ""  # fetch the state instead
            return
        mean = np.concatenate(
            [
                decoded(content, closed.codec, part.stop - part.start)
                for content, part in zip(contents, closed.slices, strict=True)
                if content is not None
            ]
        )
        await self.holder.advance(mean, closed)
        if self.group_state is not None:
            self.holder.keep(self.group_state.keep)
        self.on_step(closed)
        self.tell()

    def on_step(self, closed: ClosedStep) -> None:
        """Told after each step of the group that this peer has taken."""

    async def _mean_of(self, closed: ClosedStep, part: Slice, known: bytes) -> bytes | None:
        """A slice of the mean: from its reducer, else from the leader; None where it is gone."""
        if part.stop == part.start:
            return b""
        task = self._fetching.get(closed.round_number, {}).get(part.start)
        if task is not None:
            with contextlib.suppress(TimeoutError, BadMessage):
                # The leader has this slice already; a reducer that still has not is passed over.
                content = await asyncio.wait_for(
                    asyncio.shield(task), self._answers.deadline_seconds(2.0) + 1.0
                )
                if digest(content) == known:
                    return content
        body = PastMeanRequest(
            step=closed.step, before=closed.before, start=part.start, stop=part.stop
        )
        for _ in range(3):
            try:
                _, content = await self.wire.ask(
                    self.leader_address, "mean", body, Ack, within_seconds=60.0
                )
            except SwarmRefuses:
                return None
            except PEER_ERRORS:
                await asyncio.sleep(0.1)
                continue
            if digest(content) == known:
                return content
        return None

    # --- state ---------------------------------------------------------------------------------

    async def _fetch_state(self) -> None:
        """The group's state, from whoever has it. On failure, the next turn tries again."""
        try:
            manifest, _ = await self.wire.ask(
                self.leader_address,
                "manifest",
                ManifestRequest(codec=self.state_codec),
                StateManifest,
                within_seconds=60.0,
                from_backbone=True,
            )
        except PEER_ERRORS:
            await self.changed(0.5)
            return
        if not await self.fetch(manifest):
            await self.changed(0.5)

    async def fetch(self, manifest: StateManifest) -> bool:
        """Takes the state that is described, from its donors; False where they did not give all."""
        compute = self.holder.compute
        assert compute is not None
        had = self._own_chunks()
        # Equal chunks (moments that are zero still) are fetched once.
        wanted = {d: number for number, d in enumerate(manifest.digests)}
        missing = [(n, d) for d, n in wanted.items() if d not in self._chunks and d not in had]
        num_missing, donors = len(missing), list(manifest.donors)
        await asyncio.gather(
            *(self._fetch_chunks(manifest, missing, donors) for _ in range(CHUNKS_AT_ONCE))
        )
        chunks = [self._chunks.get(d) or had.get(d) for d in manifest.digests]
        if any(chunk is None for chunk in chunks):
            return False
        content = b"".join(chunk for chunk in chunks if chunk is not None)
        state = state_from_bytes(content, self.state_codec, compute.state_like)
        at = manifest.origin, manifest.step, manifest.lineage
        is_exact = self.state_codec == "none"
        self.holder.begin(state, *at, list(manifest.losses), is_exact=is_exact)
        self.fetched()
        self._chunks = {}
        fetched = num_missing * manifest.chunk_bytes / 1e6
        self._say(f"has the state of step {manifest.step} ({fetched:.1f} MB fetched)")
        self.tell()
        return True

    def fetched(self) -> None:
        """Told when it was given a state, and did not step to it."""

    def _own_chunks(self) -> dict[bytes, bytes]:
        """What this peer has of any state, by digest."""
        if self.holder.state is None or not self.holder.is_exact:
            return {}
        own = StateBytes(jax.device_get(self.holder.state), self.state_codec)
        return {digest(chunk): bytes(chunk) for chunk in map(own.chunk, range(own.num_chunks))}

    async def _fetch_chunks(
        self, manifest: StateManifest, missing: list[tuple[int, bytes]], donors: list[str]
    ) -> None:
        """Takes chunks from the list until it is empty, or no donor is left."""
        while missing and donors:
            number, known = missing.pop()
            donor = random.choice(donors)
            body = ChunkRequest(
                step=manifest.step,
                lineage=manifest.lineage,
                codec=self.state_codec,
                number=number,
            )
            try:
                _, content = await self.wire.ask(donor, "chunk", body, Ack, within_seconds=30.0)
            except PEER_ERRORS:
                content = b""
            if digest(content) == known:
                self._chunks[known] = content
                continue
            # It has left, or its state differs in the last bits: another has the rest.
            missing.append((number, known))
            if donor in donors:
                donors.remove(donor)

    # --- leaving -------------------------------------------------------------------------------

    async def say_goodbye(self, blocks: tuple[int, ...] = (), content: bytes = b"") -> None:
        """Leaves; the sum over `blocks` goes along, so that it is not lost."""
        body = LeaveRequest(step=self.holder.step, lineage=self.holder.lineage, blocks=blocks)
        with contextlib.suppress(*PEER_ERRORS, DipacoError):
            await self.wire.ask(
                self.leader_address,
                "bye",
                body,
                Ack,
                payload=content,
                within_seconds=20.0,
            )


def settings_of(welcome: GroupInfo) -> GroupSettings:
    """Raises `BadMessage` where they are not what they are said to be."""
    settings = GroupSettings.from_json(welcome.settings)
    if settings.digest != welcome.config:
        raise BadMessage(problem="the group's settings do not have their digest")
    return settings


def position_of(group_state: GroupState) -> tuple[str, int, str]:
    return group_state.origin, group_state.step, group_state.lineage
