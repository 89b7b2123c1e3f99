"""`train` and `pretrain`: takes one path through one phase, or several small ones together.

Assemble, tau steps of AdamW, dissect; save the snapshot and what the path contributes to each of
its modules. DiPaCo Algorithm 1, lines 3-10.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from dipaco.control.facts import PartialSnapshot, Snapshot
from dipaco.control.plan import Arm
from dipaco.control.tasks import Claim, Contribution, Fact, ModuleReady, PathTrained
from dipaco.data.pipeline import Batches
from dipaco.inner.optimizer import learning_rates
from dipaco.inner.phase import run_phase
from dipaco.inner.phase_runner import PhaseRunner, PhaseWork
from dipaco.inner.stacked import unstack
from dipaco.inner.state import PathState
from dipaco.outer.compress import EncodedContribution, codec, encode_contribution
from dipaco.outer.gradient import outer_gradient
from dipaco.receipt import Receipt
from dipaco.runs.programs import machine
from dipaco.runs.run import Run
from dipaco.store.snapshots import load_snapshot, save_snapshot
from dipaco.store.tensors import load_tree, save_tree
from dipaco.topology import ModuleId, assemble, dissect
from dipaco.workers.errors import SnapshotOfOtherData
from dipaco.workers.garbage_collection import superseded_snapshots
from dipaco.workers.hosts import SINGLE_HOST, Hosts
from dipaco.workers.row_plans import batches_for

OnStep = Callable[[float, int], None]  # (loss, tokens of the step)


class Preempted(Exception):
    """The phase was stopped before its end; what there is of it has been saved."""

    def __init__(self, *partial_snapshots: PartialSnapshot):
        self.partial_snapshots = partial_snapshots  # of every claim, in their order

    @property
    def partial_snapshot(self) -> PartialSnapshot:
        """Of the only claim."""
        (partial_snapshot,) = self.partial_snapshots
        return partial_snapshot


class PhaseStart(NamedTuple):
    """A path where its phase begins, or where somebody else stopped inside it."""

    claim: Claim
    arm: Arm
    modules: dict[ModuleId, Any]  # as they were when the phase began
    batches: Batches
    position: int  # batches of them that the path had taken when the phase began
    state: tuple[Any, Any | None, int]  # parts, optimizer state, steps of the schedule taken
    residual: Any | None  # part name -> what earlier messages could not hold
    losses: tuple[float, ...]  # of the steps of this phase that somebody else took
    seconds: float  # that they took

    @property
    def steps(self) -> tuple[int, int]:
        """The first step of the phase in the arm's schedule, and the first of the next."""
        phase = self.claim.task.phase
        return self.arm.steps_before(phase), self.arm.steps_before(phase + 1)

    @property
    def taken(self) -> int:
        """Batches that the path has taken of its data."""
        return self.position + len(self.losses)


def train(
    run: Run,
    claim: Claim,
    on_step: OnStep,
    should_stop: Callable[[], bool] = lambda: False,
    hosts: Hosts = SINGLE_HOST,
) -> list[Fact]:
    """Does the task; its facts are true only once they are recorded. Of several hosts that do it
    together, the first saves it and has facts.

    Raises:
      StoppedPartway: `should_stop` said so.
    """
    facts = train_stacked(run, [claim], lambda _, *step: on_step(*step), should_stop, hosts)
    return facts[0] if facts else []


