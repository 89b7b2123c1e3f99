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
says so, and how many were. A run in which a step does not end is named, and left out. `honest
locked` are other credentials. `loss` is the path's after the last step, in times that of the same
steps by one honest machine. `--live` runs a `dipaco` command line as that liar, at the pace of
`swarm_slow.py`, for `swarm_storm.py`. The last line is one JSON object.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from support.command_line import at_least_one, parser_of

from dipaco.swarm.errors import BadMessage
from dipaco.swarm.network.codecs import codec_of
from dipaco.swarm.network.messages import ArrivedReply
from dipaco.swarm.roles.peer import Peer
from dipaco.swarm.roles.volunteer import Volunteer
from dipaco.swarm.training.sum_sketch import sketch_of

HONEST = ("ana", "bo", "cy")
HONEST_SUMS = 20  # of one that lies when it is trusted
STEPS_AFTER = 10  # honest steps after the liar is out
MOST_STEPS = 400


# --- liars -----------------------------------------------------------------------------------


def sends(change: Callable[[np.ndarray], np.ndarray], after: int = 0) -> Callable[[], type[Peer]]:
    """A volunteer whose gradient is another one, from the sum on that follows so many others."""

    def kind() -> type[Peer]:
        class Sends(Volunteer):
            sums, lied_at = 0, set[int]()  # of the one that there is, and its steps

            def gradient_sum(self, plan):
                vector = super().gradient_sum(plan)
                if vector is None:
                    return None
                Sends.sums += 1
                if Sends.sums <= after or (lie := change(vector := np.array(vector))) is vector:
                    return vector
                self.lied_at.add(plan.step)
                return lie

        return Sends

    return kind


