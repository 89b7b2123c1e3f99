"""Stacks: which of the claimed paths train in one program (`inner.stacked_paths`)."""

from collections.abc import Sequence

from dipaco.control.tasks import Claim
from dipaco.runs.run import Run


def stacks_of(run: Run, claims: Sequence[Claim]) -> list[list[Claim]]:
    """Groups claims of one arm and phase into stacks that can train in one program.

    Paths that start the phase at its first step share a stack; a path that goes on from a partial
    snapshot, or may warm up its learning rate again, trains alone.
    """
    together, alone = [], []
    for claim in claims:
        _, arm, _, phase = claim.task
        partial_snapshot = run.ledger.facts.partial_snapshot(arm, claim.task.path, phase)
        rewarms = run.config.inner.rewarm_steps and run.plan.arm(arm).routed_at(phase)
        (together if partial_snapshot is None and not rewarms else alone).append(claim)
    return [*([together] if together else []), *([claim] for claim in alone)]
