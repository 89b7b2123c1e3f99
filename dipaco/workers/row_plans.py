"""Row plans: which tokens a path trains on. `prepare` and `route` save them, `train` reads them."""

from pathlib import Path

from dipaco.data.pack import RowPlan, load_plan, save_plan
from dipaco.data.pipeline import Batches
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.schedule.arm import Arm


def save_row_plan(run: Run, plan: RowPlan) -> Receipt:
    return run.objects.write("shards", "npz", lambda file: save_plan(plan, file))


def batches_for(run: Run, arm: Arm, path: int, phase: int) -> Batches:
    """Endless batches of one path of an arm in a phase. Equal shards give equal batches."""
    plan = _row_plan(run, arm, path, phase)
    return Batches(
        run.tokens_of(plan.documents) if arm.is_routed else run.corpus,
        plan,
        run.config.inner.batch_size,
        run.seed_for("batches", arm.name, 0 if arm.is_dealt else path),
        turn=(path, arm.topology.num_paths) if arm.is_dealt else (0, 1),
    )


def _row_plan(run: Run, arm: Arm, path: int, phase: int) -> RowPlan:
    """One model trains on all documents, a path of others on its shard."""
    if arm.is_routed:
        receipt = run.shards_of(run.routing_of(arm.name, phase)).plans[path]
    else:
        receipt = run.stage("prepare").artifacts["everything"]
    return load_plan(Path(run.objects.file(receipt)))
