"""How far a run is: stages, modules with phase and digest, paths with step, loss and tokens,
evaluations, tasks to do.

dipaco status --run runs/quickstart
dipaco status --run runs/quickstart --json
"""

import argparse
import json
from pathlib import Path
from typing import Any

HELP = "how far a run is"

# What comes after what; kinds of the same number go on side by side.
STAGE = {
    "prepare": 0,
    "pretrain": 1,
    "route": 2,
    "train": 3,
    "outer": 3,
    "score": 3,
    "evaluate": 3,
    "report": 4,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="as one JSON object")


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.run import reading

    with reading(options.run) as opened, opened.ledger.at_one_moment():
        status = status_of(opened)
    if options.json:
        print(json.dumps(status, indent=1))
    else:
        _print(status)
    return 0


def status_of(opened: Any) -> dict[str, Any]:
    """Everything that `status` shows, as JSON values; the modules and paths of the modular arm,
    others under `arms`.
    """
    from dipaco.config import MODULAR

    ledger, plan = opened.ledger, opened.plan
    arms: dict[str, Any] = {
        arm.name: {
            "phases": arm.phases,
            "steps": arm.total_steps,
            "modules": {},
            "paths": {},
            "evaluations": [],
        }
        for arm in (plan.base, *plan.arms)
    }
    for arm, module, phase, digest in ledger.newest_modules():
        arms[arm]["modules"][module] = {"phase": phase, "digest": digest}
    for row in ledger.newest_trained():
        arms[row["arm"]]["paths"][str(row["path"])] = {
            "phase": row["phase"] + 1,
            "step": row["step"],
            "loss": row["loss"][0] if row["loss"] else None,
            "tokens": row["tokens"],
        }
    for fact in ledger.evaluations():
        arms[fact.arm]["evaluations"].append({"phase": fact.phase, "perplexity": fact.perplexity})
    unfinished = ledger.unfinished()
    counts = ledger.task_counts()
    done = [kind for kind in STAGE if _is_done(kind, counts)]
    return {
        "name": opened.config.name,
        "seed": opened.config.seed,
        "finished": not unfinished and "report" in {stage.stage for stage in ledger.stages()},
        "stages_done": done,
        "stages": {
            stage.stage: {"seconds": stage.seconds, **stage.summary} for stage in ledger.stages()
        },
        "modules": arms[MODULAR]["modules"],
        "paths": arms[MODULAR]["paths"],
        "arms": arms,
        "tasks": {
            f"{kind} {arm}".strip(): states for (kind, arm), states in sorted(counts.items())
        },
        "unfinished": unfinished,
    }


def _is_done(kind: str, counts: dict[tuple[str, str], Any]) -> bool:
    """Whether all tasks of a kind are done, and a later stage tells that no more will come."""
    states = [set(by_state) for (of, _), by_state in counts.items() if of == kind]
    is_last = kind == "report"
    has_later = any(STAGE[of] > STAGE[kind] for of, _ in counts)
    return bool(states) and all(state == {"done"} for state in states) and (has_later or is_last)


def _print(status: dict[str, Any]) -> None:
    state = (
        "finished" if status["finished"] else f"{len(status['unfinished'])} tasks ready or claimed"
    )
    print(f"{status['name']}, seed {status['seed']}: {state}")
    print(f"stages done: {', '.join(status['stages_done']) or 'none'}")
    for name, arm in status["arms"].items():
        print(f"\n{name}: {arm['phases']} phases, {arm['steps']} steps a path")
        for module, at in arm["modules"].items():
            print(f"  module {module}  phase {at['phase']:4d}  {at['digest']}")
        for path, at in arm["paths"].items():
            loss = "" if at["loss"] is None else f"  loss {at['loss']:.3f}"
            print(f"  path {path:>4}  step {at['step']:6d}{loss}  {at['tokens']:,} tokens")
        for evaluation in arm["evaluations"]:
            print(f"  perplexity {evaluation['perplexity']:.2f} at phase {evaluation['phase']}")
    for task in status["unfinished"][:10]:
        subject = f" {task['arm']} {task['subject']}".rstrip()
        print(f"to do: {task['kind']}{subject} phase {task['phase']} ({task['state']})")
