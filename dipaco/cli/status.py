"""How far a run is: stages, modules with phase and digest, paths with step, loss and tokens,
evaluations, tasks to do.

dipaco status --run runs/quickstart
dipaco status --run runs/quickstart --watch       again every two seconds, until it is finished
dipaco status --run runs/quickstart --json

Also who works on it: what each worker does, for how long, and its participation (the share of its
time that went into tasks that were recorded); what was refused or found damaged, and why; and
whether the workers are alike, so that the same bits come whoever does what. With a quorum, which
contributions the newest step of every module took, and every one that was late.
"""

import argparse
import json
import sys
import time
from typing import Any

from dipaco.cli.options import add_run

HELP = "how far a run is"
WATCH_SECONDS = 2.0

# What comes after what; kinds of the same number go on side by side.
STAGE = {
    "prepare": 0,
    "pretrain": 1,
    "route": 2,
    "train": 3,
    "outer": 3,
    "label": 3,
    "check": 3,
    "score": 3,
    "evaluate": 3,
    "reroute": 4,
    "report": 5,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument(
        "--watch", action="store_true", help="again and again, until the run is finished"
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.runs.run import reading

    with reading(options.run) as opened:
        while True:
            with opened.ledger.at_one_moment():
                status = status_of(opened)
            if options.watch and sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            if options.json:
                print(json.dumps(status, indent=None if options.watch else 1), flush=True)
            else:
                _print(status)
            if not options.watch or status["finished"]:
                return 0
            time.sleep(WATCH_SECONDS)


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
            f"{stage.stage}@{stage.phase}" if stage.phase else stage.stage: {
                "seconds": stage.seconds,
                **stage.summary,
            }
            for stage in ledger.stages()
        },
        "modules": arms[MODULAR]["modules"],
        "paths": arms[MODULAR]["paths"],
        "arms": arms,
        "tasks": {
            f"{kind} {arm}".strip(): states for (kind, arm), states in sorted(counts.items())
        },
        "unfinished": unfinished,
        **_status_of_work(opened),
    }


def _status_of_work(opened: Any) -> dict[str, Any]:
    """Who takes part, and what went wrong."""
    ledger = opened.ledger
    held = {claim.worker: claim for claim in ledger.queue.held()}
    machines = ledger.machines()
    return {
        "order": ledger.meta("order") or "run",
        "workers": {
            member.name: {
                "state": member.state,
                "host": member.host,
                "machine": member.machine,
                "task": str(held[member.name].task) if member.name in held else None,
                "task_seconds": held[member.name].since_seconds if member.name in held else None,
                "silent_seconds": member.silent_seconds,
                "participation": member.participation,
                "committed_tasks": member.committed_tasks,
                "lost_tasks": member.lost_tasks,
            }
            for member in ledger.members.list()
        },
        "machines": machines,
        "bits": _bits(opened, machines),
        "quorum": _quorum_of(opened),
        "refusals": ledger.redos.refusals(),
        "swarms": ledger.swarms.statuses(),
        "num_refusals": ledger.redos.num_refusals(),
        "rollbacks": ledger.rollbacks.list(),
        "bytes": ledger.bytes_by_kind(),
        "goodput": goodput_of(ledger),
    }


def _bits(opened: Any, machines: dict[str, int]) -> str:
    """What of a run is the same when it is done again."""
    from dipaco.config import MODULAR

    if opened.plan.arm(MODULAR).has_quorum:
        return "not promised: with a quorum they depend on who is late"
    if len(machines) <= 1:
        return "the same whoever does what: all workers are of one kind"
    return "within a tolerance: workers of several kinds took part"


def _quorum_of(opened: Any) -> dict[str, Any] | None:
    """Which contributions were taken by which step: those of the newest step of every module, and
    all that were late (every other was taken by the step of its own phase). None: all are waited
    for.
    """
    from dipaco.config import MODULAR

    arm, quorums = opened.plan.arm(MODULAR), opened.ledger.quorums
    if not arm.has_quorum:
        return None
    late = quorums.late(MODULAR)
    return {
        "share": arm.quorum,
        "grace_seconds": arm.grace_seconds,
        "in_grace": [
            {"module": str(at.module), "phase": at.phase, "seconds_left": at.seconds_left}
            for at in quorums.waiting(MODULAR)
        ],
        "taken": quorums.num_taken(MODULAR),
        "late": [
            {"module": str(module), "phase": each.phase, "path": each.path, "step": step}
            for (module, step), of_step in late.items()
            for each in of_step
        ],
        "newest_steps": {
            str(module): {
                "step": step,
                "paths": [each.path for each in of_step if not each.is_late],
                "late_paths": [each.path for each in of_step if each.is_late],
            }
            for (module, step), of_step in quorums.newest(MODULAR).items()
        },
    }


