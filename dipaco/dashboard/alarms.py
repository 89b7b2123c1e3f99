"""What needs a person, in sentences, the most urgent first: what `status` and `monitor` say."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dipaco.dashboard.facts import ArmFacts
from dipaco.plural import counted

RISE_NATS = 0.5  # above a path's own best: it may be diverging
QUIET = ("working", "finished", "quorum")  # states of `status` that need nobody
STUCK = ("failed", "disk_full", "no_worker", "no_such_worker", "unknown")
MOST_OF_A_KIND = 5


class Alarm(NamedTuple):
    """One of them."""

    level: str  # error: work cannot go on or was lost; warning: to be looked at
    sentence: str


def alarms_of(status: Mapping[str, Any], modular: ArmFacts) -> list[Alarm]:
    """Those of a run, from the values of `status --json` and its paths' losses."""
    alarms = []
    why = status["why"]
    if why["state"] not in QUIET:
        is_error = why["state"] in STUCK
        alarms.append(Alarm("error" if is_error else "warning", why["sentence"]))
    for each in status["failures"][:MOST_OF_A_KIND]:
        times = counted(each["errors"] + each["crashes"] + each["losses"], "time")
        level = "error" if each["state"] == "failed" else "warning"
        sentence = f"{each['task']} went wrong {times} ({each['state']}): {each['reason']}"
        alarms.append(Alarm(level, sentence))
    if not status["finished"]:
        alarms += _workers(status["workers"])
        alarms += _diverging(modular)
    for each in status["refusals"][:MOST_OF_A_KIND]:
        sentence = f"refused: {each['what']}: {each['reason']} Done again: {each['task']}"
        alarms.append(Alarm("warning", sentence))
    if status["num_refusals"] > MOST_OF_A_KIND:
        more = status["num_refusals"] - MOST_OF_A_KIND
        alarms.append(Alarm("warning", f"and {more:,} more objects were refused"))
    if status["outside_bounds"]:
        alarms.append(Alarm("warning", f"shards outside their bounds: {status['outside_bounds']}"))
    return sorted(alarms, key=lambda alarm: alarm.level != "error")


def _workers(workers: Mapping[str, Any]) -> list[Alarm]:
    alarms = []
    for name, at in workers.items():
        if at["state"] == "silent":
            holds = f"; it holds {at['task']}" if at["task"] else ""
            sentence = f"worker {name} has been silent for {at['silent_seconds']:,.0f} s{holds}"
            alarms.append(Alarm("warning", sentence))
        elif at["last_words"]:
            alarms.append(Alarm("warning", f"worker {name} ended: {at['last_words'][:300]}"))
    return alarms[: 2 * MOST_OF_A_KIND]


def _diverging(modular: ArmFacts) -> list[Alarm]:
    alarms = []
    for path in range(modular.arm.topology.num_paths):
        trained = np.flatnonzero(~np.isnan(modular.seconds[:, path]))
        if not len(trained):
            continue
        losses = modular.losses[trained, path]
        newest, best = float(losses[-1]), float(np.nanmin(losses)) if len(losses) else np.nan
        if not np.isfinite(newest) or newest > best + RISE_NATS:
            sentence = (
                f"path {path} may diverge: loss {newest:.2f} after phase {trained[-1] + 1}, "
                f"{best:.2f} at its best"
            )
            alarms.append(Alarm("warning", sentence))
    return alarms[:MOST_OF_A_KIND]
