"""A volunteer: a peer that computes gradients, at its own pace, on rows that it was lent.

A block that is computed is *pending* until the leader has said that it counts; only then it is
added to the sum. So the leader always knows exactly what is in a peer's sum, and a block that went
to somebody else meanwhile is in nobody's twice. When the leader is gone, the sum is kept: whoever
leads the same step next may take it over.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dipaco.swarm.network.messages import BlockResult, ClosedStep, RoundPlan, WorkReply, WorkRequest
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.roles.peer import Peer
from dipaco.swarm.training.compute import Compute, unpack_rows
from dipaco.swarm.training.state_holder import StateHolder


class _KeptSum(NamedTuple):
    """What was summed for a leader that is gone."""

    position: tuple[str, int, str]  # the state that it is the gradient at
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
        super().__init__(wire, backbones, holder, bytes_per_second=bytes_per_second, say=say)
        assert holder.compute is not None
        self.compute: Compute = holder.compute
        self._sum: Any | None = None
        self._summed: dict[int, BlockResult] = {}
        self._pending: dict[int, tuple[Any, BlockResult]] = {}
        self._done: list[BlockResult] = []  # that the leader has not been told of
        self._kept: _KeptSum | None = None
        self._leaders = 0  # that were lost
        self.samples = 0  # that were computed and counted

    @property
    def state_codec(self) -> str:
        return self.compute.settings.state_codec

    async def run(self) -> None:
        """Until the run is over, or `leave` is called.

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
                await self._go()
            for task in done - {leaving}:
                task.result()
        finally:
            for task in (*tasks, leaving):
                task.cancel()
            await asyncio.gather(*tasks, leaving, return_exceptions=True)

    async def _go(self) -> None:
        """Hands over what is summed so far."""
        while (
            self.group_state is not None and self.group_state.plan is not None and self.is_current
        ):
            await self.changed(1.0)  # a round goes on: it gets what we have by itself
        blocks = tuple(sorted(self._summed))
        content = b"" if self._sum is None else np.asarray(self._sum, "<f4").tobytes()
        await self.say_goodbye(blocks if content else (), content)

    # --- the sum -------------------------------------------------------------------------------

    def gradient_sum(self, plan: RoundPlan) -> np.ndarray | None:
        expected = {
            block for one in plan.senders if one.name == self.wire.name for block in one.blocks
        }
        if not expected:
            return None
        if self._kept is not None:
            self._take_back(self._kept)  # the answer that it counts was lost, or is on its way
        for block in expected - set(self._summed):
            if block in self._pending:
                self._count(block)  # the answer that it counts was lost
        if set(self._summed) != expected:
            self._give_up()
            return None
        return np.asarray(self._sum)

    def _take_back(self, kept: "_KeptSum") -> None:
        """What was kept is the sum again, if nothing was summed since and it is still of use."""
        self._kept = None
        if kept.position == self.holder.position and not self._summed:
            self._sum, self._summed = kept.total, kept.summed

    def _give_up(self) -> None:
        """The sum is not what the leader believes it is."""
        self._forget()
        self._spawn(self._tell_forgotten())

    async def _tell_forgotten(self) -> None:
        work = WorkRequest(
            step=self.holder.step,
            lineage=self.holder.lineage,
            done=(),
            wants_more=False,
            forget=True,
        )
        await self._ask_for(work)

    def _count(self, block: int) -> None:
        gradient, self._summed[block] = self._pending.pop(block)
        self._sum = gradient if self._sum is None else self.compute.add(self._sum, gradient)
        self.samples += self.compute.settings.block_rows

    def _forget(self) -> None:
        self._sum, self._summed, self._pending, self._done = None, {}, {}, []

    def on_leader_lost(self) -> None:
        for block in list(self._pending):
            self._count(block)  # nobody else was told that it should
        if self._summed:
            self._kept = _KeptSum(self.holder.position, self._sum, self._summed)
        self._leaders += 1
        self._forget()

    def fetched(self) -> None:
        self._forget()

    def on_step(self, closed: ClosedStep) -> None:
        self._kept = None
        self._forget()
        self._say(f"step {closed.step + 1:,}: loss {closed.loss:.3f}")

    # --- computing -----------------------------------------------------------------------------

    async def _compute_forever(self) -> None:
        await asyncio.to_thread(self.compute.warm_up)
        while True:
            group_state = self.group_state
            if not self.is_current or group_state is None or group_state.plan is not None:
                await self.changed(1.0)
                continue
            if self._kept is not None and not await self._offer_kept(self._kept):
                await self.changed(0.1)
                continue
            leased, rows = await self._ask_for(self._report(wants_more=True))
            if leased is None or not leased.blocks:
                await self.changed(min(group_state.refresh_seconds, 1.0))
                continue
            await self._compute_blocks(leased, rows)

    async def _offer_kept(self, kept: "_KeptSum") -> bool:
        """To whoever leads now; False where there was no answer, and it is to be asked again."""
        here = self.holder
        if kept.position != here.position or self._summed:
            self._kept = None
            return True
        done = tuple(kept.summed.values())
        work = WorkRequest(
            step=here.step, lineage=here.lineage, done=done, wants_more=False, kept=True
        )
        leased, _ = await self._answer_to(work)
        if leased is None:
            return False
        if self._kept is kept:  # else a round has begun meanwhile, or this leader is gone as well
            self._kept = None
            if leased.accepted:
                self._take_back(kept)
        return True

    async def _compute_blocks(self, leased: WorkReply, rows: list[dict]) -> None:
        assert self.holder.state is not None
        parts, position, leaders = self.holder.state.parts, self.holder.position, self._leaders
        reporting: asyncio.Task[Any] | None = None
        for block, of_block in zip(leased.blocks, rows, strict=True):
            started = time.monotonic()
            gradient, loss, targets = await asyncio.to_thread(
                self.compute.gradient, parts, of_block
            )
            if (self.holder.position, self._leaders) != (position, leaders):
                return
            seconds = time.monotonic() - started
            done = BlockResult(block=block, loss=loss, targets=targets, seconds=seconds)
            self._pending[block] = gradient, done
            self._done.append(done)
            # The next block does not wait for the leader; after the last, the next lease is asked.
            if reporting is not None:
                await reporting
            if block != leased.blocks[-1]:
                reporting = self._spawn(self._ask_for(self._report(wants_more=False)))

    def _report(self, *, wants_more: bool) -> WorkRequest:
        done, self._done = tuple(self._done), []
        return WorkRequest(
            step=self.holder.step, lineage=self.holder.lineage, done=done, wants_more=wants_more
        )

    async def _ask_for(self, work: WorkRequest) -> tuple[WorkReply | None, list[dict]]:
        """Reports and asks; what counts is added to the sum."""
        asked = self.holder.position, self._leaders
        leased, content = await self._answer_to(work)
        if (self.holder.position, self._leaders) != asked:
            return None, []
        if leased is None:
            self._done = [*work.done, *self._done]  # to be told again
            return None, []
        for block in leased.accepted:
            if block in self._pending:
                self._count(block)
        for one in work.done:
            if one.block not in leased.accepted:
                self._pending.pop(one.block, None)
        if not self._summed.keys().isdisjoint(leased.blocks):
            self._give_up()  # it would be summed twice
            return None, []
        settings = self.compute.settings
        sizes = [
            min(settings.block_rows, settings.inner.batch_size - block * settings.block_rows)
            for block in leased.blocks
        ]
        return leased, unpack_rows(content, sizes, settings.length)

    async def _answer_to(self, work: WorkRequest) -> tuple[WorkReply | None, bytes]:
        """None where there was none."""
        started = time.monotonic()
        try:
            leased, content = await self.wire.ask(
                self.leader_address,
                "work",
                work,
                WorkReply,
                within_seconds=30.0,
                from_backbone=True,
            )
        except PEER_ERRORS:  # also of who refuses: the board will tell why
            await asyncio.sleep(0.05)
            return None, b""
        self._answers.add(time.monotonic() - started)
        return leased, content
