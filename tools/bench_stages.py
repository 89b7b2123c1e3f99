"""How much sooner many workers finish a whole job than one: text, base model, features, paths.

    python tools/bench_stages.py --workers 16 --experts 4 --gigabytes 1

Tasks are claimed, done and recorded as in any run, on a toy text: only the clock is virtual. A
worker that claims a task holds it for as long as such a task takes at the paces below, on as many
gigabytes of text and steps of training as are asked for; then its facts are recorded, and what they
make due is claimed at that moment. So one process shows who waits for whom, and no machine does two
things at once. Outer steps, evaluation and the report take their time too.

Both runs must end with the same corpus, shards and modules. The last line is one JSON object:
seconds of the job with one worker and with many, their ratio, and the seconds of each stage, from
the first claim of one of its tasks to the last record.
"""

import argparse
import dataclasses
import heapq
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from dipaco.config import MODULAR, BaseSettings, RunConfig
from dipaco.control.tasks import Claim, Fact, SliceDone
from dipaco.evaluation import plots
from dipaco.model.config import part_names
from dipaco.overrides import load_config
from dipaco.runs.opening import create_or_open
from dipaco.runs.programs import Programs
from dipaco.runs.run import Run
from dipaco.topology.grids import grid
from dipaco.workers.callbacks import NullCallbacks
from dipaco.workers.execution import execute
from dipaco.workers.keeping import collect_after

TOY = Path(__file__).parents[1] / "configs" / "toy.py"

# Seconds of one core for a gigabyte of text, as `tools/bench_prepare.py` finds them.
READ, TOKENISE, JOIN, MERGE, TOKENIZER = 13.0, 535.0, 18.0, 1.0, 2.0
FEATURES = 300.0  # seconds for the features of a gigabyte of text
OTHER = {"outer": 2.0, "score": 5.0, "evaluate": 1.0, "report": 2.0, "sample": 2.0, "check": 2.0}
ROUTE = 10.0  # to fit the router and plan rows


def main() -> None:
    options = parse()
    plots.draw_report = lambda report, file: file.write_bytes(b"no picture")  # ty: ignore[invalid-assignment]
    with tempfile.TemporaryDirectory(prefix="stages-") as name:
        jobs = {}
        for workers in (1, options.workers):
            config = config_of(options)
            run, _ = create_or_open(Path(name) / str(workers), config)
            jobs[workers] = done_by(options, run, workers)
            run.ledger.close()
            print(f"{workers} workers: {jobs[workers].seconds:.0f} s", flush=True)
    one, many = jobs[1], jobs[options.workers]
    result = {
        "workers": options.workers,
        "paths": options.experts**2,
        "gigabytes": options.gigabytes,
        "slices": options.slices,
        "seconds": round(many.seconds, 1),
        "seconds_of_one": round(one.seconds, 1),
        "ratio": round(many.seconds / one.seconds, 4),
        "busy": round(many.busy / options.workers / many.seconds, 3),
        "stages": many.stages,
        "stages_of_one": one.stages,
        "digest_equal": one.digests == many.digests,
    }
    print(json.dumps(result))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--experts", type=int, default=4, help="of each level: K x K paths")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of text, as the clock has it")
    parser.add_argument("--slices", type=int, default=32, help="`data.slices`")
    parser.add_argument("--phases", type=int, default=4)
    parser.add_argument("--task-seconds", type=float, default=300.0, help="of a path's phase")
    parser.add_argument("--base-phases", type=int, default=1, help="as long as a path's, each")
    parser.add_argument("--baselines", default="", help="with commas; none")
    return parser.parse_args()


