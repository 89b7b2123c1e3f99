"""A volunteer: a peer that computes gradients, at its own pace, of rows that are leased to it.

A computed block is *pending* until the leader has accepted it, and only then added to the sum. So
the leader always knows exactly what is in a peer's sum, and a block that has gone to another peer
meanwhile is in no two sums. When the leader is lost the sum is kept: the next leader of the same
step may adopt it.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dipaco.swarm.network.messages import (
    BlockResult,
    ClosedStep,
    RoundPlan,
    StatePosition,
    WorkReply,
    WorkRequest,
)
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.progress import Rate
from dipaco.swarm.roles.peer import Peer
from dipaco.swarm.training.compute import Compute, unpack_rows
from dipaco.swarm.training.slices import rounding
from dipaco.swarm.training.state_holder import StateHolder

SPEED_SHARE = 0.3  # of the newest block, in what a volunteer takes for its speed


class _KeptSum(NamedTuple):
    """What was summed for a leader that was lost."""

    position: StatePosition  # of the state that it is the gradient at
    total: Any
    summed: dict[int, BlockResult]


class Volunteer(Peer):
    """A peer that computes; arguments as `Peer`."""

    computes = True

    def __init__(
        self,
        wire: Wire,
        backbones: tuple[str, ...],
        holder: StateHolder,
        *,
        bytes_per_second: float = 0.0,
        say: Callable[[str], None] = lambda sentence: None,
    ):
        assert holder.compute is not None
        super().__init__(
            wire,
            backbones,
            holder,
            state_codec=holder.compute.settings.state_codec,
            bytes_per_second=bytes_per_second,
            say=say,
        )
        self.compute: Compute = holder.compute
        self._sum: Any | None = None
        self._summed: dict[int, BlockResult] = {}  # the blocks in it
        self._pending: dict[int, tuple[Any, BlockResult]] = {}
        self._done: list[BlockResult] = []  # not reported yet
        self._kept_sum: _KeptSum | None = None
        self._leaders_lost = 0
        self._late_seconds = 0.0  # that a block took whose step was over before
        self._is_parked = False
        # With a codec: what was sent in a round, sent in the step that was taken, and lost of it.
        self._sent: tuple[int, np.ndarray] | None = None
        self._rounded: tuple[ClosedStep, np.ndarray] | None = None
        self._residual: np.ndarray | None = None
        self.samples = 0  # that were computed and accepted
        self._speed = Rate()  # in samples, while it computes

    @property
    def samples_per_second(self) -> float:
        """While it computes; 0: it has not computed a block yet."""
        return self._speed.per_second

    async def run(self) -> None:
        """Takes part until the run is over, or `leave` is called.

        Raises:
          SwarmRefuses, SwarmUnreachable.
        """
        tasks = [
            asyncio.ensure_future(turn)
            for turn in (self.poll_forever(), self.follow_forever(), self._compute_forever())
        ]
        leaving = asyncio.ensure_future(self._is_leaving.wait())
        try:
            done, _ = await asyncio.wait([*tasks, leaving], return_when=asyncio.FIRST_COMPLETED)
            if leaving in done:
                await self._leave_in_order()
            for task in done - {leaving}:
                task.result()
        finally:
            for task in (*tasks, leaving):
                task.cancel()
            await asyncio.gather(*tasks, leaving, return_exceptions=True)

    async def _leave_in_order(self) -> None:
        """Gives the leader what is summed so far."""
        state = self.group_state
        while state is not None and state.plan is not None and self.is_current:
            await self.wait_for_change(1.0)  # the round takes the sum
            state = self.group_state
        blocks = tuple(sorted(self._summed))
        content = b"" if self._sum is None else np.asarray(self._sum, "<f4").tobytes()
        await self.send_leave(blocks if content else (), content)

    # --- the sum -------------------------------------------------------------------------------

    def gradient_sum(self, plan: RoundPlan) -> np.ndarray | None:
        expected = {
            block for one in plan.senders if one.name == self.wire.name for block in one.blocks
        }
        if not expected:
            return None
        if self._kept_sum is not None:
            self._restore(self._kept_sum)  # the reply that it counts was lost, or is on its way
        for block in expected - set(self._summed):
            if block in self._pending:
                self._add(block)  # the reply that it counts was lost
        if set(self._summed) != expected:
            self._discard_sum()
            return None
        return self._with_residual(np.asarray(self._sum), plan)

    def _with_residual(self, vector: np.ndarray, plan: RoundPlan) -> np.ndarray:
        """With what the codec lost of the last sum that went into a step."""
        if plan.codec == "none":
            return vector
        if self._residual is not None:
            vector = vector + self._residual
        self._sent = plan.number, vector
        return vector

    def _restore(self, kept: _KeptSum) -> None:
        """Goes on with a kept sum, if it is of the current state and nothing was summed since."""
        self._kept_sum = None
        if kept.position == self.holder.position and not self._summed:
            self._sum, self._summed = kept.total, kept.summed

    def _discard_sum(self) -> None:
        """The sum is not what the leader takes it to be: both begin again."""
        self._reset()
        self._spawn(self._report_lost_sum())

    async def _report_lost_sum(self) -> None:
        here = self.holder
        await self._request_work(
            WorkRequest(
                step=here.step, lineage=here.lineage, done=(), wants_more=False, sum_is_lost=True
            )
        )

    def _add(self, block: int) -> None:
        gradient, self._summed[block] = self._pending.pop(block)
        self._sum = gradient if self._sum is None else self.compute.add(self._sum, gradient)
        self.samples += self.compute.settings.block_rows

    def _reset(self) -> None:
        self._sum, self._summed, self._pending, self._done = None, {}, {}, []

    def on_leader_lost(self) -> None:
        for block in list(self._pending):
            self._add(block)  # no other peer was given it
        if self._summed:
            self._kept_sum = _KeptSum(self.holder.position, self._sum, self._summed)
        self._leaders_lost += 1
        self._reset()

    def on_state_fetched(self) -> None:
        self._sent = self._rounded = self._residual = None
        self._reset()

    def on_step(self, closed: ClosedStep) -> None:
        self._kept_sum = None
        if self._sent is not None and self._sent[0] == closed.round_number:
            self._rounded = closed, self._sent[1]
        self._sent = None
        self._reset()
        self._say(f"step {closed.step + 1:,}: loss {closed.loss:.3f}")

    # --- computing -----------------------------------------------------------------------------

    async def _compute_forever(self) -> None:
        await asyncio.to_thread(self.compute.warm_up)
        while True:
            state = self.group_state
            if not self.is_current or state is None or state.plan is not None:
                await self.wait_for_change(1.0)
                continue
            if self._rounded is not None:
                closed, vector = self._rounded
                self._rounded = None
                self._residual = await asyncio.to_thread(
                    rounding, closed.codec, closed.slices, vector
                )
                continue
            if self._kept_sum is not None and not await self._offer_kept_sum(self._kept_sum):
                await self.wait_for_change(0.1)
                continue
            reply, rows = await self._request_work(self._report(wants_more=True))
            if reply is None or not reply.blocks:
                ask_again = 1.0 if reply is None else reply.ask_again_seconds
                self._note_parked(reply is not None and reply.is_parked)
                await self.wait_for_change(min(state.refresh_seconds, max(ask_again, 0.01)))
                continue
            self._note_parked(False)
            await self._compute_blocks(reply, rows)

    def _note_parked(self, is_parked: bool) -> None:
        if is_parked and not self._is_parked:
            self._say(
                "waits: the others need less for what is left of a step than this machine for one "
                "block. It is asked again at every step"
            )
        self._is_parked = is_parked

    async def _offer_kept_sum(self, kept: _KeptSum) -> bool:
        """Offers a kept sum to the new leader; False where there was no reply, and it is to be
        offered again.
        """
        here = self.holder
        if kept.position != here.position or self._summed:
            self._kept_sum = None
            return True
        done = tuple(kept.summed.values())
        work = WorkRequest(
            step=here.step, lineage=here.lineage, done=done, wants_more=False, for_last_leader=True
        )
        reply, _ = await self._send(work)
        if reply is None:
            return False
        # Otherwise a round has begun meanwhile, or this leader is lost as well.
        if self._kept_sum is kept:
            self._kept_sum = None
            if reply.accepted:
                self._restore(kept)
        return True

    async def _compute_blocks(self, reply: WorkReply, rows: list[dict]) -> None:
        assert self.holder.state is not None
        parts, position, leaders = self.holder.state.parts, self.holder.position, self._leaders_lost
        reporting: asyncio.Task[Any] | None = None
        for block, of_block in zip(reply.blocks, rows, strict=True):
            started = time.monotonic()
            gradient, loss, targets = await asyncio.to_thread(
                self.compute.gradient, parts, of_block
            )
            seconds = time.monotonic() - started
            block_rows = self.compute.settings.block_rows
            self._speed = self._speed.after(block_rows, max(seconds, 1e-6), SPEED_SHARE)
            if (self.holder.position, self._leaders_lost) != (position, leaders):
                self._late_seconds = seconds
                return
            done = BlockResult(block=block, loss=loss, targets=targets, seconds=seconds)
            self._pending[block] = gradient, done
            self._done.append(done)
            # The next block does not wait for the report. The last block's is the next request.
            if reporting is not None:
                await reporting
            if block != reply.blocks[-1]:
                reporting = self._spawn(self._request_work(self._report(wants_more=False)))

    def _report(self, *, wants_more: bool) -> WorkRequest:
        done, self._done = tuple(self._done), []
        late_seconds, self._late_seconds = self._late_seconds, 0.0
        return WorkRequest(
            step=self.holder.step,
            lineage=self.holder.lineage,
            done=done,
            wants_more=wants_more,
            block_seconds=late_seconds,
        )

    async def _request_work(self, work: WorkRequest) -> tuple[WorkReply | None, list[dict]]:
        """Reports and asks for more; blocks that are accepted are added to the sum."""
        asked = self.holder.position, self._leaders_lost
        reply, content = await self._send(work)
        if (self.holder.position, self._leaders_lost) != asked:
            return None, []
        if reply is None:
            self._done = [*work.done, *self._done]  # reported again
            return None, []
        for block in reply.accepted:
            if block in self._pending:
                self._add(block)
        for one in work.done:
            if one.block not in reply.accepted:
                self._pending.pop(one.block, None)
        if not self._summed.keys().isdisjoint(reply.blocks):
            self._discard_sum()  # a block would be in it twice
            return None, []
        settings = self.compute.settings
        sizes = [
            min(settings.block_rows, settings.inner.batch_size - block * settings.block_rows)
            for block in reply.blocks
        ]
        return reply, unpack_rows(content, sizes, settings.length)

    async def _send(self, work: WorkRequest) -> tuple[WorkReply | None, bytes]:
        """(the reply, its payload); None where there was no reply."""
        started = time.monotonic()
        try:
            reply, content = await self.wire.ask(
                self.leader.address,
                "work",
                work,
                WorkReply,
                within_seconds=30.0,
                from_backbone=True,
            )
        except PEER_ERRORS:  # a refusal among them: the next poll says why
            await asyncio.sleep(0.05)
            return None, b""
        self._reply_seconds.add(time.monotonic() - started)
        return reply, content
