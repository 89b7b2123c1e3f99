"""Checks a run that went through a storm. The checker knows nothing of tasks, and looks at records
alone.
"""

from collections import Counter

from dipaco.config import MODULAR
from dipaco.runs.run import Run


def digests(run: Run) -> dict[str, str]:
    """Digests of every module at every phase."""
    arm = run.plan.arm(MODULAR)
    return {
        f"{module} at {phase}": receipt.digest
        for phase in range(arm.phases + 1)
        for module, receipt in run.ledger.facts.receipts_at(MODULAR, phase).items()
    }


def rows_lost_and_twice(run: Run) -> tuple[int, int]:
    """Rows of text that the plan says and the records do not have, and the other way round.

    Every path must have gone through every phase, to the step that the plan says, and every module
    must have had one contribution of each of its paths, no other. With a quorum, each contribution
    was taken by one step, in its phase or the next.
    """
    arm, batch = run.plan.arm(MODULAR), run.config.inner.batch_size
    lost = twice = 0
    losses = run.ledger.progress.losses(MODULAR)
    for path in range(arm.topology.num_paths):
        planned, recorded = arm.total_steps, len(losses.get(path, []))
        lost += max(0, planned - recorded) * batch
        twice += max(0, recorded - planned) * batch
        for phase in range(arm.phases):
            step = run.ledger.facts.snapshot(MODULAR, path, phase).step
            lost += abs(step - arm.steps_before(phase + 1)) * batch
    rows = run.config.inner.steps * batch
    for module in arm.topology.modules:
        for phase in range(arm.phases):
            paths = Counter(a.path for a in run.ledger.facts.contributions(MODULAR, module, phase))
            expected = Counter(arm.topology.paths_through(module))
            lost += (expected - paths).total() * rows
            twice += (paths - expected).total() * rows
    if arm.has_quorum:
        lost += len(untaken(run)) * rows
    return lost, twice


def untaken(run: Run) -> list[str]:
    """Contributions that no step took, or not one that may."""
    arm = run.plan.arm(MODULAR)
    steps = {
        (module, each.phase, each.path): each.step
        for (module, _), of_step in run.ledger.quorums.taken(MODULAR).items()
        for each in of_step
    }
    return [
        f"{module} path {path} phase {phase}"
        for module in arm.topology.modules
        for phase in range(arm.phases)
        for path in arm.contributors(module, phase)
        if steps.get((module, phase, path)) not in (phase, phase + 1)
    ]
