"""The leader computes the gradients of drawn peers again and compares. No peer's word is used.

The leader knows some values of every slice as their sender signed them (`training.sum_proof`). The
first sum of a credential, and the next sum after a doubt, are checked before the step is taken.
Other checks run beside the following steps. A sum that is clearly different is a lie, and so are
two that differ a little. If the leader cannot keep up, fewer are checked.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dipaco.swarm.leading.group import SwarmGroup
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.leading.step_rows import StepRows
from dipaco.swarm.network.messages import RoundPlan
from dipaco.swarm.planning.check_schedule import CheckSchedule
from dipaco.swarm.planning.evidence import SHOWN, Evidence
from dipaco.swarm.planning.gradient_verdict import Compared, Verdict, judge, tolerance_of
from dipaco.swarm.training.compute import Compute
from dipaco.swarm.training.sum_proof import SpotPart

WAIT_SECONDS = 10.0  # longest wait for checks before a step is taken
MAX_OPEN = 4  # limit of checks at a time
DOUBTS = 2  # so many slightly different sums of a credential are a lie
AGAIN = "its gradient differed from the leader's; the next is checked again"


class _Check(NamedTuple):
    """A sum that is computed again."""

    number: int  # the check's number
    blocks: tuple[int, ...]
    computing: asyncio.Task[np.ndarray]
    is_waited_for: bool


class GradientChecks:
    """Checks of senders' gradients.

    Args:
      compute: the leader's programs.
      group: its members are checked, and liars are banned from it.
    """

    def __init__(self, compute: Compute, group: SwarmGroup):
        self._compute, self._group = compute, group
        settings = compute.settings
        self._tolerance = tolerance_of(settings.model.compute_dtype, settings.state_codec)
        self._schedule = CheckSchedule(random.SystemRandom())
        self._checks: dict[str, _Check] = {}  # session -> its check in this step
        self._step = -1
        self._judging: set[asyncio.Task[Any]] = set()  # checks of earlier steps
        self._trusted: set[str] = set()  # serials whose last check was passed
        self._doubted: dict[str, set[int]] = {}  # serial -> numbers of the checks that differed
        self._numbers = itertools.count()
        self._one_at_a_time = asyncio.Lock()
        self.num_blocks = 0  # blocks computed again so far

    def begin(self, plan: RoundPlan, parts: Any, batch: Mapping[str, np.ndarray]) -> None:
        """Starts to recompute the sums that drawn senders of a round should have sent.

        Args:
          parts: the parameters of the gradients.
          batch: the rows of the step.
        """
        if plan.step != self._step:
            self._step, self._checks = plan.step, {}
        for one in plan.senders:
            member = self._group.members.get(one.name)
            if member is None or member.certificate.role == "backbone":
                continue
            serial, known = member.certificate.serial, self._checks.get(one.name)
            if known is not None and known.blocks == one.blocks:
                continue  # the round is held again
            if not self._schedule.is_due(serial, plan.step):
                continue
            is_waited_for = serial not in self._trusted
            if len(self._judging) >= MAX_OPEN and not is_waited_for:
                self._schedule.check_next(serial)
                continue
            computing = asyncio.ensure_future(self._sum(one.blocks, parts, batch))
            self._checks[one.name] = _Check(
                next(self._numbers), one.blocks, computing, is_waited_for
            )

    def forget_step(self) -> None:
        """Forgets this step's checks, since its rows are computed again, at other parameters."""
        self._step, self._checks = -1, {}

    async def settle(self, plan: RoundPlan, spots: Mapping[str, list[SpotPart]]) -> dict[str, str]:
        """Members without which the round must be held again, and why.

        Args:
          spots: parts of the round's senders.
        """
        failed: dict[str, str] = {}
        deadline = time.monotonic() + WAIT_SECONDS
        blocks_of = {one.name: one.blocks for one in plan.senders}
        for name, check in list(self._checks.items()):
            member = self._group.members.get(name)
            if member is None or blocks_of.get(name) != check.blocks:
                continue
            judging = asyncio.ensure_future(
                self._judge(member, check.number, check.computing, plan, spots.get(name, []))
            )
            self._judging.add(judging)
            judging.add_done_callback(self._judging.discard)
            if check.is_waited_for:
                await asyncio.wait([judging], timeout=max(deadline - time.monotonic(), 0.01))
                if judging.done() and (why := judging.result()):
                    failed[name] = why
        if not failed:
            self._checks = {}
        return failed

    async def accepts(
        self,
        member: GroupMember,
        plan: RoundPlan,
        summed: np.ndarray,
        parts: Any,
        batch: Mapping[str, np.ndarray],
    ) -> bool:
        """True if the sum that a member leaves behind may count.

        Args:
          plan: a plan with that member as its sender.
        """
        if not self._schedule.is_due(member.certificate.serial, plan.step):
            return True
        computing = asyncio.ensure_future(self._sum(plan.senders[0].blocks, parts, batch))
        whole = SpotPart(0, summed, np.zeros(len(summed)), b"")
        number = next(self._numbers)
        return not await self._judge(member, number, computing, plan, [whole])

    async def is_finite(self, blocks: Sequence[int], rows: StepRows) -> bool:
        """True if the leader computes a finite gradient for these blocks."""
        return bool(np.isfinite(await self._sum(blocks, rows.parts, rows.batch)).all())

    async def _sum(
        self, blocks: Sequence[int], parts: Any, batch: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        def compute() -> np.ndarray:
            total = None
            for block in blocks:
                rows = self._compute.rows_of(batch, block)
                gradient = self._compute.gradient(parts, rows)[0]
                total = gradient if total is None else self._compute.add(total, gradient)
            return np.asarray(total)

        async with self._one_at_a_time:
            found = await asyncio.to_thread(compute)
        self.num_blocks += len(blocks)
        return found

    async def _judge(
        self,
        member: GroupMember,
        number: int,
        computing: asyncio.Task[np.ndarray],
        plan: RoundPlan,
        spots: Sequence[SpotPart],
    ) -> str:
        """The reason why a member's sum does not count; empty if it does.

        Args:
          number: the check's number. A sum may be judged in several rounds, but is doubted only
            once.
        """
        expected = await computing
        compared = [
            # This sum also holds the codec's loss from the last one.
            Compared(one.values, expected[one.start :][: len(one.values)], 2.0 * one.rounding)
            for one in spots
        ]
        if not compared:
            return ""
        verdict, serial = judge(compared, self._tolerance), member.certificate.serial
        if not verdict.problem:
            self._trusted.add(serial)
            return ""
        self._trusted.discard(serial)
        self._doubted.setdefault(serial, set()).add(number)
        if not verdict.is_clear and len(self._doubted[serial]) < DOUBTS:
            self._schedule.check_next(serial)
            self._checks.pop(member.name, None)  # the next check may have the same rows
            return AGAIN
        del self._doubted[serial]  # it is locked from now on
        evidence = _evidence(plan, verdict, spots[verdict.spot], compared[verdict.spot])
        self._group.ban(member.name, evidence.reason, evidence)
        return f"refused: {evidence.reason}"


def _evidence(plan: RoundPlan, verdict: Verdict, spot: SpotPart, one: Compared) -> Evidence:
    at = np.argsort(-np.abs(one.given - one.expected))[:SHOWN]
    return Evidence(
        "gradient",
        plan.step,
        plan.number,
        spot.start,
        spot.start + len(one.given),
        f"its gradient {verdict.problem}",
        tuple(map(float, one.given[at])),
        tuple(map(float, one.expected[at])),
        spot.header.hex(),
    )
