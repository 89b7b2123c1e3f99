"""A peer that follows: it polls the group's state, takes every step that the group takes, and sends
its sums.

A peer that is a few steps behind fetches their means and catches up. A peer that is further behind,
or at another state, fetches the state.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from dipaco.errors import DipacoError
from dipaco.runs.version import program_version
from dipaco.swarm.errors import BadMessage, MessageRefused, SwarmRefuses
from dipaco.swarm.network import messages
from dipaco.swarm.network.differences import StateUpdate, updated
from dipaco.swarm.network.leader_connection import LeaderConnection
from dipaco.swarm.network.streams import Signal
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.timing import Durations
from dipaco.swarm.roles.round_parts import PartSender, RoundMeans
from dipaco.swarm.training.slices import decoded_mean
from dipaco.swarm.training.state_download import StateDownload
from dipaco.swarm.training.state_holder import StateHolder

# Longest delay of the next poll until a step is taken here. A peer without a poll counts as silent
# after some seconds (`group.QUIET_SECONDS`).
STEP_SECONDS = 0.3


class Peer:
    """One session with a group. `bytes_per_second`: what the leader is told; 0 = unknown."""

    computes = False  # true if it computes gradients

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
        self._bytes_per_second = bytes_per_second
        self.leader = LeaderConnection(wire, backbones, say)
        self.group_state: messages.GroupState | None = None
        self.changed, self._is_leaving = Signal(), asyncio.Event()
        self._background: set[asyncio.Task[Any]] = set()
        self._begun_rounds: set[tuple[str, int]] = set()
        self._heard: str | None = None  # the address of the leader that replied last
        self.end = ""  # why the run is over, as far as is known here
        self.lost: str | None = None  # the same address, if its next reply did not arrive
        self.last_senders: frozenset[str] = frozenset()  # senders of the last announced round
        self._reply_seconds = Durations()  # durations of short requests to the leader
        self._download = StateDownload(wire, holder, say)
        self._sender = PartSender(wire, holder.reducer, self.leader, say)
        self._means = RoundMeans(
            wire, holder.reducer, self.leader, self._sender, self._reply_seconds
        )

    # --- joining and leaving -------------------------------------------------------------------

    async def join(self) -> messages.GroupInfo:
        """Finds the leader and joins its group. Raises the errors of `LeaderConnection.find`."""
        request = messages.JoinRequest(
            version=program_version(),
            address=self.wire.address,
            computes=self.computes,
            config=self.holder.compute.settings.digest,
            bytes_per_second=self._bytes_per_second,
        )
        info = await self.leader.find("join", request)
        self.end = info.end
        if info.leader:
            if self.wire.address is not None and info.is_reached:
                self.wire.book.put_own(info.seen_at or self.wire.address)
            # Beside: until the caller goes on, its rows are those of the last leader.
            self._spawn(self.wire.exchange_records(self.leader.address))
        if not info.is_reached:
            self._say(f"{self.wire.address} is not reached from outside: this machine dials out")
        return info

    def leave(self) -> None:
        """Asks a volunteer's `run` to leave in order."""
        self._is_leaving.set()

    def is_without_leader(self, tasks: list[asyncio.Task]) -> bool:
        """True if no leader answers, or if one of these tasks has ended. One of the tasks polls."""
        return self.lost is not None or any(task.done() for task in tasks)

    async def send_leave(self) -> None:
        with contextlib.suppress(*PEER_ERRORS, DipacoError):
            await self.wire.ask(
                self.leader.address, "leave", messages.Ack(), messages.Ack, within_seconds=20.0
            )

    # --- the group's state ---------------------------------------------------------------------

    async def poll_forever(self) -> None:
        """Keeps `group_state` up to date, whichever backbone leads. Ends when the run is over."""
        while not self.end:
            known = self.group_state
            try:
                update, _ = await self.wire.ask(
                    self.leader.address,
                    "poll",
                    self._poll_request(known),
                    StateUpdate,
                    within_seconds=15.0 + messages.POLL_SECONDS,
                    from_backbone=True,
                )
                state = updated(known, update)
            except SwarmRefuses as error:
                if error.values["reason"] not in (messages.NOT_LEADING, messages.UNKNOWN_PEER):
                    raise
                await self._join_again()
                continue
            except (OSError, TimeoutError, BadMessage, MessageRefused):
                self.lost = self._heard
                await asyncio.sleep(0.05)
                await self._join_again()
                continue
            self._heard, self.lost, self.end = self.leader.address, None, state.end
            self._apply(state)
            await self._wait_until_taken()

    async def _wait_until_taken(self) -> None:
        """Waits until this peer has taken the group's step: the next poll reports its position, by
        which the leader chooses donors and reducers.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STEP_SECONDS):
                while (state := self.group_state) and self._next_step(state):
                    await self.changed.wait(5.0)

    def _poll_request(self, known: messages.GroupState | None) -> messages.PollRequest:
        holder, meter = self.holder, self.wire.meter
        return messages.PollRequest(
            known=-1 if known is None else known.number,
            leader="" if known is None else known.leader,
            **holder.position._asdict(),
            steps_taken=holder.steps_taken,
            bytes_up=meter.bytes_up,
            bytes_down=meter.bytes_down,
            up_bytes_per_second=meter.up.per_second,
            down_bytes_per_second=meter.down.per_second,
        )

    async def _join_again(self) -> None:
        await self.join()
        self.group_state = None  # nothing in it is valid until the next arrives
        self.on_leader_lost()

    def _apply(self, state: messages.GroupState) -> None:
        self.leader.add_backbones(state.backbones)
        self.wire.verifier.revoked = frozenset(state.revoked)
        last, self.group_state = self.group_state, state
        if last is not None and state.leader != last.leader:
            self.on_leader_lost()
        if state.plan is not None:
            senders = {one.name for one in state.plan.senders}
            self.last_senders = frozenset(senders - {state.leader})
            self.holder.reducer.begin(state.plan)
        self.holder.pin(state.pinned_step)
        if last is None or (state.leader, state.number) != (last.leader, last.number):
            self.changed.set()

    @property
    def is_current(self) -> bool:
        """True if it holds the group's state, and a step is open."""
        state = self.group_state
        return state is not None and state.is_open and self.holder.position == state.position

    # --- for volunteers to override ------------------------------------------------------------

    def gradient_sum(self, plan: messages.RoundPlan) -> np.ndarray | None:
        """The sum that the plan expects from this peer, or None."""
        return None

    def on_check(self, plan: messages.RoundPlan) -> None:
        """The plan names this peer as a checker."""

    def on_leader_lost(self) -> None:
        """Another backbone leads, or the same one does not know this peer. Its leases are void."""

    def on_state_fetched(self) -> None:
        """The peer has fetched a state, instead of stepping to it."""

    def on_step(self, closed: messages.ClosedStep) -> None:
        """The peer has taken a step of the group."""

    # --- following -----------------------------------------------------------------------------

    async def follow_forever(self) -> None:
        """Takes the group's steps. Ends when the run is over."""
        try:
            await self._follow()
        finally:
            self._sender.end()

    async def _follow(self) -> None:
        while True:
            state = self.group_state
            if state is None:
                await self.changed.wait(5.0)
                continue
            if state.end:
                return
            if not state.lineage:
                await self.changed.wait(5.0)
                continue
            if (closed := self._next_step(state)) is not None:
                await self._advance(closed)
            elif self.holder.position != state.position:
                await self._fetch_state()
            else:
                if state.plan is not None:
                    self._begin_round(state.leader, state.plan)
                await self.changed.wait(5.0)

    def _next_step(self, state: messages.GroupState) -> messages.ClosedStep | None:
        here = self.holder
        if state.origin != here.origin:
            return None
        for closed in state.closed:
            if (closed.step, closed.before) == (here.step, here.lineage):
                return closed
        return None

    def _begin_round(self, leader: str, plan: messages.RoundPlan) -> None:
        self._sender.update(plan)
        if self.wire.name in plan.checkers:
            self.on_check(plan)
        key = leader, plan.number
        if key in self._begun_rounds:
            return
        self._begun_rounds.add(key)
        self._means.begin(plan)
        vector = self.gradient_sum(plan)
        if vector is not None:
            self._sender.begin(plan, vector, leader)

    def _spawn(self, turn: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task and holds it until it ends: asyncio alone would let it be collected."""
        task = asyncio.ensure_future(turn)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _advance(self, closed: messages.ClosedStep) -> None:
        if (contents := await self._means.of_step(closed)) is None:
            self.holder.lineage = ""  # the state is fetched instead
            return
        await self.holder.advance(decoded_mean(closed.codec, closed.slices, contents), closed)
        if self.group_state is not None:
            self.holder.pin(self.group_state.pinned_step)
        self._sender.end()
        self.on_step(closed)
        self.changed.set()

    async def _fetch_state(self) -> None:
        """Fetches the group's state. If that fails, `follow_forever` tries again."""
        try:
            manifest, _ = await self.wire.ask(
                self.leader.address,
                "manifest",
                messages.Ack(),
                messages.StateManifest,
                within_seconds=60.0,
                from_backbone=True,
            )
        except PEER_ERRORS:
            await self.changed.wait(0.5)
            return
        if await self._download.fetch(manifest):
            self.on_state_fetched()
            self.changed.set()
        else:
            await self.changed.wait(0.5)
