"""The leader computes the gradients of drawn peers again and compares. No peer's word is used.

The leader gets a drawn sender's parts from their reducers, and compares every value. Credentials
that have not passed a check since their last doubt, and sums that are far larger than others, are
checked before the step is taken, others beside the following steps. A sum that is clearly different
is a lie, and so are two that differ a little. If the leader cannot keep up, it *lends* a check: a
drawn sender of another holder computes the rows as well, and learns of it when all means are there.
If the two differ, the leader computes the sum itself, and judges both. Further checks are left out.
"""

import asyncio
import collections
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dipaco.swarm.leading.group import SwarmGroup
from dipaco.swarm.leading.members import GroupMember
from dipaco.swarm.leading.step_rows import StepRows
from dipaco.swarm.leading.sum_checks import Lie, Sketches, SumChecks
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import RoundPlan
from dipaco.swarm.network.streams import side_by_side
from dipaco.swarm.network.wire import PEER_ERRORS
from dipaco.swarm.planning.checks import (
    SHOWN,
    TOLERANCES,
    CheckDraws,
    Compared,
    Evidence,
    Verdict,
    judge,
)
from dipaco.swarm.planning.track_records import holder_of
from dipaco.swarm.training.compute import Compute

WAIT_SECONDS = 10.0  # longest wait for checks before a step is taken
MAX_OPEN, MAX_LENT = 4, 8  # limits of checks at a time: the leader's own, and lent ones
TAKEN_SECONDS = 2.0  # Longest wait for a checker to come for its rows. Most need one round trip.
LENT_SECONDS = 600.0  # longest wait for a lent sum
DOUBTS = 2  # so many slightly different sums of a credential are a lie
AGAIN = "its gradient differed from the leader's; the next is checked again"
# A sum that is so many times as large as the group's per target is checked before it counts.
MAX_TIMES = 3.0
REMEMBERED = 32  # rounds kept for comparison
SPOT_VALUES = 1024  # values that are compared by themselves


class LentCheck(NamedTuple):
    """Blocks that a member computes because another has."""

    checker: str
    blocks: tuple[int, ...]
    rows: StepRows
    taken: asyncio.Event  # the checker has the rows
    given: asyncio.Future[np.ndarray | None]  # its sum; None: it did not come


class _Check(NamedTuple):
    """A sum that is computed again."""

    number: int
    blocks: tuple[int, ...]
    computing: asyncio.Task[np.ndarray | None]  # None: its checker gave none
    is_waited_for: bool
    lent: LentCheck | None = None


