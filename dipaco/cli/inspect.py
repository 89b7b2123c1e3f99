"""Look into a run: what each path was given, and how its modules were moved.

  dipaco inspect --run runs/quickstart
  dipaco inspect --run runs/quickstart --json
  dipaco inspect --run runs/quickstart --picture inspect.png

Documents and domains of every path, and the sizes of the shards. At every alternation: how many of
the router's documents each path would get without calibration and gets with it, how often the
router agrees with what the paths say, and how many documents two routers send to the same path. For
every module and phase the norm of its mean outer gradient, that of each path through it, and the
mean cosine between two of them: 1 where paths agree on where to go, 0 where they have nothing to do
with each other, below 0 where they undo each other's work.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dipaco.cli.errors import UnknownImageFormat
from dipaco.cli.options import add_run

if TYPE_CHECKING:
    import numpy as np

    from dipaco.control.quorums import Taken
    from dipaco.control.tasks import StageDone
    from dipaco.runs.run import Run

HELP = "what each path was given, and how modules were moved"
MOST_SHOWN_PHASES = 8
PICTURES = (".png", ".pdf", ".svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="where to draw it (default: inspect.png in the run's folder; with --json nowhere)",
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.evaluation.inspection_plot import draw_inspection
    from dipaco.files import translate_os_errors
    from dipaco.runs.run import reading

    if options.picture is not None and options.picture.suffix.lower() not in PICTURES:
        raise UnknownImageFormat(file=options.picture, known=", ".join(PICTURES))
    with reading(options.run) as opened:
        inspection = inspection_of(opened)
        file = options.picture or (None if options.json else opened.layout.inspection)
    if file is not None:
        with translate_os_errors(file):
            draw_inspection(inspection, file)
    if options.json:
        print(json.dumps(inspection))
    else:
        _print(inspection)
        print(f"\nDrawn: {file}")
    return 0


def inspection_of(opened: "Run") -> dict[str, Any]:
    """Everything that `inspect` shows, as JSON values.

    Raises:
      NotAvailable: nothing has been routed.
    """
    from dipaco.config import MODULAR

    opened.stage("route")
    arm = opened.plan.arm(MODULAR)
    routings = [stage for stage in opened.ledger.stages() if stage.stage == "route"]
    routings.sort(key=lambda stage: stage.phase)
    last = routings[-1].summary
    documents = last["documents"]
    taken = opened.ledger.quorums.taken(MODULAR)
    return {
        "name": opened.config.name,
        "seed": opened.config.seed,
        "paths": [
            {
                "path": path,
                "documents": documents[path],
                "share": documents[path] / sum(documents),
                "validation_documents": last["valid"][path],
                "domains": last["domains"][path],
                "modules": [str(module) for module in arm.topology.modules_of(path)],
            }
            for path in range(arm.topology.num_paths)
        ],
        "routings": [
            {
                "phase": stage.phase,
                "router": stage.artifacts["router"].digest,
                **{
                    name: value
                    for name, value in stage.summary.items()
                    if name != "domains"  # those of the last are above
                },
                **({} if stage is routings[0] else _agreement(opened, before, stage)),
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
                        if step.moves is None
                        else {str(path): norm for path, norm in step.moves.norms.items()},
                        "cosine": None if step.moves is None else step.moves.cosine,
                        **_taken(taken.get((module, step.phase - 1))),
                    }
                    for step in steps
                ],
            }
            for module, steps in opened.ledger.outer_steps(MODULAR).items()
        },
    }


def _taken(taken: "list[Taken] | None") -> dict[str, list[int]]:
    """Whose contributions a step took, where not all are waited for (`outer.quorum`)."""
    if taken is None:
        return {}
    return {
        "took": [each.path for each in taken if not each.is_late],
        "took_late": [each.path for each in taken if each.is_late],
    }


def _agreement(opened: "Run", before: "StageDone", after: "StageDone") -> dict[str, float]:
    """How many documents two routers send to the same path."""
    import numpy as np

    from dipaco.store.tensors import load_tree

    old, new = (
        load_tree(opened.objects, stage.artifacts["valid"])["paths"] for stage in (before, after)
    )
    shards = zip(_shards(opened, before), _shards(opened, after), strict=True)
    stayed, total = 0, 0
    for old_documents, new_documents in shards:
        stayed += len(np.intersect1d(old_documents, new_documents))
        total += len(new_documents)
    return {
        "same_path_validation": float(np.mean(old == new)),
        "same_path_training": stayed / max(total, 1),
    }


def _shards(opened: "Run", stage: "StageDone") -> "list[np.ndarray]":
    """The training documents of every path."""
    from dipaco.data.pack import load_plan
    from dipaco.receipt import Receipt

    index = json.loads(opened.objects.read_bytes(stage.artifacts["shards"]))
    files = [opened.objects.file(Receipt(*plan)) for plan in index["plans"]]
    return [load_plan(Path(file)).documents for file in files]


def _print(inspection: dict[str, Any]) -> None:
    print(f"{inspection['name']}, seed {inspection['seed']}")
    for at in inspection["paths"]:
        total = max(sum(at["domains"].values()), 1)
        largest = sorted(at["domains"].items(), key=lambda item: -item[1])[:4]
        domains = ", ".join(f"{name} {number / total:.0%}" for name, number in largest)
        print(
            f"path {at['path']:>3}  {at['documents']:,} documents ({at['share']:.1%}), "
            f"{at['validation_documents']:,} of validation: {domains}"
        )
    for routing in inspection["routings"]:
        print(f"\nrouted at phase {routing['phase']}: router {routing['router']}")
        print(f"  shard sizes: {_sizes(routing['documents'])}")
        for name, value in routing.items():
            if name in ("phase", "router", "documents", "valid"):
                continue
            shown = _sizes(value) if isinstance(value, list) else f"{value:.1%}"
            print(f"  {name.replace('_', ' ')}: {shown}")
    print()
    for module, at in inspection["modules"].items():
        steps = at["steps"][-MOST_SHOWN_PHASES:]
        if any(step["norm"] is not None for step in steps):
            norms = " ".join(_number(step["norm"]) for step in steps)
            cosines = " ".join(_number(step["cosine"]) for step in steps)
            print(
                f"module {module}  fan-in {len(at['paths'])}, phases {steps[0]['phase']} to "
                f"{steps[-1]['phase']}\n  norm    {norms}\n  cosine  {cosines}"
            )
        else:
            print(f"module {module}  fan-in {len(at['paths'])}: no outer step so far")


def _sizes(sizes: list[int]) -> str:
    return " ".join(f"{size:,}" for size in sizes)


def _number(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.3f}"
