"""The documents of each path and the moves of its modules, for `dipaco inspect`."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dipaco.config import MODULAR
from dipaco.control.facts.quorums import TakenContribution
from dipaco.control.planning.summaries import Routed
from dipaco.control.planning.tasks import StageDone
from dipaco.data.pack import load_plan
from dipaco.receipt import Receipt
from dipaco.routing.config import RANDOM
from dipaco.runs.reading.releases import samples_as_json
from dipaco.runs.run import Run
from dipaco.store.tensors import load_tree


def inspection_of(run: Run) -> dict[str, Any]:
    """Everything that `dipaco inspect` shows, as JSON values. Raises `NotAvailable`: nothing has
    been routed.
    """
    run.stage("route")
    arm = run.plan.arm(MODULAR)
    routings = run.ledger.facts.routings()
    last = Routed.of(routings[-1])
    documents = last.documents
    taken = run.ledger.quorums.taken(MODULAR)
    return {
        "name": run.config.name,
        "seed": run.config.seed,
        "paths": [
            {
                "path": path,
                "documents": documents[path],
                "share": documents[path] / sum(documents),
                "test_documents": last.test[path],
                "domains": last.domains[path],
                "modules": [str(module) for module in arm.topology.modules_of(path)],
            }
            for path in range(arm.topology.num_paths)
        ],
        "bounds": _bounds(run, sum(documents) / len(documents)),
        "routings": [
            {
                "phase": stage.phase,
                "router": stage.artifacts["router"].digest,
                **{
                    name: value
                    for name, value in stage.summary.items()
                    if name != "domains"  # The last routing's are above.
                },
                **({} if stage is routings[0] else _agreement(run, before, stage)),
            }
            for before, stage in zip([routings[0], *routings], routings, strict=False)
        ],
        "modules": {
            str(module): {
                "paths": list(arm.topology.paths_through(module)),
                "steps": [
                    {
                        "phase": step.phase,
                        "norm": step.gradient_norm,
                        "norms": None
                        if step.gradient_stats is None
                        else {str(path): norm for path, norm in step.gradient_stats.norms.items()},
                        "cosine": None
                        if step.gradient_stats is None
                        else step.gradient_stats.cosine,
                        **_taken(taken.get((module, step.phase - 1))),
                    }
                    for step in steps
                ],
            }
            for module, steps in run.ledger.facts.outer_steps(MODULAR).items()
        },
        "samples": samples_as_json(run.ledger.facts.samples()),
    }


def _bounds(run: Run, mean: float) -> dict[str, float | None]:
    """Bounds of a path's documents that the router was asked to keep. None: there is no bound."""
    routing = run.config.routing
    is_bounded = routing.kind != RANDOM and routing.target_share is None
    capacity = routing.capacity if is_bounded else None
    return {
        "mean": mean,
        "capacity": None if capacity is None else capacity * mean,
        "floor": routing.floor * mean if is_bounded and routing.floor > 0 else None,
    }


def _taken(taken: list[TakenContribution] | None) -> dict[str, list[int]]:
    """The paths whose contributions a step took. Empty without a quorum (`outer.quorum`)."""
    if taken is None:
        return {}
    return {
        "took": [each.path for each in taken if not each.is_late],
        "took_late": [each.path for each in taken if each.is_late],
    }


def _agreement(run: Run, before: StageDone, after: StageDone) -> dict[str, float]:
    """The shares of documents that two routers send to the same path."""
    old, new = (
        load_tree(run.objects, stage.artifacts["held"])["paths"] for stage in (before, after)
    )
    shards = zip(_shards(run, before), _shards(run, after), strict=True)
    stayed, total = 0, 0
    for old_documents, new_documents in shards:
        stayed += len(np.intersect1d(old_documents, new_documents))
        total += len(new_documents)
    return {
        "same_path_held": float(np.mean(old == new)),
        "same_path_training": stayed / max(total, 1),
    }


def _shards(run: Run, stage: StageDone) -> list[np.ndarray]:
    """The training documents of every path."""
    index = json.loads(run.objects.read_bytes(stage.artifacts["shards"]))
    files = [run.objects.file(Receipt(*plan)) for plan in index["plans"]]
    return [load_plan(Path(file)).documents for file in files]
