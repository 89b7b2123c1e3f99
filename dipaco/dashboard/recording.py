"""The recording: a run's facts over time as one JSON document, for the page and for a file."""

import contextlib
import json
import math
import time
from typing import Any

from dipaco.config import MODULAR
from dipaco.control.errors import NotAvailable
from dipaco.dashboard.alarms import alarms_of
from dipaco.dashboard.columns import packed
from dipaco.dashboard.curves import curves_of
from dipaco.dashboard.reader import Change, Reader
from dipaco.runs.reading.releases import samples_as_json
from dipaco.runs.reading.status import status_of
from dipaco.runs.run import Run

FORMAT = 1
MOST_COMPLETIONS = 1000  # the newest are kept
# Inner steps over all paths of the modular arm. Beyond it they are not drawn one by one.
MOST_LOSSES = 100_000


def state_of(reader: Reader) -> dict[str, Any]:
    """The values that every read computes again: status, alarms, curves, the report."""
    run, facts = reader.run, reader.facts
    status = status_of(run, with_sizes=False)
    evaluations = run.ledger.facts.evaluations()
    return {
        "status": status,
        "alarms": [alarm._asdict() for alarm in alarms_of(status, facts.arms[MODULAR])],
        "curves": curves_of(run, facts, evaluations),
        "report": _report(run),
        "losses": _losses(run),
    }


def recording_of(reader: Reader, state: dict[str, Any]) -> dict[str, Any]:
    """The whole recording."""
    run, facts = reader.run, reader.facts
    return {
        "format": FORMAT,
        "name": run.config.name,
        "seed": run.config.seed,
        "origin": facts.origin,
        "now": _now(reader),
        "arms": {name: arm.as_json() for name, arm in facts.arms.items()},
        "order": [run.plan.base.name, *(arm.name for arm in run.plan.arms)],
        "steps_per_phase": run.config.inner.steps,
        "events": facts.events_as_json(),
        "names": facts.names(),
        "claims": reader.claims,
        "completions": _completions(reader),
        **state,
    }


def difference_of(
    reader: Reader, change: Change, state: dict[str, Any] | None, names_before: dict[str, int]
) -> dict[str, Any]:
    """The changes that a page with the recording still lacks after a read.

    Args:
      reader: the reader, after the read.
      change: the news of the read.
      state: the new state, if it was read.
      names_before: the number of names of each kind that the page knows.
    """
    facts, modular = reader.facts, reader.facts.arms[MODULAR]
    return {
        "now": _now(reader),
        "origin": facts.origin,
        "events": facts.events_as_json(change.first_event),
        "names": {kind: names[names_before[kind] :] for kind, names in facts.names().items()},
        "claims": reader.claims,
        "steps": [
            [phase, module]
            + [
                _number(column[phase, module])
                for column in (modular.step_times, modular.norms, modular.cosines)
            ]
            + [[_number(value) for value in modular.path_norms[phase, module]]]
            for phase, module in change.steps
        ],
        "phases": {
            name: [
                [phase, path]
                + [
                    _number(column[phase, path])
                    for column in (
                        *(of.train_times, of.losses, of.seconds),
                        *(of.tokens, of.bytes_down, of.bytes_up),
                        *(of.inner_norms, of.largest_norms),
                    )
                ]
                for phase, path in cells
            ]
            for name, cells in change.phases.items()
            for of in [facts.arms[name]]
        },
        **({"completions": _completions(reader)} if "sample" in change.kinds else {}),
        **(state or {}),
    }


def to_json(document: dict[str, Any]) -> bytes:
    """JSON without NaN, which browsers refuse."""
    return json.dumps(_clean(document), separators=(",", ":"), allow_nan=False).encode()


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _now(reader: Reader) -> float:
    """Seconds since the beginning. For a finished run, its end."""
    facts = reader.facts
    if facts.origin is None:
        return 0.0
    is_over = not reader.claims and reader.run.ledger.queue.is_finished()
    return facts.last_seconds if is_over else max(facts.last_seconds, time.time() - facts.origin)


def _completions(reader: Reader) -> list[dict[str, Any]]:
    """Texts of the modular arm's releases, the newest last. `seconds` is when they were made."""
    sampled = reader.facts.sampled
    return [
        {**each, "seconds": sampled.get((each["arm"], each["phase"]), 0.0)}
        for each in samples_as_json(reader.samples)[-MOST_COMPLETIONS:]
    ]


def _report(run: Run) -> dict[str, Any] | None:
    """Rows and notes of the report, if it is written and here."""
    with contextlib.suppress(NotAvailable, OSError, ValueError):
        run.stage("report")
        content = json.loads(run.layout.report("json").read_bytes())
        return {"rows": content["rows"], "notes": content["notes"]}
    return None


def _losses(run: Run) -> dict[str, Any] | None:
    """Training loss of every inner step of the modular arm: path -> column. None if there are too
    many. The losses at the end of every phase are in `arms`.
    """
    arm = run.plan.arm(MODULAR)
    if arm.path_steps > MOST_LOSSES:
        return None
    losses = run.ledger.progress.losses(MODULAR)
    return {str(path): packed(values, "f4") for path, values in losses.items()}
