"""Recording a fact: how each kind is written, whether it is recorded already, and which locks a
commit of it needs. Everything here runs inside the caller's transaction.
"""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from dipaco.control.database.contract import Database
from dipaco.control.planning.tasks import (
    Contribution,
    Evaluated,
    Fact,
    ModuleReady,
    PathChecked,
    PathLabelled,
    PathScored,
    PathTrained,
    Sample,
    Sampled,
    SliceDone,
    StageDone,
)
from dipaco.receipt import Receipt
from dipaco.schedule.plan import Plan

DROP_PARTIAL_SNAPSHOT = "drop_phase partial_snapshots"


def record(database: Database, fact: Fact) -> None:
    """Writes a fact. Raises `KeyTaken`: it is recorded already."""
    change = database.change
    match fact:
        case ModuleReady():
            state = fact.outer_state or Receipt(None, None, None)  # ty: ignore[invalid-argument-type]
            change(
                "add_module",
                arm=fact.arm,
                module=str(fact.module),
                phase=fact.phase,
                **fact.parameters._asdict(),
                state_name=state.name,
                state_digest=state.digest,
                state_bytes=state.num_bytes,
                gradient_norm=fact.gradient_norm,
                gradient_stats=None
                if fact.gradient_stats is None
                else json.dumps(fact.gradient_stats),
            )
        case Contribution():
            change("add_contribution", **row_of_contribution(fact))
        case PathTrained():
            change("add_trained", **row_of_trained(fact))
            change(DROP_PARTIAL_SNAPSHOT, arm=fact.arm, path=fact.path, phase=fact.phase)
        case StageDone() | SliceDone():
            is_slice = isinstance(fact, SliceDone)
            change(
                "add_stage",
                stage=name_of_slice(fact) if is_slice else fact.stage,
                phase=0 if is_slice else fact.phase,
                artifacts=json.dumps(fact.artifacts),
                summary=json.dumps(fact.summary),
                seconds=fact.seconds,
            )
            if fact.stage == "reroute":
                change(DROP_PARTIAL_SNAPSHOT, arm="", path=0, phase=0)
        case PathChecked():
            change("add_check", **dataclasses.asdict(fact))
        case PathScored() | PathLabelled():
            change(
                f"add_likelihoods {table_of(fact)}",
                arm=fact.arm,
                path=fact.path,
                phase=fact.phase,
                **fact.scores._asdict(),
                seconds=fact.seconds,
            )
        case Evaluated():
            rows = {name: json.dumps(getattr(fact, name)) for name in ("other_rows", "tune_rows")}
            change("add_evaluation", **dataclasses.asdict(fact) | rows)
        case Sampled():
            for number, sample in enumerate(fact.samples):
                values = sample._asdict()
                # JSON, because a text may hold characters that PostgreSQL does not take.
                values |= {name: json.dumps(values[name]) for name in ("prompt", "text")}
                values["has_ended"] = int(sample.has_ended)
                change("add_sample", arm=fact.arm, phase=fact.phase, number=number, **values)


def table_of(fact: PathScored | PathLabelled) -> str:
    """The table of a fact that is log-likelihoods."""
    return "scores" if isinstance(fact, PathScored) else "labels"


def row_of_contribution(fact: Contribution) -> dict[str, Any]:
    """The row of a fact, by column."""
    return {
        "arm": fact.arm,
        "module": str(fact.module),
        "phase": fact.phase,
        "path": fact.path,
        "base_digest": fact.base_digest,
        **fact.message._asdict(),
    }


def row_of_trained(fact: PathTrained) -> dict[str, Any]:
    """The row of a fact, by column."""
    return {
        "arm": fact.arm,
        "path": fact.path,
        "phase": fact.phase,
        **fact.snapshot._asdict(),
        "step": fact.step,
        "position": fact.position,
        "batches": fact.batches,
        "losses": json.dumps(fact.losses),
        "norm_mean": None if fact.norms is None else fact.norms.mean,
        "norm_largest": None if fact.norms is None else fact.norms.largest,
        "tokens": fact.tokens,
        "seconds": fact.seconds,
        "bytes_down": fact.bytes_down,
        "bytes_up": fact.bytes_up,
        "machine": fact.machine,
    }


