"""Show the progress of a run: in its second line what it does or why it does nothing; then stages,
modules with phase and digest, paths with step, loss and tokens, evaluations, tasks to do.

  dipaco status --run runs/quickstart
  dipaco status --run runs/quickstart --watch       again every two seconds, until it is finished
  dipaco status --run runs/quickstart --json

Also the workers: what each does, for how long, and its participation (the share of its time in
tasks that were recorded); objects that were refused or damaged, and why; and whether all workers
are of one kind, so that results do not depend on which worker did what. With a quorum, the
contributions that each module's newest step took, and every late one.
"""

import argparse
import json
import sys
import time
from typing import Any

from dipaco.cli.options import add_run

HELP = "show the progress of a run"
WATCH_SECONDS = 2.0
PATIENCE_SECONDS = 10.0  # with a database that is away: that is the answer then


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument(
        "--watch", action="store_true", help="repeat every two seconds until the run is finished"
    )


def run(options: argparse.Namespace) -> int:
    from dipaco.control.retry import patience
    from dipaco.runs.opening import reading
    from dipaco.runs.status import status_of

    with patience(PATIENCE_SECONDS), reading(options.run) as opened:
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


def _print(status: dict[str, Any]) -> None:
    state = (
        "finished" if status["finished"] else f"{len(status['unfinished'])} tasks ready or claimed"
    )
    print(f"{status['name']}, seed {status['seed']}: {state}")
    print(f"now: {status['why']['sentence']}")
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
    for failure in status["failures"][:10]:
        times = failure["errors"] + failure["crashes"] + failure["losses"]
        state = f"{failure['state']}, {times} times"
        print(f"went wrong: {failure['task']} ({state}): {failure['reason']}")
    for task in status["unfinished"][:10]:
        subject = f" {task['arm']} {task['subject']}".rstrip()
        print(f"to do: {task['kind']}{subject} phase {task['phase']} ({task['state']})")


def _print_work(status: dict[str, Any]) -> None:
    from rich.filesize import decimal

    if status["command"] != "run":
        print(f"\ncommand: {status['command']}")
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