class GradientChecks:
    """Checks of senders' gradients. `on_withheld`: called with each reducer that hides a part."""

    def __init__(
        self,
        compute: Compute,
        group: SwarmGroup,
        sums: SumChecks,
        on_withheld: Callable[[str], None],
    ):
        self._compute, self._group, self._sums = compute, group, sums
        self._on_withheld = on_withheld
        self._tolerance = TOLERANCES[compute.settings.model.compute_dtype]
        self._rng = random.SystemRandom()
        self._draws = CheckDraws(self._rng)
        self.lent: dict[str, LentCheck] = {}  # keyed by the checker
        self._checks: dict[str, _Check] = {}  # session -> its check in this step
        self._step = -1
        # open checks, and whether the leader computes them
        self._judging: dict[asyncio.Task[Any], bool] = {}
        self._doubted: dict[str, set[int]] = {}  # serial -> numbers of the checks that differed
        self._usual: collections.deque[float] = collections.deque(maxlen=REMEMBERED)
        self._numbers = itertools.count()
        self._one_at_a_time = asyncio.Lock()
        self.num_due = self.num_checked = 0

    def begin(self, plan: RoundPlan, rows: StepRows) -> None:
        """Starts to recompute the sums that drawn senders of a round should have sent."""
        if plan.step != self._step:
            self._step, self._checks = plan.step, {}
        for one in plan.senders:
            member = self._checked_member(one.name)
            serial = "" if member is None else member.certificate.serial
            if not (serial and self._draws.is_due(serial, one.name, plan.step)):
                continue
            known = self._checks.get(one.name)
            if known is not None and known.blocks == one.blocks:
                continue  # the round is held again
            is_waited_for = not self._draws.is_proven(serial)
            self.num_due += 1
            if sum(self._judging.values()) < MAX_OPEN or is_waited_for:
                self._start(one.name, one.blocks, rows, is_waited_for=is_waited_for)
            else:
                self._lend(one.name, one.blocks, rows, plan)

    def _lend(self, name: str, blocks: tuple[int, ...], rows: StepRows, plan: RoundPlan) -> None:
        """Draws who computes a sender's rows as well, among the holders of the parameters."""
        able = [
            one.name
            for one in plan.senders
            if holder_of(one.name) != holder_of(name)
            and one.name not in self.lent
            and (member := self._checked_member(one.name)) is not None
            and self._draws.is_proven(member.certificate.serial)
        ]
        if able and len(self.lent) < MAX_LENT:
            given = asyncio.get_running_loop().create_future()
            lent = LentCheck(self._rng.choice(able), blocks, rows, asyncio.Event(), given)
            self.lent[lent.checker] = lent
            computing = asyncio.ensure_future(self._given(lent))
            self._checks[name] = _Check(next(self._numbers), blocks, computing, False, lent)

    async def _given(self, lent: LentCheck) -> np.ndarray | None:
        try:
            async with asyncio.timeout(LENT_SECONDS):
                return await lent.given
        except TimeoutError:
            return None
        finally:
            del self.lent[lent.checker]

    @property
    def to_take(self) -> tuple[str, ...]:
        """Checkers that have not come for their rows."""
        return tuple(name for name, one in self.lent.items() if not one.taken.is_set())

    async def wait_until_taken(self) -> None:
        """Waits a little for them: when the step is taken, its parameters are gone."""
        taking = [asyncio.ensure_future(self.lent[name].taken.wait()) for name in self.to_take]
        async with side_by_side(*taking):
            await asyncio.wait(taking, timeout=TAKEN_SECONDS)
        for name in self.to_take:
            if not self.lent[name].given.done():
                self.lent[name].given.set_result(None)

    def _checked_member(self, name: str) -> GroupMember | None:
        member = self._group.members.get(name)
        return None if member is None or member.certificate.role == "backbone" else member

    def _start(
        self, name: str, blocks: tuple[int, ...], rows: StepRows, *, is_waited_for: bool
    ) -> None:
        known = self._checks.get(name)
        if known is not None and known.blocks == blocks and known.lent is None:
            self._checks[name] = known._replace(is_waited_for=is_waited_for)
            return
        computing = asyncio.ensure_future(self._sum(blocks, rows))
        self._checks[name] = _Check(next(self._numbers), blocks, computing, is_waited_for)

    async def settle(self, plan: RoundPlan, rows: StepRows) -> dict[str, str]:
        """Members without which the round must be held again, and why."""
        failed: dict[str, str] = {}
        blocks_of = {one.name: one.blocks for one in plan.senders}
        oversized = await self._oversized(plan)
        for name in oversized:
            if self._checked_member(name) is not None:
                self._start(name, blocks_of[name], rows, is_waited_for=True)
        deadline = time.monotonic() + WAIT_SECONDS
        for name, check in list(self._checks.items()):
            member = self._group.members.get(name)
            if member is None or blocks_of.get(name) != check.blocks:
                continue
            of_round = self._sums.sketches
            judging = asyncio.ensure_future(self._judge(member, check, plan, of_round))
            self._judging[judging] = check.lent is None
            judging.add_done_callback(self._judging.pop)
            if check.is_waited_for:
                await asyncio.wait([judging], timeout=max(deadline - time.monotonic(), 0.01))
                if judging.done():
                    failed |= judging.result()
                elif name in oversized:
                    times = f"{oversized[name]:.0f} times as large as the group's"
                    failed[name] = f"its gradient is {times}, and was not checked in time"
        if not failed:
            self._checks = {}
        return failed

    async def _oversized(self, plan: RoundPlan) -> dict[str, float]:
        """Senders with a far larger sum than others, and how many times the usual size it is."""
        targets = {one.name: max(one.targets, 1.0) for one in plan.senders}
        sizes = await asyncio.to_thread(self._sums.sizes, plan)
        scale = {name: size / targets[name] for name, size in sizes.items()}
        found = oversized_sums(scale, targets, list(self._usual))
        if not found and any(scale.values()):
            self._usual.append(statistics.median(scale.values()))
        return found

    async def is_finite(self, blocks: Sequence[int], rows: StepRows) -> bool:
        """True if the leader computes a finite gradient for these blocks."""
        return bool(np.isfinite(await self._sum(blocks, rows)).all())

    async def loss_of(self, rows: StepRows) -> float:
        """The loss per target of the step's first block, as the leader computes it."""
        of_block = self._compute.rows_of(rows.batch, 0)
        async with self._one_at_a_time:
            found = await asyncio.to_thread(self._compute.gradient, rows.start, of_block, rows.step)
        return found[1] / max(found[2], 1.0)

    async def _sum(self, blocks: Sequence[int], rows: StepRows) -> np.ndarray:
        def compute() -> np.ndarray:
            total = None
            for block in blocks:
                of_block = self._compute.rows_of(rows.batch, block)
                gradient = self._compute.gradient(rows.start, of_block, rows.step)[0]
                total = gradient if total is None else self._compute.add(total, gradient)
            return np.asarray(total)

        async with self._one_at_a_time:
            return await asyncio.to_thread(compute)

    async def _judge(
        self, member: GroupMember, check: _Check, plan: RoundPlan, sketches: Sketches
    ) -> dict[str, str]:
        """Members without which the round must be held again, and why: this one, if its sum does
        not count, and reducers that do not show its parts.
        """
        codec, parts, withheld = codec_of(plan.codec), [], dict[str, str]()
        for number, part in enumerate(plan.slices):
            try:
                content = await self._sums.part_of(plan, part, member.name)
                self._sums.check_sketch(plan, number, member.name, content, sketches)
            except Lie as lie:
                self._ban(lie)
                if lie.who == member.name:
                    try:  # The mean fitted its sketch, so the reducer may have lied with it.
                        await self._sums.search_again(plan, number, sketches)
                    except Lie as other:
                        self._ban(other)
                    except PEER_ERRORS:
                        self._on_withheld(part.reducer)
                    return {member.name: f"refused: {lie.evidence.reason}"}
                withheld[part.reducer] = f"refused: {lie.evidence.reason}"
            except PEER_ERRORS:
                withheld[part.reducer] = "it does not show what it has added up"
                self._on_withheld(part.reducer)  # also if it has left meanwhile
            else:
                num_values = part.stop - part.start
                rounding = codec.rounding(content, num_values)
                parts.append((part.start, codec.decode(content, num_values), rounding))
        if withheld:
            self._draws.doubt(member.certificate.serial)  # its next sum is checked
        if not parts:
            return withheld
        found = await self._verdict(member, check, plan, parts, passes=not withheld)
        return {member.name: found} if found else withheld

    def _ban(self, lie: Lie) -> None:
        self._group.ban(lie.who, lie.evidence.reason, lie.evidence)

    async def _verdict(
        self,
        member: GroupMember,
        check: _Check,
        plan: RoundPlan,
        parts: Sequence[tuple[int, np.ndarray, np.ndarray]],
        *,
        passes: bool,
    ) -> str:
        """The same, by parts of the sum: (start, values, largest error of each from coding). A sum
        may be judged in several rounds, but is doubted once.
        """
        expected = await check.computing
        if expected is None or not np.isfinite(expected).all():
            return ""  # nobody has computed it, or that is the model's: no verdict on anybody
        found = await self._compared(parts, expected)
        if check.lent is not None and found[0].problem:
            claimed, expected = expected, await self._sum(check.blocks, check.lent.rows)
            if (checker := self._group.members.get(check.lent.checker)) is not None:
                of_checker = await self._compared([(0, claimed, np.zeros(len(claimed)))], expected)
                self._conclude(checker, check.number, plan, of_checker)
            found = await self._compared(parts, expected)
        self.num_checked += 1
        return self._conclude(member, check.number, plan, found, passes=passes)

    async def _compared(
        self, parts: Sequence[tuple[int, np.ndarray, np.ndarray]], expected: np.ndarray
    ) -> tuple[Verdict, int, Compared]:
        """The verdict, and the spot that shows it."""
        spots = [
            (start + first, Compared(*(one[first : first + SPOT_VALUES] for one in compared)))
            for start, values, rounding in parts
            for compared in [(values, expected[start : start + len(values)], rounding)]
            for first in range(0, len(values), SPOT_VALUES)
        ]
        verdict = await asyncio.to_thread(judge, [one for _, one in spots], self._tolerance)
        return verdict, *spots[verdict.spot]

    def _conclude(
        self,
        member: GroupMember,
        number: int,
        plan: RoundPlan,
        found: tuple[Verdict, int, Compared],
        *,
        passes: bool = True,
    ) -> str:
        """Acts on the verdict of a check. Returns why the member's sum does not count, if so."""
        (verdict, start, one), serial = found, member.certificate.serial
        if not verdict.problem:
            if passes:
                self._draws.passed(serial)
            return ""
        self._draws.doubt(serial)
        self._doubted.setdefault(serial, set()).add(number)
        if not verdict.is_clear and len(self._doubted[serial]) < DOUBTS:
            self._checks.pop(member.name, None)  # the next check may have the same rows
            return AGAIN
        del self._doubted[serial]  # it is locked from now on
        problem, stop = f"its gradient {verdict.problem}", start + len(one.given)
        at = np.argsort(-np.abs(one.given - one.expected))[:SHOWN]
        values = tuple(map(float, one.given[at])), tuple(map(float, one.expected[at]))
        evidence = Evidence("gradient", plan.step, plan.number, start, stop, problem, *values)
        self._group.ban(member.name, evidence.reason, evidence)
        return f"refused: {evidence.reason}"


def oversized_sums(
    scale: Mapping[str, float], targets: Mapping[str, float], usual: Sequence[float]
) -> dict[str, float]:
    """Senders whose sum is far too large, and how many times the group's size it is. A mean over
    few targets is noisier: by the root of how many fewer they are. `scale`: size of each sender's
    sum, per target. `usual`: the same in earlier rounds.
    """
    max_targets, found = max(targets.values(), default=1.0), {}
    for name, own in scale.items():
        known = [*usual, *(value for other, value in scale.items() if other != name)]
        if not known or not (reference := statistics.median(known)):
            continue
        noise = math.sqrt(max_targets / targets[name])
        if not own <= MAX_TIMES * noise * reference:
            found[name] = own / reference
    return found
