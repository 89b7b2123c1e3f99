"""Alarms: sentences on everything that needs a person, the most urgent first."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dipaco.dashboard.facts import ArmFacts
from dipaco.plural import counted

RISE_NATS = 0.5  # a path may diverge this far above its own best
GROWTH = 10.0  # times the median of its earlier phases: a path's gradients grow without bound
QUIET = ("working", "finished", "quorum")  # states of `status` that need nobody
STUCK = ("failed", "disk_full", "no_worker", "no_such_worker", "unknown")
MOST_OF_A_KIND = 5


class Alarm(NamedTuple):
    """One warning or error."""

    level: str  # error: work cannot go on or was lost; warning: someone should look
    sentence: str


def alarms_of(status: Mapping[str, Any], modular: ArmFacts) -> list[Alarm]:
    """The alarms of a run, from the values of `status --json` and its paths' losses."""
    alarms = []
    why = status["why"]
    if why["state"] not in QUIET:
        is_error = why["state"] in STUCK
        alarms.append(Alarm("error" if is_error else "warning", why["sentence"]))
    alarms += _named(map(_failure, status["failures"]), "failure")
    if not status["finished"]:
        alarms += _named(_silent(status["workers"]), "silent worker")
        alarms += _named(_ended(status["workers"]), "ended worker")
        alarms += _named(_diverging(modular), "diverging path")
    refusals = map(_refusal, status["refusals"])
    alarms += _named(refusals, "refused object", status["num_refusals"])
    if status["outside_bounds"]:
        alarms.append(Alarm("warning", f"shards outside their bounds: {status['outside_bounds']}"))
    return sorted(alarms, key=lambda alarm: alarm.level != "error")


def _named(alarms: Iterable[Alarm], noun: str, number: int | None = None) -> list[Alarm]:
    """The first alarms, and a line on the rest of `number`; None = count the given ones."""
    alarms = list(alarms)
    more = (len(alarms) if number is None else number) - MOST_OF_A_KIND
    kept = alarms[:MOST_OF_A_KIND]
    if more <= 0 or not kept:
        return kept
    return [*kept, Alarm(alarms[-1].level, f"and {counted(more, f'more {noun}')}")]


def _failure(of: Mapping[str, Any]) -> Alarm:
    times = counted(of["errors"] + of["crashes"] + of["losses"], "time")
    level = "error" if of["state"] == "failed" else "warning"
    return Alarm(level, f"{of['task']} went wrong {times} ({of['state']}): {of['reason']}")


def _refusal(of: Mapping[str, Any]) -> Alarm:
    sentence = f"refused: {of['what']}: {of['reason']} Done again: {of['task']}"
    return Alarm("warning", sentence)


def _silent(workers: Mapping[str, Any]) -> Iterator[Alarm]:
    """Silent workers, the holders of tasks first: a task waits until its lease ends."""
    silent = [(name, at) for name, at in workers.items() if at["state"] == "silent"]
    for name, at in sorted(silent, key=lambda each: not each[1]["task"]):
        holds = f"; it holds {at['task']}" if at["task"] else ""
        sentence = f"worker {name} has been silent for {at['silent_seconds']:,.0f} s{holds}"
        yield Alarm("warning", sentence)


def _ended(workers: Mapping[str, Any]) -> Iterator[Alarm]:
    """Ended workers that gave a reason, the newest first."""
    for name, at in sorted(workers.items(), key=lambda each: each[1]["silent_seconds"]):
        if at["state"] != "silent" and at["last_words"]:
            yield Alarm("warning", f"worker {name} ended: {at['last_words'][:300]}")


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
        norms = modular.inner_norms[trained, path]
        usual = float(np.median(norms[:-1])) if len(norms) > 1 else np.nan
        if norms[-1] > GROWTH * usual:
            sentence = (
                f"path {path} may diverge: gradient norm {norms[-1]:.3g} after phase "
                f"{trained[-1] + 1}, {usual:.3g} in most before"
            )
            alarms.append(Alarm("warning", sentence))
    return alarms
