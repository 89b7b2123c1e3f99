"""A backbone: the process between a run and a swarm.

To the run it is a worker: it claims the path's `train` task, and records the result. To the group
it is the leader while it holds that claim. Otherwise it follows like every peer, and holds the
state, ready to continue if another backbone dies. While there are no volunteers, the path is left
to plain workers. The group runs in a thread with an event loop. The worker's thread gives it phases
and records its steps.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco import stopping
from dipaco.errors import DipacoError
from dipaco.inner.phase import PhaseResult
from dipaco.inner.phase_runner import PhaseWork
from dipaco.swarm.errors import SwarmRefuses
from dipaco.swarm.network.credentials import Credential
from dipaco.swarm.network.messages import RunOverview, StatePosition
from dipaco.swarm.network.streams import Streams, first_of, side_by_side
from dipaco.swarm.network.wire import Wire
from dipaco.swarm.roles.backbone_ledger import BackboneLedger, BackbonePlace, OpenLedger, register
from dipaco.swarm.roles.backbone_watch import LeaderWatch, Staffing
from dipaco.swarm.roles.leader import Leader, StepOutcome
from dipaco.swarm.roles.peer import Peer
from dipaco.swarm.training.compute import Compute, GroupSettings
from dipaco.swarm.training.state_download import fetch_held_state
from dipaco.swarm.training.state_holder import StateHolder

SAVE_SECONDS = 60.0  # time between two saves of an unfinished phase
STATUS_SECONDS = 1.0
OVERVIEW_SHARE = 0.02  # largest share of the time that reading it may take
# An overview of the whole run is repeated for so long. Volunteers move by it.
OVERVIEW_SECONDS = 1.0
REFUSED_SECONDS = 5.0  # A refused backbone tries again to follow after so long.
REFUSALS_SHOWN = 20
TELL_SECONDS = 15.0  # longest wait for peers to learn that the run is over


class _StepTaken(NamedTuple):
    """A step on its way from the group's thread to the worker's thread."""

    outcome: StepOutcome
    state: Any
    losses: list[float]  # losses of the phase so far


class Backbone:
    """One backbone of one path. `announce`: the host that peers are told; None = the host of
    `listen`, or this machine's. `num_steps`: steps of a path, as volunteers are told.
    """

    def __init__(
        self,
        open_ledger: OpenLedger,
        place: BackbonePlace,
        settings: GroupSettings,
        credential: Credential,
        *,
        listen: str,
        announce: str | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        save_seconds: float = SAVE_SECONDS,
        num_steps: int = 0,
    ):
        self._open_ledger, self._place = open_ledger, place
        self._settings, self._credential = settings, credential
        self._listen, self._announce = listen, announce
        self._say = say
        self._save_seconds = save_seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarm", daemon=True)
        self._is_busy = False  # true while it leads a phase
        self._followed: Peer | None = None  # its role as a peer of another leader, past or present
        self._ends = 0  # the step at which the phase ends
        self._num_steps, self._overview = num_steps, RunOverview()
        self._overview_until = 0.0  # time on the monotonic clock
        self._refusals: list[dict[str, str]] = []
        self.address = ""

    # --- the worker's side ---------------------------------------------------------------------

    def start(self) -> None:
        """Listens, and follows the leader of the group. Raises `CannotListen`, `OptionsDiffer`."""
        self._thread.start()
        try:
            self._do(self._start())
        except BaseException:
            self._end_thread()
            raise

    def close(self, end: str = "") -> None:
        """Leaves. If the run has ended, the group does, and every terminal says why."""
        with contextlib.suppress(DipacoError, OSError, TimeoutError):
            self._do(self._stop(end))
        self._end_thread()

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10.0)
        if not self._thread.is_alive():
            self._loop.close()

    def run_phase(self, work: PhaseWork) -> PhaseResult:
        """Has the group take a phase's steps: see `PhaseRunner`. Raises as `should_stop`."""
        taken: queue.SimpleQueue[_StepTaken] = queue.SimpleQueue()
        stop = threading.Event()
        leading = asyncio.run_coroutine_threadsafe(self._lead(work, taken, stop), self._loop)
        targets = 0.0
        saved_at = time.monotonic()
        try:
            while not leading.done() or not taken.empty():
                if work.should_stop():
                    stop.set()
                try:
                    one = taken.get(timeout=0.1)
                except queue.Empty:
                    continue
                targets += one.outcome.record.targets
                for _ in range(one.outcome.closed.steps):
                    work.on_step(len(one.losses), one.outcome.closed.loss)
                if time.monotonic() - saved_at > self._save_seconds:
                    work.save(jax.device_get(one.state), one.losses)
                    saved_at = time.monotonic()
        except BaseException:
            stop.set()
            with contextlib.suppress(Exception):
                leading.result(timeout=30.0)
            raise
        state, losses = leading.result()
        return PhaseResult(state, np.asarray(losses, np.float32), int(targets))

    def _do(self, turn: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(turn, self._loop).result()

    # --- the group's side ----------------------------------------------------------------------

    async def _start(self) -> None:
        compute = Compute(self._settings)
        self._wire = Wire(self._credential, self._settings.max_payload_bytes)
        self._wire.verifier.refresh_lists = self._try_to_read_ledger
        self._wire.on_refused = self._refused
        self._wire.transport = await Streams.start(
            self._credential, self._wire.serve, listen=self._listen, announce=self._announce
        )
        self.address = self._wire.address or ""
        try:
            with contextlib.closing(self._open_ledger()) as ledger:
                register(ledger.swarms, self._place, self._settings, self.address)
        except DipacoError:
            await self._wire.transport.close()
            raise
        self._ledger = BackboneLedger(
            self._open_ledger(), self._place, self._settings, self.address
        )
        self._holder = StateHolder(self._wire, compute)
        self._leader = Leader(
            self._wire,
            self._holder,
            say=self._say,
            on_refused=self._refused,
            on_banned=self._ledger.refuse,
        )
        self._leader.answer_with(self._overview_of_now)
        self._staffing = Staffing(self._leader, self._ledger, self._say)
        self._read_ledger()
        self._wire.book.put_own(self.address)
        # Gradient checks need the program with which peers compute.
        self._warming = asyncio.ensure_future(asyncio.to_thread(compute.warm_up))
        watch = LeaderWatch(self._wire, self._ledger, self._say)
        self._tasks = [
            asyncio.ensure_future(self._watch_ledger_forever()),
            asyncio.ensure_future(watch.look_forever(self._lost_leader)),
            asyncio.ensure_future(self._follow_forever()),
            asyncio.ensure_future(self._tell_address()),
        ]

    async def _stop(self, end: str) -> None:
        if end:
            await self._tell_the_end(end)
        left = asyncio.all_tasks() - {asyncio.current_task()}  # replies and rounds among them
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._ledger.close()
        if self._wire.transport is not None:
            await self._wire.transport.close()

    async def _tell_address(self) -> None:
        """Tells volunteers, as the ledger knows them, where this backbone is now."""
        for address in self._ledger.volunteers_addresses():
            await self._wire.exchange_records(address)

    async def _tell_the_end(self, end: str) -> None:
        """Waits until all members and waiting peers know that the run is over."""
        until = time.monotonic() + TELL_SECONDS
        self._leader.end(end)
        if self._leader.is_leading:
            await asyncio.sleep(1.0)  # peers that poll get it
        while self._leader.num_untold() and time.monotonic() < until:
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.1)  # the last reply is on its way

    def _refused(self, sender: str, reason: str) -> None:
        last = self._refusals[-1] if self._refusals else None
        one = {"who": sender, "why": reason}
        if one != last:
            self._refusals = [*self._refusals, one][-REFUSALS_SHOWN:]
            self._say(f"{sender} refused: {reason}")

    def _read_ledger(self) -> None:
        """Reads the ledger's news from other processes: credentials, revocations, backbones."""
        verifier = self._wire.verifier
        self._leader.group.refusals |= self._ledger.read_credentials(verifier)
        self._backbones = self._ledger.addresses()
        self._leader.update_backbones(self._backbones, tuple(sorted(verifier.revoked)))

    def _try_to_read_ledger(self) -> None:
        with contextlib.suppress(DipacoError):
            self._read_ledger()

    def _overview_of_now(self) -> RunOverview:
        """An overview that is at most some seconds old, however often peers ask."""
        now = time.monotonic()
        if now > self._overview_until:
            with contextlib.suppress(DipacoError):
                inner = self._settings.inner
                self._overview = self._ledger.overview(self._num_steps, inner)
            # A run of many steps takes longer to read, and the group waits meanwhile.
            took = time.monotonic() - now
            self._overview_until = now + max(OVERVIEW_SECONDS, took / OVERVIEW_SHARE)
        return self._overview

    async def _watch_ledger_forever(self) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            with contextlib.suppress(DipacoError):
                self._read_ledger()
                has_changed = self._staffing.look()
                if self._is_busy or (has_changed and self._leader.is_leading):
                    self._put_status()
                if not self._is_busy and self._is_another_s():
                    self._leader.stop_leading()
                    self._say("another backbone leads now: this one follows it")

    def _is_another_s(self) -> bool:
        """True if another backbone has claimed the phase, or the next, of this one's group."""
        holders = None, self._place.worker
        return self._leader.is_leading and self._ledger.leader() not in holders

    def _lost_leader(self) -> str | None:
        """The address of the leader that this backbone follows, if it does not reply any more."""
        is_following = not self._leader.is_leading and self._followed is not None
        return self._followed.lost if is_following else None

    def _put_status(self) -> None:
        left = max(0, self._ends - self._holder.step) if self._is_busy else 0
        more = {
            "refused": self._refusals,
            "is_staffed": self._staffing.is_staffed,
            "steps_left": left,
        }
        status = self._leader.status() | more
        self._ledger.put_status(status)

    async def _follow_forever(self) -> None:
        """Follows the leading backbone as a peer, while this one does not lead."""
        said: set[str] = set()
        while True:
            others = tuple(address for address in self._backbones if address != self.address)
            if self._leader.is_leading or not others:
                await asyncio.sleep(0.2)
                continue
            peer = Peer(self._wire, others, self._holder, say=self._say)
            self._followed = peer
            following = asyncio.ensure_future(self._follow(peer))
            while not following.done() and not self._leader.is_leading:
                await asyncio.wait([following], timeout=0.05)
            following.cancel()
            (ended,) = await asyncio.gather(following, return_exceptions=True)
            if isinstance(ended, SwarmRefuses):
                if str(ended) not in said:
                    said.add(str(ended))
                    self._say(f"this backbone cannot follow the one that leads: {ended}")
                await asyncio.sleep(REFUSED_SECONDS)
            await asyncio.sleep(0.2)

    async def _follow(self, peer: Peer) -> None:
        await peer.join()
        async with side_by_side(peer.poll_forever(), peer.follow_forever()) as tasks:
            await first_of(*tasks)

    async def _lead(
        self, work: PhaseWork, taken: queue.SimpleQueue, stop: threading.Event
    ) -> tuple[Any, list[float]]:
        holder = self._holder
        self._is_busy = True
        self._leader.start_leading()  # `_follow_forever` stops its peer
        await asyncio.sleep(0.1)
        begins = work.first_step - len(work.losses)  # first step of the phase
        ends = self._ends = work.first_step + len(work.rates)
        if not holder.origin:
            others = [address for address in self._backbones if address != self.address]
            span = work.first_step, ends
            await fetch_held_state(self._wire, holder, others, work.origin, span, self._say)
        goes_on = holder.origin == work.origin and work.first_step <= holder.step <= ends
        if not goes_on or len(holder.losses) != holder.step - begins:
            lineage = f"{work.first_step}-{self._wire.name}-{time.time():.3f}"
            position = StatePosition(work.origin, work.first_step, lineage)
            holder.set_state(work.state.take(), position, list(work.losses))
        elif holder.step > work.first_step:
            self._say(f"goes on from step {holder.step:,}, as the group had it")
        senders = frozenset() if self._followed is None else self._followed.last_senders
        self._leader.begin_phase(self._backbones, last_senders=senders if goes_on else None)
        self._put_status()
        try:
            # batches of this step and the following ones
            batches: dict[int, asyncio.Future[Any]] = {}
            local_steps = self._settings.local_steps

            def should_stop() -> bool:
                stopping.note_progress()  # A step of slow volunteers may take long.
                return stop.is_set() or not self._staffing.is_staffed

            while holder.step < ends and not should_stop():
                first, steps = holder.step, min(local_steps, ends - holder.step)
                for step in range(first, min(first + 2 * local_steps, ends)):
                    if step not in batches:
                        reading = asyncio.to_thread(work.batch_at, step)
                        batches[step] = asyncio.ensure_future(reading)
                read = [await batches.pop(step) for step in range(first, first + steps)]
                rows = read[0] if local_steps == 1 else self._settings.joined(read)
                rate = float(work.rates[first - work.first_step])
                outcome = await self._leader.take_step(rows, rate, should_stop, steps)
                if outcome is None:
                    break
                self._ledger.put_step(outcome.record)
                taken.put(_StepTaken(outcome, holder.state, list(holder.losses)))
            await asyncio.gather(*batches.values(), return_exceptions=True)
            return jax.device_get(holder.state), list(holder.losses)
        finally:
            self._is_busy = False
            self._leader.end_phase()
            with contextlib.suppress(DipacoError):
                self._put_status()
