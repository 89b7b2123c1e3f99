"""Does a finished run once more by `algorithm/variants.py`, or a synchronous one by
`algorithm/synchronous.py`: in one process and in memory, without tasks, ledger or store. Every
module at every phase must come out the same, bit for bit.

    python tools/replay.py --run runs/quickstart

Facts that depend on timing are taken from the records. With a quorum (`outer.quorum`) these are the
contributions that each outer step took, with alternations the shards of each phase. Everything else
is done again, so it takes as long as the training did on one worker, and needs a machine of the
same kind. Digests are compared, so modules may be deleted. The last line is one JSON object.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from support.command_line import parser_of

from dipaco.algorithm import synchronous, variants
from dipaco.config import MODULAR
from dipaco.inner.absent import PRESENT
from dipaco.inner.optimizer import learning_rates
from dipaco.runs.opening import reading
from dipaco.runs.run import Run
from dipaco.store.tensors import digest_of_tree
from dipaco.topology import ModuleId
from dipaco.workers.row_plans import batches_for


class Carried(NamedTuple):
    """The state that a path takes from phase to phase."""

    optimizer: Any
    batches: str  # fingerprint of their data
    position: int  # batches of it that were taken


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--run", type=Path, required=True)
    options = parser.parse_args()
    with reading(options.run) as run:
        wrong, compared = differences(run), run.config.phases * len(run.config.topology.modules)
    for what in wrong:
        print(f"other bits: {what}")
    print(json.dumps({"digest_equal": not wrong, "modules": compared, "differ": len(wrong)}))
    return 1 if wrong else 0


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
        path: int, phase: int, parts: Any, carried: Carried | None, first: int, end: int
    ) -> Any:
        """The steps from `first` to before `end` of the schedule."""
        batches = batches_for(run, arm, path, phase)
        carried = carried or Carried(None, batches.fingerprint, 0)
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
        return after, Carried(optimizer, batches.fingerprint, carried.position + len(rates))

    def train_path(path: int, phase: int, parts: Any, carried: Carried | None) -> Any:
        return train_steps(path, phase, parts, carried, *steps_of(phase))

    def train_ahead(path: int, phase: int, parts: Any, carried: Carried | None) -> Any:
        first, _ = steps_of(phase)
        return train_steps(path, phase, parts, carried, first, first + arm.delay)

    def train_rest(path: int, phase: int, parts: Any, carried: Carried | None) -> Any:
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
        train_late=variants.TrainLate(train_ahead, train_rest) if arm.delay else None,
    )


if __name__ == "__main__":
    sys.exit(main())
