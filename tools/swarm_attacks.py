"""Volunteers that lie, each with one pass, against a group of honest ones: how many of its sums go
into the model until a liar is out, who else is, and what it costs.

    python tools/swarm_attacks.py --runs 20                      every attack, as often
    python tools/swarm_attacks.py --minutes 10                   in turn until the time is over
    python tools/swarm_attacks.py --runs 1 --attacks nan zeros   the suite's form
    python tools/swarm_attacks.py --live negated SECONDS FILE swarm join ...

A group is in this process (`tests/support/swarm_rig.py`): a leader, three honest volunteers and the
liar, with tiny models, over TCP on this machine, by a clock that moves on where all of it waits.
`sums` are the liar's sums, or the slices that it added up, in steps that were taken: the median and
the 95 % quantile of all runs. A liar that is not out after `--most` of them is bounded: the table
says so, and how many were. `honest locked` are other credentials. `loss` is the path's after the
last step, in times that of the same steps by one honest machine. `--live` runs a `dipaco` command
line as that liar, at the pace of `swarm_slow.py`, for `swarm_storm.py`. The last line is one JSON
object.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from support.command_line import at_least_one, parser_of

from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import ArrivedReply
from dipaco.swarm.roles.auxiliary import Auxiliary
from dipaco.swarm.roles.peer import Peer
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.sum_sketch import sketch_of

HONEST = ("ana", "bo", "cy")
STEPS_AFTER = 10  # honest steps after the liar is out
MOST_STEPS = 400


# --- liars -----------------------------------------------------------------------------------


def sends(change: Callable[[np.ndarray], np.ndarray]) -> type[Volunteer]:
    """A volunteer whose gradient is another one."""

    class Sends(Volunteer):
        def gradient_sum(self, plan):
            vector = super().gradient_sum(plan)
            return None if vector is None else change(np.array(vector))

    return Sends


def seldom(change: Callable[[np.ndarray], np.ndarray], every: int) -> type[Volunteer]:
    """The same, in one of `every` sums, and never in its first twenty."""
    sums = [0]

    def now_and_then(vector: np.ndarray) -> np.ndarray:
        sums[0] += 1
        return change(vector) if sums[0] > 20 and sums[0] % every == 0 else vector

    return sends(now_and_then)


def in_some_values(vector: np.ndarray) -> np.ndarray:
    """A few tokens' rows: 0.3 % of the values."""
    vector[: max(1, 3 * len(vector) // 1000)] *= -20
    return vector


def gives(lie: Callable[[np.ndarray], np.ndarray]) -> type[Peer]:
    """A reducer whose mean is another one."""

    class Gives(Volunteer):
        def __init__(self, wire, backbones, holder, **settings):
            super().__init__(wire, backbones, holder, **settings)
            add_up = holder.reducer._add_up

            def add_up_and_lie(total):
                add_up(total)
                codec, count = codec_of(total.plan.codec), total.part.stop - total.part.start
                mean = np.array(codec.decode(total.mean, count))
                total.mean = codec.encode(lie(mean).astype(np.float32))

            holder.reducer._add_up = add_up_and_lie

    return Gives


def in_one_value(mean: np.ndarray) -> np.ndarray:
    mean[len(mean) // 2] += 0.1 * np.abs(mean).max()
    return mean


class NanInItsOwnSlice(Volunteer):
    """One NaN in its own part of its own slice."""

    def gradient_sum(self, plan):
        vector = super().gradient_sum(plan)
        if vector is None:
            return None
        vector = np.array(vector)
        for part in plan.slices:
            if part.reducer == self.wire.name:
                vector[part.start] = np.nan
        return vector


class HasTheLastWord(Volunteer):
    """When it has all parts of its slice, it takes another own one, so that the mean is its choice,
    and shows the sketch of that.
    """

    def __init__(self, wire, backbones, holder, **settings):
        super().__init__(wire, backbones, holder, **settings)
        add_up, self._chosen = holder.reducer._add_up, {}
        ask = wire.ask

        def choose(total):
            own, count = wire.name, total.part.stop - total.part.start
            codec = codec_of(total.plan.codec)
            if own in total.parts:
                others = sum(
                    codec.decode(one, count) for name, one in total.parts.items() if name != own
                )
                chosen = np.asarray(self.choice(others), np.float32) - others
                total.parts[own] = codec.encode(np.asarray(chosen, np.float32))
                self._chosen[total.part.start] = total.parts[own]
            add_up(total)

        async def ask_and_forge(address, method, body, reply, **more):
            if method == "sketch" and (plan := self._sender._plan) is not None:
                found = np.frombuffer(body.sketches, "<f8").reshape(len(plan.slices), -1).copy()
                for number, part in enumerate(plan.slices):
                    if part.start in self._chosen:
                        content = self._chosen.pop(part.start)
                        values = codec_of(plan.codec).decode(content, part.stop - part.start)
                        found[number] = sketch_of(values, plan.seed, part.start)
                body = msgspec.structs.replace(body, sketches=found.tobytes())
            return await ask(address, method, body, reply, **more)

        holder.reducer._add_up, wire.ask = choose, ask_and_forge

    def choice(self, others: Any) -> Any:
        """The sum that it wants."""
        return -10.0 * others


class WantsNothing(HasTheLastWord):
    """The mean that it chooses is zero, by a part of a usual size."""

    def choice(self, others):
        return 0.0 * others


class SaysThatPartsAreMissing(Auxiliary):
    """It takes parts, says that one sender's have not arrived, and gives no sum."""

    def __init__(self, wire, backbones, holder, **settings):
        super().__init__(wire, backbones, holder, **settings)
        holder.reducer._add_up = lambda total: None

        async def arrived(body, request):
            found = holder.reducer.arrived(body.round_number)
            return ArrivedReply(senders=tuple(one for one in found if "ana" not in one)), b""

        wire.register("arrived", wire._handlers["arrived"][0], arrived)


class ShowsRandomSketches(Volunteer):
    """Its gradient is right, and its sketches put means of others in doubt."""

    def __init__(self, wire, backbones, holder, **settings):
        super().__init__(wire, backbones, holder, **settings)
        ask = wire.ask

        async def ask_and_lie(address, method, body, reply, **more):
            if method == "sketch":
                noise = np.random.default_rng().normal(size=len(body.sketches) // 8)
                body = msgspec.structs.replace(body, sketches=noise.tobytes())
            return await ask(address, method, body, reply, **more)

        wire.ask = ask_and_lie


class ComputesNothing(Volunteer):
    """It reports blocks at once, so that it seems to be the fastest, and sends zeros."""

    def gradient_sum(self, plan):
        vector = super().gradient_sum(plan)
        return None if vector is None else np.zeros_like(vector)

    async def _compute_blocks(self, reply, rows):
        compute: Any = self.compute
        self.compute: Any = _AtOnce(compute)
        try:
            await super()._compute_blocks(reply, rows)
        finally:
            self.compute = compute


class _AtOnce:
    """Programs that compute no gradient."""

    def __init__(self, compute):
        self._compute, self.settings = compute, compute.settings

    def gradient(self, parts, rows):
        targets = float((rows["segments"][:, 1:] == rows["segments"][:, :-1]).sum())
        return np.zeros(self._compute.num_values, np.float32), 4.0 * targets, targets

    def __getattr__(self, name):
        return getattr(self._compute, name)


class Attack(NamedTuple):
    """A lie."""

    kind: Callable[[], type[Peer]]
    does: str
    peers: int = 1
    adds_up: bool = False  # what counts are the slices that it added up
    is_bounded: bool = False  # it stays within what honest peers may do


ATTACKS: dict[str, Attack] = {
    "nan": Attack(lambda: NanInItsOwnSlice, "a NaN in its own part of its own slice"),
    "last-word": Attack(lambda: HasTheLastWord, "its own part follows the others', mean times -10"),
    "nothing": Attack(lambda: WantsNothing, "the same, and the mean is zero"),
    "large": Attack(lambda: sends(lambda one: -20 * one), "-20 times its gradient"),
    "negated": Attack(lambda: sends(lambda one: -one), "-1 times its gradient"),
    "zeros": Attack(lambda: sends(lambda one: 0 * one), "zeros"),
    "scaled": Attack(lambda: sends(lambda one: np.float32(1.01) * one), "1.01 times its gradient"),
    "seldom": Attack(lambda: seldom(lambda one: -2.5 * one, 2), "-2.5 times, in every second sum"),
    "backdoor": Attack(lambda: seldom(in_some_values, 1), "another sign in 0.3 % of the values"),
    "accusers": Attack(
        lambda: SaysThatPartsAreMissing,
        "two that only add up say that a part is missing",
        peers=2,
        adds_up=True,
        is_bounded=True,
    ),
    "quick": Attack(lambda: ComputesNothing, "reports blocks at once, and sends zeros"),
    "mean": Attack(
        lambda: gives(lambda one: 1.01 * one), "1.01 times the mean of its slice", adds_up=True
    ),
    "value": Attack(lambda: gives(in_one_value), "one wrong value in a mean", adds_up=True),
    "sketches": Attack(lambda: ShowsRandomSketches, "wrong sketches of a right gradient"),
}


# --- a group ---------------------------------------------------------------------------------


class Course(NamedTuple):
    """What came of one run."""

    sums: int  # of the liar, in steps that were taken
    is_out: bool
    honest_locked: int
    loss: float  # in times the honest one


async def course_of(attack: Attack, most: int) -> Course:
    """One group, from the liar's coming until it is out, or has had so many sums."""
    from tests.support import swarm_rig as rig

    async with rig.Group() as group:
        for name in HONEST:
            await group.join(name, slow=0.02)
        await group.step()
        liars = [
            (
                await group.join(
                    f"eve{number}", kind=attack.kind(), slow=0.02, bytes_per_second=1e11
                )
            ).wire.name
            for number in range(attack.peers)
        ]
        members, sums = group.leader.group, 0
        while len(group.outcomes) < MOST_STEPS and sums < most:
            if set(liars) <= set(members.banned):
                break
            outcome = await group.step()
            reducers = {part.reducer for part in outcome.closed.slices}
            had = reducers if attack.adds_up else set(outcome.blocks_by_peer)
            sums += bool(had & set(liars))
            if attack.is_bounded and len(group.outcomes) > 3 * most:
                break
            await asyncio.sleep(0.02)  # for checks beside the steps
        is_out = set(liars) <= set(members.banned)
        await group.steps(STEPS_AFTER)
        honest = sum(one.startswith("the credential of") and "eve" not in one for one in group.said)
        plain = rig.plain_states(len(group.outcomes))[-1]
        ours, theirs = (loss_of(rig, state) for state in (group.states[-1], plain))
        return Course(sums, is_out, honest, ours / theirs)


def loss_of(rig: Any, state: Any) -> float:
    """A state's loss per target over rows that no step has had."""
    compute, batch = rig.COMPUTE, rig.batch_of(100_000)
    found = [
        compute.gradient(state.parts, compute.rows_of(batch, block))[1:]
        for block in range(compute.settings.num_blocks)
    ]
    return sum(loss for loss, _ in found) / sum(targets for _, targets in found)


def row_of(name: str, courses: list[Course]) -> dict[str, Any]:
    sums = [one.sums for one in courses]
    return {
        "attack": name,
        "does": ATTACKS[name].does,
        "runs": len(courses),
        "sums_median": statistics.median(sums),
        "sums_95": float(np.quantile(sums, 0.95)),
        "not_out": sum(not one.is_out for one in courses),
        "honest_locked": sum(one.honest_locked for one in courses),
        "loss": round(statistics.median(one.loss for one in courses), 4),
        "loss_worst": round(max((one.loss for one in courses), key=_worst), 4),
    }


def _worst(loss: float) -> float:
    return loss if loss == loss else float("inf")  # NaN is the worst


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support import swarm_clock

    courses: dict[str, list[Course]] = {name: [] for name in options.attacks}
    until = time.time() + 60 * options.minutes if options.minutes else float("inf")
    runs = options.runs or (10**6 if options.minutes else 1)
    for _ in range(runs):
        for name, known in courses.items():
            if time.time() < until:
                attack = ATTACKS[name]
                known.append(swarm_clock.run(lambda attack=attack: course_of(attack, options.most)))
    return [row_of(name, known) for name, known in courses.items() if known]


def show(rows: list[dict[str, Any]]) -> None:
    print("| lie | sums until out: median, 95 % | not out | honest locked | loss, worst |")
    print("| :-- | --: | --: | --: | --: |")
    for row in rows:
        sums = f"{row['sums_median']:g}, {row['sums_95']:.0f}"
        out = f"{row['not_out']} of {row['runs']}"
        losses = f"{row['loss']:.3f}, {row['loss_worst']:.3f}"
        print(f"| {row['does']} | {sums} | {out} | {row['honest_locked']} | {losses} |")
    print(json.dumps({"attacks": rows}))


def live(name: str, seconds: str, file: str, words: list[str]) -> int:
    """Runs a command line as a liar."""
    from swarm_slow import slow_down

    from dipaco.cli.main import main as dipaco
    from dipaco.swarm.roles import session

    setattr(session, "Volunteer", ATTACKS[name].kind())  # noqa: B010
    slow_down(float(seconds), Path(file))
    return dipaco(words)


def main() -> None:
    if sys.argv[1:2] == ["--live"]:
        sys.exit(live(*sys.argv[2:5], sys.argv[5:]))
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=at_least_one, help="of each attack")
    parser.add_argument("--minutes", type=float, help="at most")
    parser.add_argument("--most", type=at_least_one, default=120, help="sums of a liar")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    with contextlib.suppress(BrokenPipeError):
        show(measured(parser.parse_args()))


if __name__ == "__main__":
    main()