def lock_subjects(plan: Plan, facts: Iterable[Fact]) -> list[str]:
    """The locks that are needed before the scheduler counts these facts. Facts that share a subject
    commit serially. Otherwise two commits could each miss that the set is complete.
    """
    return [subject for fact in facts for subject in _lock_subjects(plan, fact)]


def _lock_subjects(plan: Plan, fact: Fact) -> tuple[str, ...]:
    match fact:
        # A contribution may be late if there is a quorum. A path's next phase then waits for the
        # path itself as well as for its modules.
        case Contribution() if plan.arm(fact.arm).has_quorum:
            return (of_contributions(fact.arm, fact.module),)
        case ModuleReady() if plan.arm(fact.arm).has_quorum:
            return (of_contributions(fact.arm, fact.module), of_modules_ready(fact.arm, fact.phase))
        case PathTrained() if plan.arm(fact.arm).has_quorum:
            return (of_modules_ready(fact.arm, fact.phase + 1),)
        case Contribution():
            return (f"Contribution {fact.arm} {fact.module} {fact.phase}",)
        case ModuleReady():
            return (of_modules_ready(fact.arm, fact.phase),)
        case PathScored() | PathLabelled():
            return (f"{type(fact).__name__} {fact.arm} {fact.phase}",)
        case SliceDone():
            return (f"SliceDone {fact.stage} {fact.step}",)
        case PathChecked():  # the next check waits for this one and for the path's modules
            return (
                f"PathChecked {fact.arm} {fact.phase}",
                of_modules_ready(fact.arm, fact.phase + 1),
            )
        case PathTrained():
            return ()  # no task waits for a number of them
        case _:
            return (type(fact).__name__,)


def of_modules_ready(arm: str, phase: int) -> str:
    """The lock subject of recording, or counting, an arm's modules at the start of a phase."""
    return f"ModuleReady {arm} {phase}"


def of_contributions(arm: str, module: object) -> str:
    """The lock subject of counting a module's contributions in an arm with a quorum."""
    return f"Contribution {arm} {module}"


def stage_done(stage: Any, phase: int, artifacts: str, summary: str, seconds: float) -> StageDone:
    """A row of the table of stages."""
    return StageDone(
        stage=stage,
        phase=phase,
        artifacts={name: Receipt(*values) for name, values in json.loads(artifacts).items()},
        summary=json.loads(summary),
        seconds=seconds,
    )


def name_of_slice(fact: SliceDone) -> str:
    """The slice's name in the table of stages. Stages themselves have no spaces in their names."""
    return " ".join(fact.task[:3])


def slice_done(name: str, artifacts: str, summary: str, seconds: float) -> SliceDone:
    """The inverse of a row of that table."""
    stage, step, number = name.split(" ")
    row = stage_done(stage, 0, artifacts, summary, seconds)
    return SliceDone(
        stage=row.stage,
        step=step,
        slice=int(number),
        artifacts=row.artifacts,
        summary=row.summary,
        seconds=seconds,
    )


def sampled_facts(rows: Iterable[tuple]) -> list[Sampled]:
    """The facts of rows of the table of samples. Rows of one release follow each other."""
    by_release: dict[tuple[str, int], list[Sample]] = {}
    for arm, phase, domain, document, path, prompt, text, num_tokens, has_ended in rows:
        texts = json.loads(prompt), json.loads(text)
        sample = Sample(domain, document, path, *texts, num_tokens, bool(has_ended))
        by_release.setdefault((arm, phase), []).append(sample)
    return [
        Sampled(arm=arm, phase=phase, samples=tuple(samples))
        for (arm, phase), samples in by_release.items()
    ]