def train_stacked(
    run: Run,
    claims: Sequence[Claim],
    on_step: Callable[[Claim, float, int], None],
    should_stop: Callable[[], bool] = lambda: False,
    hosts: Hosts = SINGLE_HOST,
) -> list[list[Fact]]:
    """Trains several small paths of an arm through the same phase, in one program: the facts of
    each claim. With `inner.stacking` = "map", they are those of one by one, bit for bit.

    Args:
      run: whose paths they are.
      claims: one of what `stacks_of` makes.
      on_step: told (claim, loss, tokens) for each step of each.
      should_stop: asked before each step.
      hosts: that train them together.

    Raises:
      StoppedPartway: `should_stop` said so.
      Diverged: one of them did; then nothing of any should be kept.
    """
    started = time.monotonic()
    inner, count = run.config.inner, len(claims)
    begun = hosts.run_on_all(lambda: [_begin(run, claim) for claim in claims], _where)
    ((taken, end),) = {(path.state[2], path.steps[1]) for path in begun}
    tokens = inner.batch_size * run.config.data.length

    def tell(_, loss):
        for claim, of_claim in zip(claims, np.atleast_1d(loss).tolist(), strict=True):
            on_step(claim, of_claim, tokens)

    state, batches, step = _placed(run, begun, end - taken)
    result = run_phase(
        state,
        batches,
        _rates(run, begun[0], end - taken),
        step,
        taken=len(begun[0].losses),
        on_step=tell,
        should_stop=should_stop,
    )
    after = result.state
    if hosts.count > 1:
        after = run.programs.gather(after)
        if not hosts.is_first:
            return []
    ended = zip(
        begun,
        [after] if count == 1 else (unstack(after, i) for i in range(count)),
        result.losses.reshape(-1, count).T.tolist(),
        # Each is debited its share of the time that they took together.
        (path.seconds + (time.monotonic() - started) / count for path in begun),
        strict=True,
    )
    if taken + len(result.losses) < end:
        raise Preempted(*(_save_partial_snapshot(run, *path) for path in ended))
    return [_finish(run, *path) for path in ended]


