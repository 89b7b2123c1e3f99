"""Does a run once more in one process and in memory, without tasks, ledger or store.

By `algorithm/variants.py`, or a synchronous run by `algorithm/synchronous.py`, every module at
every phase must come out the same, bit for bit. Facts that depend on timing are taken from the
records. With a quorum (`outer.quorum`) these are the contributions that each outer step took, with
alternations the shards of each phase. Digests are compared, so modules may be deleted. The machine
must be of the same kind. The steps of one path alone are its inner optimiser's (`path_steps`).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dipaco.algorithm import synchronous, variants
from dipaco.config import MODULAR
from dipaco.inner.absent import PRESENT
from dipaco.inner.local_steps import make_local_steps, moved
from dipaco.inner.optimizer import learning_rates
from dipaco.inner.state import PathState
from dipaco.inner.step import gradient_function, make_update, path_loss
from dipaco.runs.run import Run
from dipaco.store.tensors import digest_of_tree
from dipaco.topology import ModuleId
from dipaco.workers.row_plans import batches_for


class CarriedState(NamedTuple):
    """The state that a path takes from phase to phase."""

    optimizer: Any
    batches: str  # fingerprint of their data
    position: int  # batches of it that were taken


def differences(run: Run, phases: int | None = None) -> list[str]:
    """Modules at phases where the run and Algorithm 1 differ. A run that has not ended is compared
    up to a phase that all modules have reached.
    """
    phases = run.config.phases if phases is None else phases
    replayed = itertools.chain([first_modules(run)], replay(run))
    return [
        f"{module} at phase {phase}"
        for phase, modules in zip(range(phases + 1), replayed, strict=False)
        for module in modules
        if digest_of_tree(modules[module])
        != run.ledger.facts.module(MODULAR, module, phase).parameters.digest
    ]


def first_modules(run: Run) -> variants.Modules:
    """The modules with which a run began its first phase."""
    topology = run.plan.arm(MODULAR).topology
    if run.given("modules") is not None:  # a run that began from the modules of another
        return {module: run.parameters(MODULAR, module, 0) for module in topology.modules}
    base = run.base_parts()
    return {m: {part: base[part] for part in topology.parts_of(m)} for m in topology.modules}


def replay(run: Run) -> Iterator[variants.Modules]:
    """All modules at the end of each phase, as Algorithm 1 has them, or its synchronous
    counterpart.
    """
    return _replay_synchronous(run) if run.config.outer.synchronous else _replay(run)


def _replay_synchronous(run: Run) -> Iterator[variants.Modules]:
    """Replays by `algorithm/synchronous.py`."""
    arm, inner, programs = run.plan.arm(MODULAR), run.config.inner, run.programs
    batches = [batches_for(run, arm, path, 0) for path in range(arm.topology.num_paths)]
    rates = learning_rates(inner, arm.total_steps, 0, arm.total_steps)
    placed = {m: programs.place_module(parts, None) for m, parts in first_modules(run).items()}
    by_step = synchronous.train(
        arm.topology,
        {module: parts for module, (parts, _) in placed.items()},
        {module: state for module, (_, state) in placed.items()},
        lambda path, step, parts: programs.gradient(
            parts, programs.place_batch(batches[path].at(step))
        )[0],
        lambda step, *arguments: programs.update(*arguments, rates[step]),
        run.stage("route").summary["documents"],
        steps=range(arm.total_steps),
        clip_norm=inner.clip_norm,
        by_documents=run.config.outer.weigh_by_documents,
    )
    for step, modules in enumerate(by_step, start=1):
        if step % inner.steps == 0:
            yield jax.device_get(modules)


def _replay(run: Run) -> Iterator[variants.Modules]:
    """Replays by `algorithm/variants.py`."""
    arm, inner = run.plan.arm(MODULAR), run.config.inner
    taken = run.ledger.quorums.taken(MODULAR)

    def train_steps(
        path: int, phase: int, parts: Any, carried: CarriedState | None, first: int, end: int
    ) -> Any:
        """The steps from `first` to before `end` of the schedule."""
        batches = batches_for(run, arm, path, phase)
        carried = carried or CarriedState(None, batches.fingerprint, 0)
        if carried.batches != batches.fingerprint:
            carried = carried._replace(batches=batches.fingerprint, position=0)
        state = run.programs.place(parts, carried.optimizer, first)
        rates = learning_rates(inner, arm.total_steps, first, end - first)
        present_V = run.present_tokens(MODULAR, path, phase)
        present = {} if present_V is None else {PRESENT: present_V}
        for number, rate in enumerate(rates, start=carried.position):
            batch = run.programs.place_batch({**batches.at(number), **present})
            state, _ = run.programs.step(state, batch, rate)
        after, optimizer = jax.device_get((state.parts, state.optimizer))
        return after, CarriedState(optimizer, batches.fingerprint, carried.position + len(rates))

    def train_path(path: int, phase: int, parts: Any, carried: CarriedState | None) -> Any:
        return train_steps(path, phase, parts, carried, *steps_of(phase))

    def train_ahead(path: int, phase: int, parts: Any, carried: CarriedState | None) -> Any:
        first, _ = steps_of(phase)
        return train_steps(path, phase, parts, carried, first, first + arm.delay)

    def train_rest(path: int, phase: int, parts: Any, carried: CarriedState | None) -> Any:
        first, end = steps_of(phase)
        return train_steps(path, phase, parts, carried, first + arm.delay, end)

    def steps_of(phase: int) -> tuple[int, int]:
        return arm.steps_before(phase), arm.steps_before(phase + 1)

    def takes(module: ModuleId, step: int) -> Sequence[tuple[int, int]]:
        return [(each.phase, each.path) for each in taken.get((module, step), ())]

    def route(phase: int, _: variants.Modules) -> variants.Shards:
        routing = run.routing_of(MODULAR, phase)
        by_holders = run.config.outer.vocabulary_rows == "holders"
        counts_PV = run.token_counts(routing) if by_holders else None
        return variants.Shards(run.shards_of(routing).documents, counts_PV)

    yield from variants.train(
        arm,
        first_modules(run),
        train_path,
        route,
        outer=run.config.outer,
        outer_rule=run.rule("outer_step"),
        takes=takes if arm.has_quorum else None,
        train_ahead=variants.TrainAhead(train_ahead, train_rest) if arm.delay else None,
    )


class PathStep(NamedTuple):
    """One step of one path by one machine, or the local steps of all members of its group."""

    step: int
    gradient: Any  # Gradient of the mean loss per target, or the mean move.
    loss: float
    state: PathState  # after the step


class LocalSteps(NamedTuple):
    """Steps that the members of a path's group have taken by themselves."""

    counts: Mapping[int, int]  # first step -> how many, until the group averaged
    member_rows: int  # rows of a member in the batch of a step


