"""`train` and `pretrain`: takes one path through one phase.

Assemble, tau steps of AdamW, dissect; save the snapshot and what the path contributes to each of
its modules. DiPaCo Algorithm 1, lines 3-10.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from dipaco.control.ledger import Partway
from dipaco.control.plan import Arm
from dipaco.control.tasks import Arrival, Claim, Fact, ModuleReady, PathTrained
from dipaco.data.pack import RowPlan, load_plan
from dipaco.data.pipeline import Batches
from dipaco.errors import SnapshotOfOtherData
from dipaco.inner.optimizer import learning_rates
from dipaco.inner.phase import run_phase
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

    def __init__(self, partway: Partway):
        self.partway = partway


def train(
    run: Run, claim: Claim, on_step: OnStep, should_stop: Callable[[], bool] = lambda: False
) -> list[Fact]:
    """Does the task; its facts are true only once they are recorded.

    Raises:
      StoppedPartway: `should_stop` said so.
    """
    started = time.monotonic()
    task = claim.task
    arm, path, phase = run.plan.arm(task.arm), task.path, task.phase
    modules = _modules_before(run, arm, path, phase)

    inner = run.config.inner
    batches = batches_for(run, arm, path)
    start, end = arm.steps_before(phase), arm.steps_before(phase + 1)
    partway = run.ledger.partway(arm.name, path, phase)
    if partway is None:
        parts = assemble(modules, arm.topology.modules_of(path))
        optimizer = _optimizer_state(run, arm, path, phase, batches)
        state, taken = run.programs.place(parts, optimizer, start), 0
    else:
        state, taken = _state_of(run, arm, path, partway, batches), partway.step - start
    result = run_phase(
        state,
        map(run.programs.place_batch, batches.iterate(start + taken, end - start - taken)),
        learning_rates(inner, arm.total_steps, start + taken, end - start - taken),
        run.programs.step,
        on_step=lambda _, loss: on_step(loss, inner.batch_size * run.config.data.length),
        should_stop=should_stop,
    )
    losses = (*(() if partway is None else partway.losses), *result.losses.tolist())
    spent_seconds = 0.0 if partway is None else partway.seconds
    if len(losses) < end - start:
        raise StoppedPartway(
            Partway(
                receipt=save_snapshot(
                    run.objects,
                    run.layout.snapshot(arm.name, path, phase, claim.attempt),
                    result.state,
                ),
                step=start + len(losses),
                batches=batches.fingerprint,
                losses=losses,
                seconds=spent_seconds + time.monotonic() - started,
            )
        )
    after = dissect(jax.device_get(result.state.parts), arm.topology, path)

    # Bytes first. The facts are recorded together, when everything they speak of is durable.
    snapshot = save_snapshot(
        run.objects,
        run.layout.snapshot(arm.name, path, phase, claim.attempt),
        result.state.optimizer,
    )
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
        batches=batches.fingerprint,
        losses=losses,
        tokens=(end - start) * inner.batch_size * run.config.data.length,
        seconds=spent_seconds + time.monotonic() - started,
        bytes_down=sum(receipt.num_bytes for receipt in fetched),
        bytes_up=sum(fact.message.num_bytes for fact in sent if isinstance(fact, Arrival)),
        machine=machine(),
    )
    return [trained, *sent]


def batches_for(run: Run, arm: Arm, path: int) -> Batches:
    """The endless batches of one path of an arm."""
    return Batches(
        run.corpus,
        _row_plan(run, arm, path),
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


def _state_of(run: Run, arm: Arm, path: int, partway: Partway, batches: Batches) -> Any:
    """The path where somebody else stopped inside this phase."""
    if partway.batches != batches.fingerprint:
        raise SnapshotOfOtherData(path=path, arm=arm.name)
    saved = load_snapshot(run.objects, partway.receipt, run.programs.state_like)
    return run.programs.place(saved.parts, saved.optimizer, partway.step)


def _optimizer_state(run: Run, arm: Arm, path: int, phase: int, batches: Batches) -> Any | None:
    """AdamW's state after the phase before; it is the path's own and is never reset."""
    if phase == 0:
        return None
    snapshot = run.ledger.snapshot(arm.name, path, phase - 1)
    if snapshot.batches != batches.fingerprint:
        raise SnapshotOfOtherData(path=path, arm=arm.name)
    return load_snapshot(run.objects, snapshot.receipt, run.programs.state_like.optimizer)