def goodput_of(ledger: Any) -> dict[str, float]:
    """What came of the time of all workers: only what was recorded counts."""
    members = ledger.members.list()
    live = sum(member.live_seconds for member in members)
    committed = sum(member.committed_seconds for member in members)
    tokens = sum(ledger.tokens_by_arm().values())
    return {
        "tokens": tokens,
        "worker_seconds": live,
        "committed_seconds": committed,
        "participation": min(1.0, committed / max(live, 1e-9)),
        "tokens_per_worker_second": tokens / max(live, 1e-9),
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
    _print_work(status)
    for swarm in status["swarms"]:
        _print_swarm(swarm)
    for task in status["unfinished"][:10]:
        subject = f" {task['arm']} {task['subject']}".rstrip()
        print(f"to do: {task['kind']}{subject} phase {task['phase']} ({task['state']})")


def _print_work(status: dict[str, Any]) -> None:
    from rich.filesize import decimal

    if status["order"] != "run":
        print(f"\norder: {status['order']}")
    here = {name: at for name, at in status["workers"].items() if at["state"] == "here"}
    gone = len(status["workers"]) - len(here)
    if status["workers"]:
        print(f"\nworkers: {len(here)} here, {gone} gone; bits: {status['bits']}")
    for name, at in here.items():
        doing = f"{at['task']}, {at['task_seconds']:.0f} s" if at["task"] else "waits"
        silent = f"  SILENT for {at['silent_seconds']:.0f} s" if at["silent_seconds"] > 60 else ""
        print(
            f"  {name}  {doing}  participation {at['participation']:.0%}, "
            f"{at['committed_tasks']} tasks, {at['lost_tasks']} lost{silent}"
        )
    if any(status["bytes"].values()):
        kinds = ", ".join(
            f"{decimal(num)} {kind.replace('_', ' ')}" for kind, num in status["bytes"].items()
        )
        print(f"bytes: {kinds}")
    at = status["goodput"]
    if at["worker_seconds"]:
        print(
            f"goodput: {at['tokens']:,} tokens, {at['tokens_per_worker_second']:,.0f} a second of "
            f"a worker; participation {at['participation']:.0%}"
        )
    if status["quorum"] is not None:
        _print_quorum(status["quorum"])
    for number, rollback in enumerate(status["rollbacks"], start=1):
        aside = ", ".join(f"{n} {kind}" for kind, n in rollback["set_aside"].items())
        print(f"rollback {number}: to phase {rollback['phase']}, set aside: {aside}")
    for refusal in status["refusals"][:5]:
        print(f"refused: {refusal['what']}: {refusal['reason']} Again: {refusal['task']}")


def _print_quorum(quorum: dict[str, Any]) -> None:
    print(
        f"quorum {quorum['share']:.0%} and {quorum['grace_seconds']:g} s of grace: "
        f"{len(quorum['late'])} of {quorum['taken']} contributions were late"
    )
    for at in quorum["in_grace"]:
        left = max(0.0, at["seconds_left"])
        print(f"  {at['module']} phase {at['phase']}: steps without the rest in {left:.0f} s")
    for module, at in quorum["newest_steps"].items():
        late = f", late: {', '.join(map(str, at['late_paths']))}" if at["late_paths"] else ""
        paths = ", ".join(map(str, at["paths"]))
        print(f"  {module} step {at['step']} took paths {paths or 'none'}{late}")


def _print_swarm(swarm: dict[str, Any]) -> None:
    loss = "" if swarm["loss"] is None else f", loss {swarm['loss']:.3f}"
    state = "" if swarm["is_open"] else " (between two phases)"
    print(
        f"\nswarm of {swarm['arm']} path {swarm['path']}{state}: step {swarm['step']:,}, "
        f"{swarm['samples']} of {swarm['target']} samples, "
        f"{swarm['samples_per_second']:.1f} samples/s{loss}; {len(swarm['peers'])} peers"
    )
    for name, peer in swarm["peers"].items():
        print(
            f"  {name}  {peer['kind']}  {peer['samples']:,} samples, "
            f"{peer['samples_per_second']:.1f}/s, {peer['bytes_up'] / 1e6:.1f} MB up, "
            f"{peer['bytes_down'] / 1e6:.1f} MB down, {peer['seconds'] / 60:.1f} min"
        )
    for name, reason in list(swarm["gone"].items())[-5:]:
        print(f"  gone: {name}: {reason}")
    for refusal in swarm["refused"][-5:]:
        print(f"  refused: {refusal['who']}: {refusal['why']}")
