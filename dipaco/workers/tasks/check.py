"""`check`: the loss of one path on what its shard holds out, for early stopping.

DiPaCo section 2.7.
"""

import time

from dipaco.control.planning.tasks import (
    Claim,
    Fact,
    PathChecked,
)
from dipaco.inner.early_stopping import Best, best_so_far
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree
from dipaco.workers.fetching import bring_modules
from dipaco.workers.scoring import score_under_path


def check_path(run: Run, claim: Claim) -> list[Fact]:
    """Loss of a path on the hold-out of its shard, and the phase at which it was lowest so far."""
    started = time.monotonic()
    arm, path, phase = run.plan.arm(claim.task.arm), claim.task.path, claim.task.phase
    held_out = load_tree(run.objects, run.routing_of(arm.name, phase).artifacts["held_out"])
    documents = held_out[f"{path:06d}"]
    bring_modules(run, arm.name, arm.topology.modules_of(path), phase)
    parts = run.parts_at(arm.name, path, phase)
    sums, counts = score_under_path(run, parts, run.tokens_of(documents), documents)
    loss = -float(sums.sum()) / int(counts.sum())
    before = None
    if phase > arm.routed_at(phase):
        at = run.ledger.facts.checks(arm.name, phase - 1)[path].best_phase
        before = Best(at, run.ledger.facts.checks(arm.name, at)[path].loss)
    return [
        PathChecked(
            arm=arm.name,
            path=path,
            phase=phase,
            loss=loss,
            best_phase=best_so_far(before, phase, loss).phase,
            seconds=time.monotonic() - started,
        )
    ]