def config_of(options: argparse.Namespace) -> RunConfig:
    """The toy config, on a larger grid: two steps stand for a phase."""
    toy = load_config(TOY, [])
    sources = (f"toy:?documents={150 * options.experts**2}&words=40",)
    return dataclasses.replace(
        toy,
        topology=grid(part_names(toy.model), (options.experts, options.experts)),
        data=dataclasses.replace(toy.data, sources=sources, slices=options.slices),
        inner=dataclasses.replace(toy.inner, steps=2),
        base=BaseSettings(steps=2 * options.base_phases, steps_per_phase=2),
        phases=options.phases,
        evaluation=dataclasses.replace(
            toy.evaluation, every_phases=options.phases, best_path=False, ensembles=False
        ),
        baselines=tuple(filter(None, options.baselines.split(","))),
    )


class Job(NamedTuple):
    """A whole run."""

    seconds: float
    busy: float  # of all workers
    stages: dict[str, float]
    digests: dict[str, Any]


def done_by(options: argparse.Namespace, run: Run, workers: int) -> Job:
    """Does a whole run with so many workers by the virtual clock."""
    run.programs = Programs(run.config)
    idle, now, busy = [f"worker-{number}" for number in range(workers)], 0.0, 0.0
    doing: list[tuple[float, int, str, Claim, list[Fact]]] = []
    began: dict[str, float] = {}
    ended: dict[str, float] = {}
    while idle or doing:
        while idle and (claim := run.ledger.queue.claim(idle[-1], lease_seconds=1e6)):
            facts = execute(run, claim, NullCallbacks(), lambda: False)
            seconds = seconds_of(options, run, claim, facts)
            busy += seconds
            began.setdefault(stage_of(claim), now)
            heapq.heappush(doing, (now + seconds, claim.task_id, idle.pop(), claim, facts))
        if not doing:
            break
        now, _, worker, claim, facts = heapq.heappop(doing)
        run.ledger.commit.finish(run.plan, claim, facts)
        collect_after(run, claim, set())
        ended[stage_of(claim)] = now
        idle.append(worker)
    stages = {name: round(ended[name] - began[name], 1) for name in began}
    return Job(now, busy, stages, digests_of(run))


def stage_of(claim: Claim) -> str:
    """Its kind, and of stages with slices the step."""
    kind, arm = claim.task[:2]
    return f"{kind} {arm}".rstrip() if kind in ("prepare", "route", "train") else kind


def seconds_of(options: argparse.Namespace, run: Run, claim: Claim, facts: list[Fact]) -> float:
    """How long a task takes at the paces above."""
    kind, step, *_ = claim.task
    share = 1.0
    if isinstance(facts[0], SliceDone):
        share = share_of(run, facts[0])
    text = share * options.gigabytes
    match kind, step:
        case "prepare", "read":
            return READ * text
        case "prepare", "tokenise":
            return TOKENISE * text
        case "prepare", "merge":
            return MERGE * options.gigabytes + TOKENIZER
        case "prepare", _:
            return JOIN * options.gigabytes
        case "route", "features":
            return FEATURES * text
        case "route", _:
            return ROUTE
        case (("train" | "pretrain"), _):
            arm = run.plan.arm(step)
            together = arm.topology.num_paths if arm.is_synchronous else 1
            return options.task_seconds * together
        case _:
            return OTHER[kind]


def share_of(run: Run, fact: SliceDone) -> float:
    """Of all documents, those of a slice."""
    documents = run.config.data.sources[0].partition("documents=")[2].partition("&")[0]
    return fact.summary["documents"] / int(documents)


def digests_of(run: Run) -> dict[str, Any]:
    """Of text, shards and the newest modules."""
    return {
        **{
            f"{stage.stage} {name}": receipt.digest
            for stage in run.ledger.facts.stages()
            if stage.stage in ("prepare", "route")
            for name, receipt in stage.artifacts.items()
        },
        **{
            f"{arm} {module}": digest
            for arm, module, _, digest in run.ledger.progress.newest_modules()
        },
        "paths": run.plan.arm(MODULAR).topology.num_paths,
    }


if __name__ == "__main__":
    main()
