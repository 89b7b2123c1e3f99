"""A volunteer: a peer that computes gradients of leased rows at its own pace.

A computed block is *pending* until the leader has accepted it, and only then added to the sum. So
the leader knows exactly which blocks are in a peer's sum, and none is in two sums. When the leader
is lost the sum is kept: the next leader of the same step may adopt it.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dipaco.swarm.network.messages import (
    Ack,
    BlockResult,
    ClosedStep,
    GroupState,
    RoundPlan,
    WorkReply,
    WorkRequest,
)
from dipaco.swarm.network.streams import first_of, side_by_side
from dipaco.swarm.network.wire import PEER_ERRORS, Wire
from dipaco.swarm.planning.timing import Rate
from dipaco.swarm.roles.peer import Peer
from dipaco.swarm.training.compute import Compute, unpack_rows
from dipaco.swarm.training.state_holder import StateHolder

NO_ROWS = {  # reasons for having no rows, keyed as in `members.WHY`
    "is parked": "waits: the others need less for what is left of a step than this machine for one "
    "block. It is asked again at every step",
    "is suspended": "suspended: two averagings in a row did not end with this machine, mostly "
    "since its part was late. It gets rows again after a while, or as soon as no other computes",
}
SPEED_SHARE = 0.3  # weight of the newest block in a volunteer's measured speed


@dataclasses.dataclass
class StepSum:
    """The sum of one step."""

    step: int
    lineage: str  # lineage of the state from which the gradients are computed
    start: Any  # what of that state they are computed from
    total: Any | None = None
    summed: dict[int, BlockResult] = dataclasses.field(default_factory=dict)  # blocks in `total`
    pending: dict[int, tuple[Any, BlockResult]] = dataclasses.field(default_factory=dict)
    done: list[BlockResult] = dataclasses.field(default_factory=list)  # not reported yet

    def note(self, gradient: Any, done: BlockResult) -> None:
        """Notes a computed block."""
        self.pending[done.block] = gradient, done
        self.done.append(done)

    def add(self, block: int, add: Callable[[Any, Any], Any]) -> None:
        """Adds a pending block that counts."""
        gradient, self.summed[block] = self.pending.pop(block)
        self.total = gradient if self.total is None else add(self.total, gradient)


class Volunteer(Peer):
    """A peer that computes."""

    computes = True

    def __init__(self, wire: Wire, backbones: tuple[str, ...], holder: StateHolder, **more: Any):
        super().__init__(wire, backbones, holder, **more)
        self.compute: Compute = holder.compute
        self._sum: StepSum | None = None
        self._kept: StepSum | None = None  # the sum for a lost leader
        self._leaders_lost, self._checked = 0, -1  # `_checked`: its last round as a checker
        self._was_late = False  # the last block's step was over before it was done
        self._is_computing, self._without_rows, self._said_why = False, "", ""
        self.samples = 0  # computed and accepted samples
        self._speed = Rate()  # samples per second while it computes

    @property
    def samples_per_second(self) -> float:
        """Its speed while it computes; 0 before the first block."""
        return self._speed.per_second

    @property
    def does(self) -> str:
        """This machine's present activity, in the words of `leading.members`."""
        if self._is_computing:
            return "computes"
        if self._without_rows:
            return self._without_rows
        state = self.group_state
        is_in = state is not None and state.plan is not None and self._sum_of(state.plan.step)
        return "averages" if is_in else "waits"

    async def run(self) -> None:
        """Takes part until the run is over, or `leave`. Raises as `LeaderConnection.find`."""
        turns = self.poll_forever(), self.follow_forever(), self._compute_forever()
        async with side_by_side(self._is_leaving.wait(), *turns) as (leaving, *tasks):
            await first_of(leaving, *tasks)
            if leaving.done():
                await self._leave_in_order(tasks)
            for ended in (task for task in tasks if task.done()):
                ended.result()

    async def _leave_in_order(self, tasks: list[asyncio.Task]) -> None:
        """Stays for the step whose rows it computes, so that what it has computed counts."""
        while self._sum and (state := self.group_state) and state.is_open:
            if self.is_without_leader(tasks):
                break
            await self.changed.wait(1.0)
        if not self.is_without_leader(tasks):
            await self.send_leave()

    # --- the sum -------------------------------------------------------------------------------

    def gradient_sum(self, plan: RoundPlan) -> np.ndarray | None:
        expected = {
            block for one in plan.senders if one.name == self.wire.name for block in one.blocks
        }
        if not expected:
            return None
        kept = self._kept
        if kept is not None and kept.step == plan.step:
            self._kept = None
            self._restore(kept)  # the reply that it counts was lost, or is on its way
        mine = self._sum_of(plan.step)
        if mine is not None:
            for block in (expected - set(mine.summed)) & set(mine.pending):
                self._add(mine, block)  # the reply that it counts was lost
        if mine is None or set(mine.summed) != expected:
            self._discard_sum()
            return None
        return np.asarray(mine.total)

    def _restore(self, kept: StepSum) -> None:
        """Continues a kept sum, if it is still wanted and nothing was summed since."""
        if self._is_wanted(kept):
            self._sum = kept

    def _is_wanted(self, kept: StepSum) -> bool:
        other = self._sum_of(kept.step)
        return kept.lineage == self.holder.lineage and not (other and other.summed)

    def _sum_of(self, step: int) -> StepSum | None:
        return self._sum if self._sum is not None and self._sum.step == step else None

    def _discard_sum(self) -> None:
        """Drops a sum that differs from the leader's record, so that both begin again."""
        self._sum, here = None, self.holder
        lost = WorkRequest(step=here.step, lineage=here.lineage, sum_is_lost=True)
        self._spawn(self._request_work(lost))

    def _add(self, mine: StepSum, block: int) -> None:
        mine.add(block, self.compute.add)
        self.samples += self.compute.settings.samples_in_block

    def on_leader_lost(self) -> None:
        if (mine := self._sum) is not None:
            for block in list(mine.pending):
                self._add(mine, block)  # no other peer was given it
            mine.done = []
            if mine.summed:
                self._kept = mine
        self._leaders_lost += 1
        self._sum = None

    def on_state_fetched(self) -> None:
        self._sum = None

    def on_step(self, closed: ClosedStep) -> None:
        if self._sum is not None and self._sum.step <= closed.step:
            self._sum = None
        if self._kept is not None and self._kept.step <= closed.step:
            self._kept = None
        self._say(f"step {closed.step + 1:,}: loss {closed.loss:.3f}")

    def on_check(self, plan: RoundPlan) -> None:
        mine = self._sum_of(plan.step)
        if mine is not None and plan.number != self._checked:
            self._checked = plan.number
            self._spawn(self._check(mine))

    async def _check(self, mine: StepSum) -> None:
        """Computes what another has computed, and gives the leader the sum."""
        asked, settings = Ack(), self.compute.settings
        try:
            lease, content = await self._ask_for_rows("check", asked)
            if lease.lineage != mine.lineage:
                return
            total = None
            for rows in unpack_rows(content, settings.rows_in(lease.blocks), settings.length):
                found = await asyncio.to_thread(self.compute.gradient, mine.start, rows, mine.step)
                total = found[0] if total is None else self.compute.add(total, found[0])
            payload = np.asarray(total, "<f4").tobytes()
            within = 20.0 + 3.0 * self.wire.meter.seconds("up", len(payload))
            await self.wire.ask(
                self.leader.address, "checked", asked, Ack, payload=payload, within_seconds=within
            )
        except PEER_ERRORS:
            return  # then it is not checked, or the leader does it

    # --- computing -----------------------------------------------------------------------------

    async def _compute_forever(self) -> None:
        await asyncio.to_thread(self.compute.warm_up)
        while True:
            state = self.group_state
            if state is None or not self._may_ask(state):
                await self.changed.wait(1.0)
                continue
            if self._kept is not None:  # a peer that asks for rows has brought its sum
                if not await self._offer_kept_sum(self._kept):
                    await self.changed.wait(0.1)
                continue
            reply, rows = await self._request_work(self._report(wants_more=True))
            self._note_rows(reply)
            if reply is None or not reply.blocks:
                ask_again = 1.0 if reply is None else reply.ask_again_seconds
                await self.changed.wait(max(ask_again, 0.01))
                continue
            self._is_computing = True
            await self._compute_blocks(reply, rows)
            self._is_computing = False

    def _may_ask(self, state: GroupState) -> bool:
        """True if there may be rows to compute."""
        if self._is_leaving.is_set() and not self._sum:  # one that leaves begins no step
            return False
        return self.is_current and state.plan is None

    def _note_rows(self, reply: WorkReply | None) -> None:
        """Says why there are none, once until there are some again."""
        why = "" if reply is None or reply.blocks else reply.why
        self._without_rows = why = why if why in NO_ROWS else ""
        if why and why != self._said_why:
            self._say(NO_ROWS[why])
        if why or (reply is not None and reply.blocks):
            self._said_why = why

    async def _offer_kept_sum(self, kept: StepSum) -> bool:
        """Offers a kept sum to the new leader. False without a reply: it is offered again."""
        if not self._is_wanted(kept):
            self._kept = None
            return True
        work = WorkRequest(
            step=kept.step,
            lineage=kept.lineage,
            done=tuple(kept.summed.values()),
            for_last_leader=True,
        )
        reply, _ = await self._send(work)
        if reply is None:
            return False
        # Otherwise a round has begun meanwhile, or this leader is lost as well.
        if self._kept is kept:
            self._kept = None
            if reply.accepted:
                self._restore(kept)
        return True

    async def _compute_blocks(self, reply: WorkReply, rows: list[dict]) -> None:
        mine = self._sum_of(reply.step)
        if mine is None:
            return
        reporting: asyncio.Task[Any] | None = None
        for block, of_block in zip(reply.blocks, rows, strict=True):
            started = time.monotonic()
            gradient, loss, targets = await asyncio.to_thread(
                self.compute.gradient, mine.start, of_block, mine.step
            )
            seconds = time.monotonic() - started
            samples = self.compute.settings.samples_in_block
            self._speed = self._speed.after(samples, max(seconds, 1e-6), SPEED_SHARE)
            if self._sum is not mine:  # the step is over, or the leader lost
                self._was_late = True
                return
            done = BlockResult(block=block, loss=loss, targets=targets)
            mine.note(gradient, done)
            # The next block does not wait for the report. The last block's is the next request.
            if reporting is not None:
                await reporting
            if block != reply.blocks[-1]:
                reporting = self._spawn(self._request_work(self._report(wants_more=False)))

    def _report(self, *, wants_more: bool) -> WorkRequest:
        """Reports the blocks that are done."""
        was_late, self._was_late = self._was_late, False
        step, lineage, done = self.holder.step, self.holder.lineage, ()
        if (mine := self._sum) is not None and mine.done:
            step, lineage, done = mine.step, mine.lineage, tuple(mine.done)
            mine.done = []
        return WorkRequest(
            step=step, lineage=lineage, done=done, wants_more=wants_more, was_late=was_late
        )

    async def _request_work(self, work: WorkRequest) -> tuple[WorkReply | None, list[dict]]:
        """Reports and asks for more. Accepted blocks are added to the sum."""
        asked, leaders = self._sum_of(work.step), self._leaders_lost
        reply, content = await self._send(work)
        if leaders != self._leaders_lost:
            return None, []
        if asked is not None and asked is self._sum:
            if reply is None:
                asked.done = [*work.done, *asked.done]  # reported again
                return None, []
            for block in reply.accepted:
                if block in asked.pending:
                    self._add(asked, block)
            for one in work.done:
                if one.block not in reply.accepted:
                    asked.pending.pop(one.block, None)
        if reply is None or not reply.blocks:
            return reply, []
        here, mine = self.holder, self._sum
        if reply.lineage != here.lineage or here.state is None:
            return None, []  # its step is over
        if mine is None or mine.lineage != reply.lineage:
            start = self.compute.start_of(here.state)
            mine = self._sum = StepSum(reply.step, reply.lineage, start)
        if not mine.summed.keys().isdisjoint(reply.blocks):
            self._discard_sum()  # a block would be in it twice
            return None, []
        settings = self.compute.settings
        return reply, unpack_rows(content, settings.rows_in(reply.blocks), settings.length)

    async def _ask_for_rows(self, name: str, asked: WorkRequest | Ack) -> tuple[WorkReply, bytes]:
        """(the leader's reply, its payload). Raises one of `PEER_ERRORS`."""
        return await self.wire.ask(
            self.leader.address, name, asked, WorkReply, within_seconds=30.0, from_backbone=True
        )

    async def _send(self, work: WorkRequest) -> tuple[WorkReply | None, bytes]:
        """(the reply, its payload); None if there was no reply."""
        started = time.monotonic()
        try:
            reply, content = await self._ask_for_rows("work", work)
        except PEER_ERRORS:  # This includes refusals. The next poll gives their reason.
            await asyncio.sleep(0.05)
            return None, b""
        self._reply_seconds.add(time.monotonic() - started)
        return reply, content
