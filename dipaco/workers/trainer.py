"""`train` and `pretrain`: takes one path through one phase, or several small ones together.

Assemble, tau steps of AdamW, dissect; save the snapshot and what the path contributes to each of
its modules. DiPaCo Algorithm 1, lines 3-10.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.control.ledger import Partway
from dipaco.control.plan import Arm
from dipaco.control.tasks import Arrival, Claim, Fact, ModuleReady, PathTrained
from dipaco.data.pack import RowPlan, load_plan
from dipaco.data.pipeline import Batches
from dipaco.errors import SnapshotOfOtherData
from dipaco.inner.elsewhere import PhaseRunner, PhaseWork
from dipaco.inner.optimizer import learning_rates
from dipaco.inner.phase import run_phase
from dipaco.inner.stacked import unstack
from dipaco.inner.state import PathState
from dipaco.outer.gradient import outer_gradient
from dipaco.receipt import Receipt
from dipaco.runs.programs import machine
from dipaco.runs.run import Run
from dipaco.store.snapshots import load_snapshot, save_snapshot
from dipaco.store.tensors import load_tree, save_tree
from dipaco.topology import ModuleId, assemble, dissect

OnStep = Callable[[float, int], None]  # (loss, tokens of the step)


class StoppedPartway(Exception):
    """The phase was stopped before its end; what there is of it has been saved."""

    def __init__(self, *partways: Partway):
        self.partways = partways  # of every claim, in their order

    @property
    def partway(self) -> Partway:
        """Of the only claim."""
        (partway,) = self.partways
        return partway


class _Begun(NamedTuple):
    """A path where its phase begins, or where somebody else stopped inside it."""

    claim: Claim
    arm: Arm
    modules: dict[ModuleId, Any]  # as they were when the phase began
    batches: Batches
    state: tuple[Any, Any | None, int]  # parts, optimizer state, inner steps taken
    losses: tuple[float, ...]  # of the steps of this phase that somebody else took
    seconds: float  # that they took

    @property
    def steps(self) -> tuple[int, int]:
        """The first inner step of the phase, and the first of the next."""
        phase = self.claim.task.phase
        return self.arm.steps_before(phase), self.arm.steps_before(phase + 1)


def train(
    run: Run, claim: Claim, on_step: OnStep, should_stop: Callable[[], bool] = lambda: False
) -> list[Fact]:
    """Does the task; its facts are true only once they are recorded.

    Raises:
      StoppedPartway: `should_stop` said so.
    """
    (facts,) = train_stacked(run, [claim], lambda _, *step: on_step(*step), should_stop)
    return facts


def train_stacked(
    run: Run,
    claims: Sequence[Claim],
    on_step: Callable[[Claim, float, int], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> list[list[Fact]]:
    """Trains several small paths of an arm through the same phase, in one program: the facts of
    each claim. With `inner.stacking` = "map", they are those of one by one, bit for bit.

    Args:
      run: whose paths they are.
      claims: one of what `stacks_of` makes.
      on_step: told (claim, loss, tokens) for each step of each.
      should_stop: asked before each step.

    Raises:
      StoppedPartway: `should_stop` said so.
      Diverged: one of them did; then nothing of any should be kept.
    """
    started = time.monotonic()
    inner, count = run.config.inner, len(claims)
    begun = [_begin(run, claim) for claim in claims]
    ((taken, end),) = {(path.state[2], path.steps[1]) for path in begun}
    tokens = inner.batch_size * run.config.data.length

    def tell(_, loss):
        for claim, of_claim in zip(claims, np.atleast_1d(loss).tolist(), strict=True):
            on_step(claim, of_claim, tokens)

    state, batches, step = _placed(run, begun, end - taken)
    result = run_phase(
        state,
        batches,
        learning_rates(inner, begun[0].arm.total_steps, taken, end - taken),
        step,
        on_step=tell,
        should_stop=should_stop,
    )
    ended = zip(
        begun,
        [result.state] if count == 1 else (unstack(result.state, i) for i in range(count)),
        result.losses.reshape(-1, count).T.tolist(),
        # Each is debited its share of the time that they took together.
        (path.seconds + (time.monotonic() - started) / count for path in begun),
        strict=True,
    )
    if taken + len(result.losses) < end:
        raise StoppedPartway(*(_save_partway(run, *path) for path in ended))
    return [_finish(run, *path) for path in ended]


def train_elsewhere(
    run: Run,
    claim: Claim,
    run_elsewhere: PhaseRunner,
    on_step: OnStep,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Fact]:
    """As `train`, but others take the steps, a group of machines; what they have is saved part-way
    whenever they say so.

    Raises:
      StoppedPartway: `should_stop` said so.
    """
    started = time.monotonic()
    begun = _begin(run, claim)
    (taken, end), arm = (begun.state[2], begun.steps[1]), begun.arm
    tokens = run.config.inner.batch_size * run.config.data.length

    def save(state: PathState, losses: Sequence[float]) -> None:
        task, step = claim.task, begun.steps[0] + len(losses)
        name = run.layout.snapshot(arm.name, task.path, task.phase, claim.attempt, step)
        partway = Partway(
            receipt=save_snapshot(run.objects, name, state),
            step=step,
            batches=begun.batches.fingerprint,
            losses=tuple(losses),
            seconds=begun.seconds + time.monotonic() - started,
        )
        before = run.ledger.partway(arm.name, task.path, task.phase)
        run.ledger.save_partway(claim, partway)
        if before is not None and before.receipt.name != name:
            run.objects.delete(before.receipt.name)

    modules = {
        str(module): run.ledger.module(arm.name, module, claim.task.phase).parameters.digest
        for module in begun.modules
    }
    result = run_elsewhere(
        PhaseWork(
            origin=f"{claim.task} {sorted(modules.items())}",
            state=jax.device_get(run.programs.place(*begun.state)),
            first_step=taken,
            losses=begun.losses,
            rates=learning_rates(run.config.inner, arm.total_steps, taken, end - taken),
            batch_at=begun.batches.at,
            on_step=lambda _, loss: on_step(loss, tokens),
            should_stop=should_stop,
            save=save,
        )
    )
    losses = result.losses.tolist()
    if begun.steps[0] + len(losses) < end:
        save(result.state, losses)
        partway = run.ledger.partway(arm.name, claim.task.path, claim.task.phase)
        assert partway is not None
        raise StoppedPartway(partway)
    seconds = begun.seconds + time.monotonic() - started
    return _finish(run, begun._replace(losses=()), result.state, losses, seconds)


def stacks_of(run: Run, claims: Sequence[Claim]) -> list[list[Claim]]:
    """Claims of paths of one arm and phase, put together as they can train together: those that
    begin the phase at its beginning, and one by one those that somebody else has begun.
    """
    fresh, others = [], []
    for claim in claims:
        _, arm, _, phase = claim.task
        partway = run.ledger.partway(arm, claim.task.path, phase)
        (fresh if partway is None else others).append(claim)
    return [*([fresh] if fresh else []), *([claim] for claim in others)]


def _begin(run: Run, claim: Claim) -> _Begun:
    task = claim.task
    arm, path, phase = run.plan.arm(task.arm), task.path, task.phase
    modules = _modules_before(run, arm, path, phase)
    batches = batches_for(run, arm, path)
    partway = run.ledger.partway(arm.name, path, phase)
    if partway is None:
        parts = assemble(modules, arm.topology.modules_of(path))
        optimizer = _optimizer_state(run, arm, path, phase, batches)
        state = parts, optimizer, arm.steps_before(phase)
        return _Begun(claim, arm, modules, batches, state, (), 0.0)
    if partway.batches != batches.fingerprint:
        raise SnapshotOfOtherData(path=path, arm=arm.name)
    saved = load_snapshot(run.objects, partway.receipt, run.programs.state_like)
    state = saved.parts, saved.optimizer, partway.step
    return _Begun(claim, arm, modules, batches, state, partway.losses, partway.seconds)


def _placed(run: Run, begun: list[_Begun], count: int) -> tuple[PathState, Iterator, Any]:
    """State, `count` batches and the program of one path, or of several stacked."""
    programs = run.programs
    rows = [path.batches.iterate(path.state[2], count) for path in begun]
    if len(begun) == 1:
        return programs.place(*begun[0].state), map(programs.place_batch, rows[0]), programs.step
    state = programs.place_stacked([path.state for path in begun])
    batches = map(programs.place_stacked_batch, zip(*rows, strict=True))
    return state, batches, programs.stacked_step


def _save_partway(
    run: Run, begun: _Begun, state: PathState, losses: list[float], seconds: float
) -> Partway:
    first, _ = begun.steps
    return Partway(
        receipt=save_snapshot(run.objects, _snapshot_name(run, begun), state),
        step=first + len(begun.losses) + len(losses),
        batches=begun.batches.fingerprint,
        losses=(*begun.losses, *losses),
        seconds=seconds,
    )


def _finish(
    run: Run, begun: _Begun, state: PathState, losses: list[float], seconds: float
) -> list[Fact]:
    """Bytes first. The facts are recorded together, when everything they speak of is durable."""
    arm, modules = begun.arm, begun.modules
    path, phase = begun.claim.task.path, begun.claim.task.phase
    first, end = begun.steps
    after = dissect(jax.device_get(state.parts), arm.topology, path)
    snapshot = save_snapshot(run.objects, _snapshot_name(run, begun), state.optimizer)
    sent: list[Fact]
    fetched: list[Receipt] = []  # a dense arm stays where it is
    if arm.is_averaged:
        started_from = {
            module: run.ledger.module(arm.name, module, phase).parameters for module in modules
        }
        fetched = list(started_from.values())
        sent = [
            Arrival(
                arm=arm.name,
                path=path,
                module=module,
                phase=phase,
                base_digest=started_from[module].digest,
                # A folder for each module and phase: what is deleted after the outer step is nobody
                # else's.
                message=save_tree(
                    run.objects,
                    f"messages/{arm.name}/{module}/{phase:06d}",
                    outer_gradient(before, after[module]),
                ),
            )
            for module, before in modules.items()
        ]
    else:
        sent = [
            ModuleReady(
                arm=arm.name,
                module=module,
                phase=phase + 1,
                parameters=save_tree(run.objects, "modules", after[module]),
                outer_state=None,
                gradient_norm=None,
            )
            for module in modules
        ]
    trained = PathTrained(
        arm=arm.name,
        path=path,
        phase=phase,
        snapshot=snapshot,
        step=end,
        batches=begun.batches.fingerprint,
        losses=(*begun.losses, *losses),
        tokens=(end - first) * run.config.inner.batch_size * run.config.data.length,
        seconds=seconds,
        bytes_down=sum(receipt.num_bytes for receipt in fetched),
        bytes_up=sum(fact.message.num_bytes for fact in sent if isinstance(fact, Arrival)),
        machine=machine(),
    )
    return [trained, *sent]


def _snapshot_name(run: Run, begun: _Begun) -> str:
    task, attempt = begun.claim.task, begun.claim.attempt
    return run.layout.snapshot(begun.arm.name, task.path, task.phase, attempt)


def batches_for(run: Run, arm: Arm, path: int) -> Batches:
    """The endless batches of one path of an arm."""
    plan = _row_plan(run, arm, path)
    return Batches(
        run.tokens_of(plan.documents) if arm.is_averaged else run.corpus,
        plan,
        run.config.inner.batch_size,
        run.seed_for("batches", arm.name, path),
    )


def _row_plan(run: Run, arm: Arm, path: int) -> RowPlan:
    """Dense arms train on everything, the paths of an averaged arm each on its shard."""
    if arm.is_averaged:
        receipt = run.shard_index().plans[path]
    else:
        receipt = run.stage("prepare").artifacts["everything"]
    return load_plan(Path(run.objects.file(receipt)))


def _modules_before(run: Run, arm: Arm, path: int, phase: int) -> dict[ModuleId, Any]:
    if arm.name == run.plan.base.name and phase == 0:
        (module,) = arm.topology.modules
        given = run.given("base")
        parts = (
            run.programs.initial_parts()
            if given is None
            else load_tree(run.objects, Receipt(*given))
        )
        return {module: parts}
    return {
        module: run.parameters(arm.name, module, phase) for module in arm.topology.modules_of(path)
    }


def _optimizer_state(run: Run, arm: Arm, path: int, phase: int, batches: Batches) -> Any | None:
    """AdamW's state after the phase before; it is the path's own and is never reset."""
    if phase == 0:
        return None
    snapshot = run.ledger.snapshot(arm.name, path, phase - 1)
    if snapshot.batches != batches.fingerprint:
        raise SnapshotOfOtherData(path=path, arm=arm.name)
    return load_snapshot(run.objects, snapshot.receipt, run.programs.state_like.optimizer)