def path_steps(run: Run, path: int) -> Iterator[PathStep]:
    """Takes the steps of a path by its inner optimiser alone, one large batch after the other, or
    as the members of its group have. Each phase that was reached begins with the run's modules.
    """
    local = _local_steps(run, path)
    arm, inner, programs = run.plan.arm(MODULAR), run.config.inner, run.programs
    loss = path_loss(run.config.model, inner)
    gradient, update = jax.jit(gradient_function(loss, inner)), make_update(inner)
    of_member = make_local_steps(loss, inner)
    reached = run.ledger.progress.phases_reached(MODULAR, len(arm.topology.modules))
    optimizer = None
    for phase in range(min(arm.phases, reached + 1)):
        step, end = arm.steps_before(phase), arm.steps_before(phase + 1)
        rates = learning_rates(inner, arm.total_steps, step, end - step).tolist()
        state = programs.place(run.parts_at(MODULAR, path, phase), optimizer, step)
        batches = batches_for(run, arm, path, phase)
        while step < end:
            count = 0 if local is None else local.counts.get(step, 0)  # 0: a plain step
            rows = [
                programs.place_batch(batches.at(one)) for one in range(step, step + max(count, 1))
            ]
            if local is None or not count:
                mean, metrics = gradient(state.parts, rows[0])
                state, loss_of = update(state, mean, rates.pop(0)), metrics.loss
            else:
                now, rates = jnp.array(rates[:count], jnp.float32), rates[count:]
                found = [
                    of_member(state, _rows_from(rows, first, local.member_rows), now)
                    for first in range(0, inner.batch_size, local.member_rows)
                ]
                moves, losses, targets = jax.tree.map(lambda *leaves: sum(leaves), *found)
                mean, loss_of = [leaf / targets for leaf in moves], losses / targets
                state = moved(state, mean, count)
            yield PathStep(step, mean, float(loss_of), state)
            step += max(count, 1)
        optimizer = jax.device_get(state.optimizer)


def _local_steps(run: Run, path: int) -> LocalSteps | None:
    """None: the group of that path, if there is one, averages gradients."""
    swarms = run.ledger.swarms
    options = swarms.options(MODULAR, path)
    if options.get("--local-steps", "1") == "1":
        return None
    counts = {one.step: one.steps for one in swarms.steps(MODULAR, path)}
    return LocalSteps(counts, int(options["--block-rows"]))


def _rows_from(batches: Sequence[Mapping[str, Any]], first: int, count: int) -> dict[str, Any]:
    """Rows of each of these batches, stacked."""
    return {
        name: jnp.stack([one[name][first : first + count] for one in batches])
        for name in batches[0]
    }