def train_with_runner(
    run: Run,
    claim: Claim,
    phase_runner: PhaseRunner,
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
        partial_snapshot = PartialSnapshot(
            receipt=save_snapshot(run.objects, name, state),
            step=step,
            batches=begun.batches.fingerprint,
            losses=tuple(losses),
            seconds=begun.seconds + time.monotonic() - started,
        )
        old_names = superseded_snapshots(run, claim, but=name)
        run.ledger.commit.save_partial_snapshot(claim, partial_snapshot)
        for each in old_names:
            run.objects.delete(each)

    modules = {
        str(module): run.ledger.facts.module(arm.name, module, claim.task.phase).parameters.digest
        for module in begun.modules
    }
    result = phase_runner(
        PhaseWork(
            origin=f"{claim.task} {sorted(modules.items())}",
            state=jax.device_get(run.programs.place(*begun.state)),
            first_step=taken,
            losses=begun.losses,
            rates=_rates(run, begun, end - taken),
            # Steps are those of the schedule; its place in the data may be another.
            batch_at=lambda step: begun.batches.at(begun.taken + step - taken),
            on_step=lambda _, loss: on_step(loss, tokens),
            should_stop=should_stop,
            save=save,
        )
    )
    losses = result.losses.tolist()
    if begun.steps[0] + len(losses) < end:
        save(result.state, losses)
        partial_snapshot = run.ledger.facts.partial_snapshot(
            arm.name, claim.task.path, claim.task.phase
        )
        assert partial_snapshot is not None
        raise Preempted(partial_snapshot)
    seconds = begun.seconds + time.monotonic() - started
    return _finish(run, begun._replace(losses=()), result.state, losses, seconds)


def stacks_of(run: Run, claims: Sequence[Claim]) -> list[list[Claim]]:
    """Claims of paths of one arm and phase, put together as they can train together: those that
    begin the phase at its beginning, and one by one those that somebody else has begun, or that
    may each warm up anew.
    """
    fresh, others = [], []
    for claim in claims:
        _, arm, _, phase = claim.task
        partial_snapshot = run.ledger.facts.partial_snapshot(arm, claim.task.path, phase)
        rewarms = run.config.inner.rewarm_steps and run.plan.arm(arm).routed_at(phase)
        (fresh if partial_snapshot is None and not rewarms else others).append(claim)
    return [*([fresh] if fresh else []), *([claim] for claim in others)]


def _begin(run: Run, claim: Claim) -> PhaseStart:
    task = claim.task
    arm, path, phase = run.plan.arm(task.arm), task.path, task.phase
    modules = _modules_before(run, arm, path, phase)
    batches = batches_for(run, arm, path, phase)
    before = _snapshot_before(run, arm, path, phase, batches)
    position = 0
    if before is not None and before.batches == batches.fingerprint:
        position = before.position
    begun = {
        "claim": claim,
        "arm": arm,
        "modules": modules,
        "batches": batches,
        "position": position,
    }
    partial_snapshot = run.ledger.facts.partial_snapshot(arm.name, path, phase)
    if partial_snapshot is None:
        parts = assemble(modules, arm.topology.modules_of(path))
        optimizer, residual = _carried(run, arm, before)
        state = parts, optimizer, arm.steps_before(phase)
        return PhaseStart(**begun, state=state, residual=residual, losses=(), seconds=0.0)
    if partial_snapshot.batches != batches.fingerprint:
        raise SnapshotOfOtherData(path=path, arm=arm.name)
    saved = load_snapshot(run.objects, partial_snapshot.receipt, run.programs.state_like)
    state = saved.parts, saved.optimizer, partial_snapshot.step
    # It changes between phases only: it is where the phase before left it.
    residual = _carried(run, arm, before)[1] if _has_residual(run, arm) else None
    return PhaseStart(
        **begun,
        state=state,
        residual=residual,
        losses=partial_snapshot.losses,
        seconds=partial_snapshot.seconds,
    )


def _rates(run: Run, begun: PhaseStart, count: int) -> np.ndarray:
    """The schedule follows the phases, which all paths of an arm have in common; a path that was
    given other documents may warm up anew.
    """
    since = None
    if run.config.inner.rewarm_steps and _has_had_other_data(run, begun):
        since = begun.taken
    inner, total_steps = run.config.inner, begun.arm.total_steps
    return learning_rates(inner, total_steps, begun.state[2], count, since)


def _has_had_other_data(run: Run, begun: PhaseStart) -> bool:
    """Whether the path has trained on other documents than those that it has now."""
    arm, path = begun.arm, begun.claim.task.path
    took_part = (at for at in range(begun.claim.task.phase) if path in arm.paths_in(at))
    return begun.position < sum(arm.steps_before(at + 1) - arm.steps_before(at) for at in took_part)


def _where(begun: list[PhaseStart]) -> str:
    """Where they begin: hosts that read the ledger at different moments may have found different
    things.
    """
    return ", ".join(f"{path.claim.task} at {path.state[2]}" for path in begun)


def _placed(run: Run, begun: list[PhaseStart], count: int) -> tuple[PathState, Iterator, Any]:
    """State, `count` batches and the program of one path, or of several stacked."""
    programs = run.programs
    rows = [path.batches.iterate(path.taken, count) for path in begun]
    if len(begun) == 1:
        return programs.place(*begun[0].state), map(programs.place_batch, rows[0]), programs.step
    state = programs.place_stacked([path.state for path in begun])
    batches = map(programs.place_stacked_batch, zip(*rows, strict=True))
    return state, batches, programs.stacked_step


def _save_partial_snapshot(
    run: Run, begun: PhaseStart, state: PathState, losses: list[float], seconds: float
) -> PartialSnapshot:
    first, _ = begun.steps
    return PartialSnapshot(
        receipt=save_snapshot(run.objects, _snapshot_name(run, begun), state),
        step=first + len(begun.losses) + len(losses),
        batches=begun.batches.fingerprint,
        losses=(*begun.losses, *losses),
        seconds=seconds,
    )


def _finish(
    run: Run, begun: PhaseStart, state: PathState, losses: list[float], seconds: float
) -> list[Fact]:
    """Bytes first. The facts are recorded together, when everything they speak of is durable."""
    arm, modules = begun.arm, begun.modules
    path, phase = begun.claim.task.path, begun.claim.task.phase
    first, end = begun.steps
    after = dissect(jax.device_get(state.parts), arm.topology, path)
    sent: list[Fact]
    fetched: list[Receipt] = []  # a dense arm stays where it is
    carried = state.optimizer
    if arm.is_averaged:
        started_from = {
            module: run.ledger.facts.module(arm.name, module, phase).parameters
            for module in modules
        }
        fetched = list(started_from.values())
        sent, residual = _contribute(run, begun, after, started_from)
        if _has_residual(run, arm):
            carried = {"optimizer": carried, "residual": residual}
    else:
        sent = [module_as_it_is(run, begun.claim, module, after[module]) for module in modules]
    snapshot = save_snapshot(run.objects, _snapshot_name(run, begun), carried)
    trained = PathTrained(
        arm=arm.name,
        path=path,
        phase=phase,
        snapshot=snapshot,
        step=end,
        position=begun.position + end - first,
        batches=begun.batches.fingerprint,
        losses=(*begun.losses, *losses),
        tokens=(end - first) * run.config.inner.batch_size * run.config.data.length,
        seconds=seconds,
        bytes_down=sum(receipt.num_bytes for receipt in fetched),
        bytes_up=sum(fact.message.num_bytes for fact in sent if isinstance(fact, Contribution)),
        machine=machine(),
    )
    return [trained, *sent]


def _contribute(
    run: Run,
    begun: PhaseStart,
    after: Mapping[ModuleId, Any],
    started_from: Mapping[ModuleId, Receipt],
) -> tuple[list[Fact], dict[str, Any]]:
    """What the path sends to each of its modules, saved; and what its messages could not hold."""
    arm, path, phase = begun.arm, begun.claim.task.path, begun.claim.task.phase
    sent: list[Fact] = []
    residual: dict[str, Any] = {}
    for module, before in begun.modules.items():
        encoded = _encoded(run, begun.residual, before, after[module])
        residual |= encoded.residual or {}
        # A folder for each module and phase: what is deleted after the outer step is nobody else's.
        kind = f"messages/{arm.name}/{module}/{phase:06d}"
        arrival = Contribution(
            arm=arm.name,
            path=path,
            module=module,
            phase=phase,
            base_digest=started_from[module].digest,
            message=save_tree(run.objects, kind, encoded.message),
        )
        sent.append(arrival)
    return sent, residual


def module_as_it_is(run: Run, claim: Claim, module: ModuleId, parameters: Any) -> ModuleReady:
    """The next phase's module of an arm that takes no outer step: what training has left."""
    return ModuleReady(
        arm=claim.task.arm,
        module=module,
        phase=claim.task.phase + 1,
        parameters=save_tree(run.objects, "modules", parameters),
        outer_state=None,
        gradient_norm=None,
    )


def _encoded(
    run: Run, residual: Mapping[str, Any] | None, before: Any, after: Any
) -> EncodedContribution:
    of_module = None if residual is None else {part: residual[part] for part in before}
    return encode_contribution(
        codec(run.config.outer.codec), outer_gradient(before, after), of_module
    )


def _snapshot_name(run: Run, begun: PhaseStart) -> str:
    task, attempt = begun.claim.task, begun.claim.attempt
    return run.layout.snapshot(begun.arm.name, task.path, task.phase, attempt)


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


def _has_residual(run: Run, arm: Arm) -> bool:
    """Whether its paths carry what their messages could not hold."""
    return arm.is_averaged and codec(run.config.outer.codec).is_lossy


def _carried(run: Run, arm: Arm, before: Snapshot | None) -> tuple[Any | None, Any | None]:
    """AdamW's state and the residual after the last phase that the path took part in; both are the
    path's own and are never reset.
    """
    if before is None:
        return None, None
    like = run.programs.state_like
    if not _has_residual(run, arm):
        return load_snapshot(run.objects, before.receipt, like.optimizer), None
    residual = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float32), like.parts)
    both = {"optimizer": like.optimizer, "residual": residual}
    carried = load_snapshot(run.objects, before.receipt, both)
    return carried["optimizer"], carried["residual"]


def _snapshot_before(
    run: Run, arm: Arm, path: int, phase: int, batches: Batches
) -> Snapshot | None:
    """The path after the last phase that it took part in; None where there is none.

    Raises:
      SnapshotOfOtherData: it counts in other data, and no alternation has given it these.
    """
    before = arm.trained_before(path, phase)
    if before is None:
        return None
    snapshot = run.ledger.facts.snapshot(arm.name, path, before)
    is_routed_anew = arm.routed_at(before) != arm.routed_at(phase)
    if snapshot.batches != batches.fingerprint and not is_routed_anew:
        raise SnapshotOfOtherData(path=path, arm=arm.name)
    return snapshot