def every_second(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    sums = itertools.count()
    return lambda vector: change(vector) if next(sums) % 2 else vector


def in_some_values(vector: np.ndarray) -> np.ndarray:
    """A few tokens' rows: 0.3 % of the values."""
    factors = np.ones_like(vector)
    factors[: max(1, 3 * len(vector) // 1000)] = -20
    return vector * factors


def turned(vector: np.ndarray) -> np.ndarray:
    """A part of the right size in a false direction."""
    drawn = np.random.default_rng().permutation(vector)
    return drawn * np.float32(np.linalg.norm(vector) / np.linalg.norm(drawn))


def replayed() -> type[Peer]:
    """Its sum of the step before, again and again."""
    before: list[np.ndarray] = []

    def old(vector: np.ndarray) -> np.ndarray:
        before.append(vector)
        return before[0]

    return sends(old, HONEST_SUMS - 1)()


def gives(lie: Callable[[np.ndarray], np.ndarray]) -> Callable[[], type[Peer]]:
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

    return lambda: Gives


def in_one_value(mean: np.ndarray) -> np.ndarray:
    mean[len(mean) // 2] += 0.1 * np.abs(mean).max()
    return mean


def colludes(*, is_forged: bool) -> Callable[[], type[Peer]]:
    """One sends and its friend adds up, honest at first. `is_forged`: the friend adds up another
    part than the one that was committed to, and the sender shows that one's sketch. Else the friend
    shows nobody the sender's part.
    """

    def kind() -> type[Peer]:
        sender, friend = "eve0/", "eve1/"
        factor = np.float32(-2.5)

        class Colludes(Volunteer):
            lied_at: ClassVar[set[int]] = set()

            def __init__(self, wire, backbones, holder, **settings):
                super().__init__(wire, backbones, holder, **settings)
                reducer, ask = holder.reducer, wire.ask
                add_up, part_of = reducer._add_up, reducer.part_of

                def add_up_another(total):
                    names = [one for one in total.parts if one.startswith(sender)]
                    kept = dict(total.parts)
                    if is_forged and names and total.plan.step > HONEST_SUMS:
                        codec, count = (
                            codec_of(total.plan.codec),
                            total.part.stop - total.part.start,
                        )
                        lie = factor * codec.decode(kept[names[0]], count)
                        total.parts[names[0]] = codec.encode(lie)
                        self.lied_at.add(total.plan.step)
                    add_up(total)
                    total.parts.update(kept)

                def part_of_others(round_number, name):
                    if not is_forged and name.startswith(sender) and friend in wire.name + "/":
                        raise BadMessage(problem="it is not kept here")
                    return part_of(round_number, name)

                async def ask_and_forge(address, method, body, reply, **more):
                    plan = self._sender._plan
                    if is_forged and method == "sketch" and plan and plan.step > HONEST_SUMS:
                        found = np.frombuffer(body.content, "<f8").reshape(len(plan.slices), -1)
                        factors = [
                            [factor if self._is_of_friend(one) else 1] for one in plan.slices
                        ]
                        body = msgspec.structs.replace(body, content=(found * factors).tobytes())
                    return await ask(address, method, body, reply, **more)

                if wire.name.startswith(friend):
                    reducer._add_up, reducer.part_of = add_up_another, part_of_others
                else:
                    wire.ask = ask_and_forge

            @staticmethod
            def _is_of_friend(part):
                return part.reducer.startswith(friend)

            def gradient_sum(self, plan):
                vector = super().gradient_sum(plan)
                if vector is None or is_forged or plan.step <= HONEST_SUMS:
                    return vector
                vector = np.array(vector)
                for part in filter(self._is_of_friend, plan.slices):
                    if self.wire.name.startswith(sender):
                        vector[part.start : part.stop] *= factor
                        self.lied_at.add(plan.step)
                return vector

        return Colludes

    return kind


class RevealsNothing(Volunteer):
    """It commits itself to its part and sends it to nobody."""

    def __init__(self, wire, backbones, holder, **settings):
        super().__init__(wire, backbones, holder, **settings)

        async def nothing(*arguments):
            pass

        sender: Any = self._sender
        sender._send = sender._forward = nothing


class GivesOthersAnotherMean(Volunteer):
    """The leader gets the right mean, others 1.01 times as much."""

    def __init__(self, wire, backbones, holder, **settings):
        super().__init__(wire, backbones, holder, **settings)
        body_type, slice_mean = wire._handlers["slice_mean"][:2]

        async def another(body, request):
            reply, content = await slice_mean(body, request)
            if not request.sender.startswith("back/"):
                content = content[:-4] + (np.frombuffer(content[-4:], "<f4") * 2).tobytes()
            return reply, content

        wire.register("slice_mean", body_type, another)


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
                found = np.frombuffer(body.content, "<f8").reshape(len(plan.slices), -1).copy()
                for number, part in enumerate(plan.slices):
                    if part.start in self._chosen:
                        content = self._chosen.pop(part.start)
                        values = codec_of(plan.codec).decode(content, part.stop - part.start)
                        found[number] = sketch_of(values, plan.seed, part.start)
                body = msgspec.structs.replace(body, content=found.tobytes())
            return await ask(address, method, body, reply, **more)

        holder.reducer._add_up, wire.ask = choose, ask_and_forge

    def choice(self, others: Any) -> Any:
        """The sum that it wants."""
        return -10.0 * others


class WantsNothing(HasTheLastWord):
    """The mean that it chooses is zero, by a part of a usual size."""

    def choice(self, others):
        return 0.0 * others


class SaysThatPartsAreMissing(Volunteer):
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
                noise = np.random.default_rng().normal(size=len(body.content) // 8)
                body = msgspec.structs.replace(body, content=noise.tobytes())
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
    "large": Attack(sends(lambda one: -20 * one), "-20 times its gradient"),
    "negated": Attack(sends(lambda one: -one), "-1 times its gradient"),
    "zeros": Attack(sends(lambda one: 0 * one), "zeros"),
    "scaled": Attack(sends(lambda one: np.float32(1.01) * one), "1.01 times its gradient"),
    "turncoat": Attack(
        sends(lambda one: -2.5 * one, HONEST_SUMS), "-2.5 times, once it is trusted"
    ),
    "seldom": Attack(
        lambda: sends(every_second(lambda one: -2.5 * one), HONEST_SUMS)(),
        "the same, in every second sum",
    ),
    "backdoor": Attack(
        sends(in_some_values, HONEST_SUMS), "the same, -20 times in 0.3 % of values"
    ),
    "direction": Attack(sends(turned, HONEST_SUMS), "the same, another direction of the same norm"),
    "replay": Attack(replayed, "the same, an old part again"),
    "forgers": Attack(
        colludes(is_forged=True), "two that were trusted: one adds up what the other hides", peers=2
    ),
    "shield": Attack(
        colludes(is_forged=False),
        "the same: one does not show what the other has sent",
        peers=2,
        is_bounded=True,
    ),
    "silence": Attack(lambda: RevealsNothing, "commits itself, and sends nothing", is_bounded=True),
    "two-means": Attack(
        lambda: GivesOthersAnotherMean, "another mean for others", adds_up=True, is_bounded=True
    ),
    "accusers": Attack(
        lambda: SaysThatPartsAreMissing,
        "two that only add up say that a part is missing",
        peers=2,
        adds_up=True,
        is_bounded=True,
    ),
    "quick": Attack(lambda: ComputesNothing, "reports blocks at once, and sends zeros"),
    "mean": Attack(gives(lambda one: 1.01 * one), "1.01 times the mean of its slice", adds_up=True),
    "value": Attack(gives(in_one_value), "one wrong value in a mean", adds_up=True),
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
        kind = attack.kind()
        joined = [
            await group.join(f"eve{number}", kind=kind, slow=0.02, bytes_per_second=1e11)
            for number in range(attack.peers)
        ]
        liars = [one.wire.name for one in joined]
        lied_at = getattr(kind, "lied_at", None)  # steps, of one that is honest at times
        members, sums = group.leader.group, 0
        while len(group.outcomes) < MOST_STEPS and sums < most:
            if set(liars) <= set(members.banned):
                break
            outcome = await group.step()
            reducers = {part.reducer for part in outcome.closed.slices}
            had = reducers if attack.adds_up else set(outcome.record.blocks)
            is_lie = lied_at is None or outcome.closed.step in lied_at
            sums += is_lie and bool(had & set(liars))
            if attack.is_bounded and len(group.outcomes) > most:
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
        compute.gradient(state.parts, compute.rows_of(batch, block), 0)[1:]
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
                turn = functools.partial(course_of, ATTACKS[name], options.most)
                try:
                    known.append(swarm_clock.run(turn))
                except TimeoutError:  # the others go on
                    print(f"{name}: a step did not end in time", file=sys.stderr)
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
