"""The overview of a run, as lines. `dipaco status` prints it first, and `--watch` nothing else.

    quickstart, seed 0: 62 %, about 3 min 10 s left; 2 workers are at work
    now: 2 tasks are held by 2 workers, 3 are ready
    workers: 2 here, 0 silent, 1 gone; bits: the same on every worker: all are of one kind
      host-1  train modular path 2 phase 3, 14 s  participation 97%, 12 tasks, 0 lost

    modular  phase 3 of 4, loss 4.80 to 5.31, perplexity 130.20
      0  ##5*

Reads the JSON values that `dipaco status --json` prints, and nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dipaco.observe.progress import time_left
from dipaco.plural import counted

MOST_WORKERS = 8  # listed workers; the rest are counted
MOST_FAILURES = 3  # listed failures; the rest are counted
GROUP = 8  # paths of a grid stand in groups, so that they can be counted
KEY = "paths: . not begun, 1 to 9 tenths of the steps, # done, * at work"


def overview(status: Mapping[str, Any], width: int, height: int | None = None) -> list[str]:
    """Lines of at most about `width` columns, the most important first.

    Args:
      status: the JSON values that `dipaco status --json` prints.
      width: columns.
      height: available lines. None = no limit. The lines about the whole run and about every arm
        come first. Paths and workers are shown as far as there is room.
    """
    top = [headline(status), f"now: {status['why']['sentence']}", *_troubles(status)]
    if status["rules"]:
        of = status["rules"].items()
        named = (f"{kind.replace('_', ' ')} {rule['name']}" for kind, rule in of)
        top.append(f"own rules: {', '.join(named)}")
    if unsent := status["unsent_snapshots"]:
        most = counted(max(unsent.values()), "phase")
        of = counted(len(unsent), "path")
        top.append(f"snapshots of {of} are on one disk: a lost machine costs up to {most} of each")
    left = MOST_WORKERS + 1
    arms = {name: arm for name, arm in status["arms"].items() if arm["steps"]}
    grids = {name: _grid(arm, _at_work(status, name), width) for name, arm in arms.items()}
    if height is not None:
        # Every arm takes a blank line and one about it. The key takes the last line.
        left = height - len(top) - bool(status["workers"]) - 2 * len(arms) - 1
        for name in sorted(arms, key=lambda name: -arms[name]["num_paths"]):
            if len(grids[name]) > left:
                grids[name] = []
            left -= len(grids[name])
    lines = [*top, *_workers(status, left)]
    for name, arm in arms.items():  # a base model that is already trained takes no steps
        lines += ["", _arm(name, arm), *grids[name]]
    return [*lines, *([KEY] if any(grids.values()) else [])]


def _at_work(status: Mapping[str, Any], arm: str) -> set[str]:
    """The paths of an arm that workers are training now."""
    return {
        task["subject"]
        for task in status["unfinished"]
        if task["kind"] == "train" and task["state"] == "claimed" and task["arm"] == arm
    }


def _troubles(status: Mapping[str, Any]) -> list[str]:
    failures = status["failures"]
    lines = [f"went wrong: {_failure(each)}" for each in failures[:MOST_FAILURES]]
    more = len(failures) - len(lines)
    return [*lines, *([f"went wrong: {more} more, each with `--json`"] if more else [])]


def headline(status: Mapping[str, Any]) -> str:
    """Progress of the run in per cent, time left, and number of active workers."""
    at = status["progress"]
    name = f"{status['name']}, seed {status['seed']}"
    if status["finished"]:
        return f"{name}: finished, 100 % of {at['total_steps']:,} steps; nobody is working"
    share = min(99, 100 * at["steps"] // max(1, at["total_steps"]))
    working = sum(
        worker["state"] == "here" and worker["task"] is not None
        for worker in status["workers"].values()
    )
    seconds = at["work_left_seconds"]
    left = "time left not known yet"
    if seconds is not None:
        left = f"about {time_left(seconds / max(1, working))} left"
        left += "" if working else " for one worker"
    who = "nobody is working"
    if working:
        who = "1 worker is at work" if working == 1 else f"{working} workers are at work"
    return f"{name}: {share} %, {left}; {who}"


def fit(lines: Sequence[str], width: int, height: int) -> list[str]:
    """Cuts lines to the size of a terminal. The last one says how many are left out."""
    shown = list(lines)
    if len(lines) > height:
        hidden = len(lines) - height + 1
        shown = [*lines[: height - 1], f"… {hidden} more lines without --watch"]
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in shown]


def _workers(status: Mapping[str, Any], room: int) -> list[str]:
    """A line of counts, and as many workers below it as fit into `room` lines."""
    workers = status["workers"]
    if not workers:
        return []
    if status["finished"]:
        took_part = sum(worker["committed_tasks"] > 0 for worker in workers.values())
        return [f"workers: none, {took_part} took part; bits: {status['bits']}"]
    here = {name: at for name, at in workers.items() if at["state"] == "here"}
    silent = {name: at for name, at in workers.items() if at["state"] == "silent"}
    gone = len(workers) - len(here) - len(silent)
    counts = f"{len(here)} here, {len(silent)} silent, {gone} gone"
    # Workers at their tasks come first, the longest task first. Then come the silent ones, the
    # most recently heard first.
    shown = sorted(here.items(), key=lambda item: -(item[1]["task_seconds"] or 0))
    shown += sorted(silent.items(), key=lambda item: item[1]["silent_seconds"])
    most = min(MOST_WORKERS, room)
    if len(shown) > most:  # the last line counts the rest
        most = max(0, min(MOST_WORKERS, room - 1))
    lines = [_worker(name, at) for name, at in shown[:most]]
    rest = [f"  and {len(shown) - most} more"] * (room > 0 and len(shown) > most)
    return [f"workers: {counts}; bits: {status['bits']}", *lines, *rest]


def _worker(name: str, at: Mapping[str, Any]) -> str:
    doing = f"{at['task']}, {time_left(at['task_seconds'])}" if at["task"] else "waits"
    if at["state"] == "silent":
        silent = f"silent for {time_left(at['silent_seconds'])}, may be dead"
        doing = f"{silent}; holds {at['task']}" if at["task"] else silent
    tasks = f"{at['committed_tasks']} tasks, {at['lost_tasks']} lost"
    return f"  {name}  {doing}  participation {at['participation']:.0%}, {tasks}"


def _arm(name: str, arm: Mapping[str, Any]) -> str:
    phases = [module["phase"] for module in arm["modules"].values()]
    losses = [at["loss"] for at in arm["paths"].values() if at["loss"] is not None]
    facts = [f"phase {min(phases, default=0)} of {arm['phases']}"]
    if losses:
        low, high = min(losses), max(losses)
        facts += [f"loss {low:.2f}" if len(losses) == 1 else f"loss {low:.2f} to {high:.2f}"]
    if arm["evaluations"]:
        facts += [f"perplexity {arm['evaluations'][-1]['perplexity']:.2f}"]
    return f"{name}  {', '.join(facts)}"


def _grid(arm: Mapping[str, Any], at_work: set[str], width: int) -> list[str]:
    """One character for each path. An arm with a single path has no grid."""
    if arm["num_paths"] == 1:
        return []

    def cell(path: int) -> str:
        if str(path) in at_work:
            return "*"
        at = arm["paths"].get(str(path))
        share = 0.0 if at is None else at["step"] / max(1, arm["steps"])
        return "." if share == 0 else "#" if share >= 1 else str(max(1, min(9, int(10 * share))))

    cells = [cell(path) for path in range(arm["num_paths"])]
    label_width = len(f"{arm['num_paths']:,}") + 4
    groups = max(1, min(8, (width - label_width) // (GROUP + 1)))
    lines = []
    for start in range(0, len(cells), GROUP * groups):
        row = cells[start : start + GROUP * groups]
        grouped = ["".join(row[at : at + GROUP]) for at in range(0, len(row), GROUP)]
        lines.append(f"  {start:>{label_width - 4}}  {' '.join(grouped)}")
    return lines


def _failure(failure: Mapping[str, Any]) -> str:
    times = failure["errors"] + failure["crashes"] + failure["losses"]
    return f"{failure['task']} ({failure['state']}, {times} times): {failure['reason']}"
