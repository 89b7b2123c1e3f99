"""`train` and `pretrain`: one path through one phase.

Assemble the path, take tau steps of AdamW, dissect it; save its snapshot and its contribution to
each of its modules. DiPaCo Algorithm 1, lines 3-10.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from dipaco.control.facts import PartialSnapshot
from dipaco.control.tasks import Claim, Contribution, Fact, ModuleReady, PathTrained
from dipaco.inner.absent import PRESENT
from dipaco.inner.optimizer import learning_rates
from dipaco.inner.phase import PhaseResult, run_phase
from dipaco.inner.phase_runner import PhaseRunner, PhaseWork
from dipaco.inner.state import PathState
from dipaco.inner.step import Batch
from dipaco.runs.machine import machine
from dipaco.runs.run import Run
from dipaco.runs.sent_snapshots import sends_snapshot
from dipaco.store.snapshots import save_snapshot
from dipaco.store.tensors import save_tree
from dipaco.topology import ModuleId, dissect
from dipaco.workers.callbacks import OnStep
from dipaco.workers.contributing import contribute
from dipaco.workers.fetching import bytes_down
from dipaco.workers.hosts import SINGLE_HOST, Hosts
from dipaco.workers.keeping import delete_partial_snapshots, partial_snapshots_of
from dipaco.workers.late_modules import have_come, merged
from dipaco.workers.phase_start import Carried, PhaseStart, has_residual, phase_start
from dipaco.workers.preemption import Preempted


def train(
    run: Run,
    claim: Claim,
    on_step: OnStep,
    should_stop: Callable[[], bool] = lambda: False,
    hosts: Hosts = SINGLE_HOST,
    should_leave: Callable[[], bool] = lambda: True,
) -> list[Fact]:
    """Trains one path through one phase and saves what it made.

    Args:
      run: whose path it is.
      claim: on the task.
      on_step: called with (loss, tokens) for each step.
      should_stop: called before each step.
      hosts: that train the path together.
      should_leave: called while the path waits for late modules (`outer.delay`).

    Returns:
      The facts to record; none on hosts other than the first, which do not save.

    Raises:
      Preempted: `should_stop` returned True, or `should_leave` did.
      Diverged: a loss is not finite; nothing of the phase is kept.
    """
    started = time.monotonic()
    start = hosts.run_on_all(lambda: phase_start(run, claim), _first_step)
    merges_at, end = start.merges_at, start.steps[1]
    tokens = run.config.inner.batch_size * run.config.data.length

    def advance(
        start: PhaseStart, until: int, should_stop: Callable[[], bool]
    ) -> tuple[PhaseResult, int]:
        taken = start.state.step
        result = run_phase(
            run.programs.place(*start.state),
            map(run.programs.place_batch, _batches(run, start, until - taken)),
            _rates(run, start, until - taken),
            run.programs.step,
            taken=len(start.losses),
            on_step=lambda _, loss: on_step(loss, tokens),
            should_stop=should_stop,
        )
        return result, taken + len(result.losses)

    result, at_step = advance(start, end if merges_at is None else merges_at, should_stop)
    if at_step == merges_at:
        since = time.monotonic()
        if have_come(run, claim, should_leave, hosts):
            started += time.monotonic() - since
            ahead = run.programs.gather(result.state) if hosts.count > 1 else result.state
            start = merged(run, start, ahead, result.losses.tolist())
            # A partial snapshot of this very step is one from before the merge.
            asked = itertools.count()
            result, at_step = advance(start, end, lambda: next(asked) > 0 and should_stop())
    after = result.state
    if hosts.count > 1:
        after = run.programs.gather(after)
        if not hosts.is_first:
            return []
    ended = (start, after, result.losses.tolist(), start.seconds + time.monotonic() - started)
    if at_step < end:
        raise Preempted(_save_partial_snapshot(run, *ended))
    return _finish(run, *ended, is_shared=hosts.count > 1)


def train_with_runner(
    run: Run,
    claim: Claim,
    phase_runner: PhaseRunner,
    on_step: OnStep,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Fact]:
    """As `train`, but `phase_runner` takes the steps and saves partial snapshots.

    Raises:
      Preempted: `should_stop` returned True.
    """
    started = time.monotonic()
    assert not run.config.inner.freeze_absent_tokens, "`dipaco swarm` refuses such runs"
    assert run.config.outer.delay == 0, "and these"
    start = phase_start(run, claim)
    (taken, end), arm = (start.state.step, start.steps[1]), start.arm
    tokens = run.config.inner.batch_size * run.config.data.length

    def save(state: PathState, losses: Sequence[float]) -> None:
        task, step = claim.task, start.steps[0] + len(losses)
        name = run.layout.snapshot(arm.name, task.path, task.phase, claim.attempt, step)
        partial_snapshot = PartialSnapshot(
            receipt=save_snapshot(run.objects, name, state),
            step=step,
            batches=start.batches.fingerprint,
            losses=tuple(losses),
            seconds=start.seconds + time.monotonic() - started,
        )
        before = partial_snapshots_of(run, claim)
        run.ledger.commit.save_partial_snapshot(claim, partial_snapshot)
        delete_partial_snapshots(run, claim, before)

    modules = {
        str(module): run.ledger.facts.module(arm.name, module, claim.task.phase).parameters.digest
        for module in start.modules
    }
    result = phase_runner(
        PhaseWork(
            origin=f"{claim.task} {sorted(modules.items())}",
            state=jax.device_get(run.programs.place(*start.state)),
            first_step=taken,
            losses=start.losses,
            rates=_rates(run, start, end - taken),
            # The runner counts steps of the schedule; the position in the data may differ.
            batch_at=lambda step: start.batches.at(start.taken + step - taken),
            on_step=lambda _, loss: on_step(loss, tokens),
            should_stop=should_stop,
            save=save,
        )
    )
    losses = result.losses.tolist()
    if start.steps[0] + len(losses) < end:
        save(result.state, losses)
        partial_snapshot = run.ledger.facts.partial_snapshot(
            arm.name, claim.task.path, claim.task.phase
        )
        assert partial_snapshot is not None
        raise Preempted(partial_snapshot)
    seconds = start.seconds + time.monotonic() - started
    # The other backbones of the path, on other machines, go on from it as well.
    start = start._replace(losses=())
    return _finish(run, start, result.state, losses, seconds, is_shared=True)


def _rates(run: Run, start: PhaseStart, count: int) -> np.ndarray:
    """Learning rates of the next `count` steps, from the schedule of the arm."""
    return learning_rates(run.config.inner, start.arm.total_steps, start.state.step, count)


def _first_step(start: PhaseStart) -> str:
    """Compared between hosts, which may have read the ledger at different moments."""
    return f"{start.claim.task} at {start.state.step}"


def _batches(run: Run, start: PhaseStart, count: int) -> Iterator[Batch]:
    """The next batches, with the tokens that the shard has where training asks for them."""
    batches = start.batches.iterate(start.taken, count)
    present_V = run.present_tokens(start.arm.name, start.claim.task.path, start.claim.task.phase)
    if present_V is None:
        return batches
    return ({**batch, PRESENT: present_V} for batch in batches)


def _save_partial_snapshot(
    run: Run, start: PhaseStart, state: PathState, losses: list[float], seconds: float
) -> PartialSnapshot:
    first, _ = start.steps
    return PartialSnapshot(
        receipt=save_snapshot(run.objects, _snapshot_name(run, start), state),
        step=first + len(start.losses) + len(losses),
        batches=start.batches.fingerprint,
        losses=(*start.losses, *losses),
        seconds=seconds,
    )


def _finish(
    run: Run,
    start: PhaseStart,
    state: PathState,
    losses: list[float],
    seconds: float,
    *,
    is_shared: bool = False,
) -> list[Fact]:
    """Saves the path's snapshot and contributions, and returns the facts about them."""
    arm, modules = start.arm, start.modules
    path, phase = start.claim.task.path, start.claim.task.phase
    first, end = start.steps
    after = dissect(jax.device_get(state.parts), arm.topology, path)
    made: list[Fact]
    num_bytes = 0  # a dense arm exchanges nothing
    carried = Carried(state.optimizer, own=state.parts if arm.delay else None)
    if arm.is_averaged:
        started_from = {
            module: run.ledger.facts.module(arm.name, module, phase).parameters
            for module in modules
        }
        num_bytes = bytes_down(run, arm, path, phase)
        made, residual = contribute(run, start, after, started_from)
        if has_residual(run, arm):
            carried = carried._replace(residual=residual)
    else:
        made = [module_as_trained(run, start.claim, module, after[module]) for module in modules]
    sends = is_shared or sends_snapshot(run, arm, path, phase)
    name = _snapshot_name(run, start)
    snapshot = save_snapshot(run.objects, name, carried.as_saved, is_sent=sends)
    trained = PathTrained(
        arm=arm.name,
        path=path,
        phase=phase,
        snapshot=snapshot,
        step=arm.steps_before(phase + 1),
        position=start.position + end - first,
        batches=start.batches.fingerprint,
        losses=(*start.losses, *losses),
        tokens=(end - first) * run.config.inner.batch_size * run.config.data.length,
        seconds=seconds,
        bytes_down=num_bytes,
        bytes_up=sum(fact.message.num_bytes for fact in made if isinstance(fact, Contribution)),
        machine=machine(),
    )
    return [trained, *made]


def module_as_trained(run: Run, claim: Claim, module: ModuleId, parameters: Any) -> ModuleReady:
    """The next phase's module of an arm without outer steps: the parameters as trained."""
    return ModuleReady(
        arm=claim.task.arm,
        module=module,
        phase=claim.task.phase + 1,
        parameters=save_tree(run.objects, "modules", parameters),
    )


def _snapshot_name(run: Run, start: PhaseStart) -> str:
    task, attempt = start.claim.task, start.claim.attempt
    return run.layout.snapshot(start.arm.name, task.path, task.phase, attempt)
