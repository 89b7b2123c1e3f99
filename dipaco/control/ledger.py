"""The ledger: claims tasks, and records their facts together with the tasks that follow, in one
transaction.

Record a fact only when its bytes are durable: a row without bytes cannot be repaired, bytes without
a row are swept later.
"""

import contextlib
import json
import sqlite3
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dipaco.control.database import Database
from dipaco.control.plan import Plan
from dipaco.control.release import Release, make_release
from dipaco.control.scheduler import due, first_task
from dipaco.control.tasks import (
    PRIORITY,
    Arrival,
    Claim,
    Evaluated,
    Fact,
    ModuleReady,
    PathScored,
    PathTrained,
    StageDone,
    Task,
)
from dipaco.errors import ClaimLost, NotYet
from dipaco.receipt import Receipt
from dipaco.topology import ModuleId


class Snapshot(NamedTuple):
    """Where a path's snapshot lies, and what its position counts."""

    receipt: Receipt
    step: int
    batches: str


class StoredModule(NamedTuple):
    """Where a module at a phase lies."""

    parameters: Receipt
    outer_state: Receipt | None


class Ledger:
    """The memory of one run."""

    def __init__(self, file: Path):
        self._database = Database(file)

    def close(self) -> None:
        self._database.close()

    # --- the run as a whole --------------------------------------------------------------------

    def start(self, meta: dict[str, str]) -> None:
        """Begins a run: remembers what it is and makes its first task due."""
        with self._database.transaction():
            for key, value in meta.items():
                self._database.change("put_meta", key=key, value=value)
            self._add_tasks([first_task()])

    def meta(self, key: str) -> str | None:
        row = self._database.one("get_meta", key=key)
        return None if row is None else row[0]

    def remember(self, key: str, value: str) -> str:
        """Remembers a value unless there is one already; returns the one that is remembered."""
        with self._database.transaction():
            self._database.change("remember_meta", key=key, value=value)
        return self.meta(key) or value

    @contextlib.contextmanager
    def at_one_moment(self) -> Generator[None]:
        """What is read inside is of one moment, whatever others write meanwhile."""
        with self._database.snapshot():
            yield

    # --- tasks ---------------------------------------------------------------------------------

    def claim(self, worker: str) -> Claim | None:
        """The most urgent task that is ready, now held by `worker`; None where nothing is ready."""
        with self._database.transaction():
            row = self._database.one("claim_task", worker=worker)
        if row is None:
            return None
        task_id, kind, arm, subject, phase, attempt = row
        return Claim(Task(kind, arm, subject, phase), task_id, attempt)

    def finish(self, plan: Plan, claim: Claim, facts: Iterable[Fact]) -> list[Task]:
        """Records the facts of a finished task, and makes due what they make due. All or nothing.

        Raises:
          ClaimLost: somebody else holds the task by now, or has finished it. Nothing was recorded.
        """
        facts = list(facts)
        with self._database.transaction():
            if not self._database.change(
                "finish_task", task_id=claim.task_id, attempt=claim.attempt
            ):
                raise ClaimLost(task=claim.task)
            try:
                for fact in facts:
                    self._record(fact)
            except sqlite3.IntegrityError as error:
                # A key that is taken; anything else is a fact that should never have come here.
                if error.sqlite_errorname != "SQLITE_CONSTRAINT_PRIMARYKEY":
                    raise
                raise ClaimLost(task=claim.task) from error
            tasks = due(plan, facts, self)
            for arm, phase in dict.fromkeys((t.arm, t.phase) for t in tasks if t.kind == "score"):
                self._release(plan, arm, phase)
            self._add_tasks(tasks)
        return tasks

    def give_back(self, claim: Claim) -> None:
        """The task is ready again, for whoever comes."""
        with self._database.transaction():
            self._database.change("give_back", task_id=claim.task_id, attempt=claim.attempt)

    def give_back_all(self) -> int:
        """Every claimed task is ready again; to be called only where no other process works on
        this run.
        """
        with self._database.transaction():
            return self._database.change("give_back_all")

    def unfinished(self) -> list[dict[str, Any]]:
        names = ("kind", "arm", "subject", "phase", "state", "attempt")
        return [dict(zip(names, row, strict=True)) for row in self._database.rows("list_tasks")]

    def task_counts(self) -> dict[tuple[str, str], dict[str, int]]:
        """(kind, arm) -> state -> number of tasks."""
        counts: dict[tuple[str, str], dict[str, int]] = {}
        for kind, arm, state, number in self._database.rows("count_tasks"):
            counts.setdefault((kind, arm), {})[state] = number
        return counts

    # --- facts ---------------------------------------------------------------------------------

    def stage(self, stage: str) -> StageDone:
        """What a stage made. Raises `NotYet`."""
        row = self._database.one("get_stage", stage=stage)
        if row is None:
            raise NotYet(what=f"stage `{stage}`")
        return _stage(stage, *row)

    def stages(self) -> list[StageDone]:
        return [_stage(*row) for row in self._database.rows("list_stages")]

    def module(self, arm: str, module: ModuleId, phase: int) -> StoredModule:
        """Raises `NotYet`."""
        row = self._database.one("get_module", arm=arm, module=str(module), phase=phase)
        if row is None:
            raise NotYet(what=f"module {module} of `{arm}` at phase {phase}")
        return StoredModule(Receipt(*row[:3]), Receipt(*row[3:6]) if row[3] else None)

    def arrivals(self, arm: str, module: ModuleId, phase: int) -> list[Arrival]:
        """Contributions to a module in a phase, in path order."""
        rows = self._database.rows("arrivals", arm=arm, module=str(module), phase=phase)
        return [
            Arrival(
                arm=arm,
                module=module,
                phase=phase,
                path=path,
                base_digest=base_digest,
                message=Receipt(*receipt),
            )
            for path, base_digest, *receipt in rows
        ]

    def snapshot(self, arm: str, path: int, phase: int) -> Snapshot:
        """A path after `phase`. Raises `NotYet`."""
        row = self._database.one("get_trained", arm=arm, path=path, phase=phase)
        if row is None:
            raise NotYet(what=f"path {path} of `{arm}` after phase {phase}")
        return Snapshot(Receipt(*row[:3]), row[3], row[4])

    def scores(self, arm: str, phase: int) -> list[Receipt]:
        """Scores of every path of a release, in path order."""
        return [Receipt(*row[1:]) for row in self._database.rows("scores", arm=arm, phase=phase)]

    def release(self, arm: str, phase: int | None = None) -> Release:
        """The release of a phase, or the newest. Raises `NotYet`."""
        phases = [p for a, p in self.releases() if a == arm and phase in (None, p)]
        if not phases:
            wanted = f"release of `{arm}`" + ("" if phase is None else f" at phase {phase}")
            raise NotYet(what=wanted)
        row = self._database.one("get_release", arm=arm, phase=max(phases))
        assert row is not None
        return Release.from_json(row[1])

    def releases(self) -> list[tuple[str, int]]:
        return [(arm, phase) for arm, phase, _ in self._database.rows("list_releases")]

    def evaluations(self) -> list[Evaluated]:
        names = (
            "arm",
            "phase",
            "perplexity",
            "best_path_perplexity",
            "documents",
            "tokens",
            "seconds",
        )
        return [
            Evaluated(**dict(zip(names, row, strict=True)))
            for row in self._database.rows("list_evaluations")
        ]

    def losses(self, arm: str) -> dict[int, list[float]]:
        """Training loss of every inner step, per path."""
        losses: dict[int, list[float]] = {}
        for path, _, values in self._database.rows("losses", arm=arm):
            losses.setdefault(path, []).extend(json.loads(values))
        return losses

    def training_totals(self, arm: str) -> dict[str, Any]:
        row = self._database.one("training_totals", arm=arm)
        assert row is not None
        return dict(zip(("tokens", "seconds", "bytes_sent", "path_phases"), row, strict=True))

    def newest_modules(self) -> list[tuple[str, str, int, str]]:
        """(arm, module, phase, digest) of every module at its last phase."""
        return self._database.rows("newest_modules")

    def newest_trained(self) -> list[dict[str, Any]]:
        """Where every path is."""
        names = ("arm", "path", "phase", "step", "loss", "tokens")
        return [
            dict(zip(names, (*row[:4], json.loads(row[4])[-1:], row[5]), strict=True))
            for row in self._database.rows("newest_trained")
        ]

    def superseded_messages(self, arm: str, module: ModuleId, phase: int) -> list[str]:
        """Names of contributions that have been averaged."""
        rows = self._database.rows("superseded_arrivals", arm=arm, module=str(module), phase=phase)
        return [name for (name,) in rows]

    def superseded_snapshots(self, arm: str, path: int, phase: int) -> list[str]:
        """Name of a path's snapshot of the phase before `phase`."""
        rows = self._database.rows("superseded_snapshots", arm=arm, path=path, phase=phase)
        return [name for (name,) in rows]

    def live_names(self) -> set[str]:
        """Names of what will be read again: the last snapshot of every path, and contributions
        that wait for their module to step.
        """
        return {name for (name,) in self._database.rows("live_names")}

    # --- the frontier, as the scheduler asks for it ----------------------------------------------

    def modules_at(self, arm: str, phase: int) -> set[ModuleId]:
        return set(self.receipts_at(arm, phase))

    def receipts_at(self, arm: str, phase: int) -> dict[ModuleId, Receipt]:
        """Parameters of all modules of an arm at the start of a phase."""
        rows = self._database.rows("modules_at", arm=arm, phase=phase)
        return {ModuleId.parse(module): Receipt(*receipt) for module, *receipt in rows}

    def phases_reached(self, arm: str, num_modules: int) -> int:
        """The last phase that all modules of an arm have reached."""
        row = self._database.one("phases_reached", arm=arm, num_modules=num_modules)
        return -1 if row is None else row[0]

    def num_arrivals(self, arm: str, module: ModuleId, phase: int) -> int:
        row = self._database.one("num_arrivals", arm=arm, module=str(module), phase=phase)
        assert row is not None
        return row[0]

    def num_scored(self, arm: str, phase: int) -> int:
        row = self._database.one("num_scored", arm=arm, phase=phase)
        assert row is not None
        return row[0]

    def evaluated(self) -> set[tuple[str, int]]:
        return {(fact.arm, fact.phase) for fact in self.evaluations()}

    # --- how each fact is written ----------------------------------------------------------------

    def _add_tasks(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._database.change("add_task", **task._asdict(), priority=PRIORITY[task.kind])

    def _release(self, plan: Plan, arm: str, phase: int) -> None:
        companions = {
            name: receipt.digest
            for stage in ("prepare", "route")
            for name, receipt in self.stage(stage).artifacts.items()
        }
        release = make_release(
            arm, phase, plan.arm(arm).topology, self.receipts_at(arm, phase), companions
        )
        self._database.change(
            "add_release", arm=arm, phase=phase, digest=release.digest, body=release.to_json()
        )

    def _record(self, fact: Fact) -> None:
        change = self._database.change
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
                )
            case Arrival():
                change(
                    "add_arrival",
                    arm=fact.arm,
                    module=str(fact.module),
                    phase=fact.phase,
                    path=fact.path,
                    base_digest=fact.base_digest,
                    **fact.message._asdict(),
                )
            case PathTrained():
                change(
                    "add_trained",
                    arm=fact.arm,
                    path=fact.path,
                    phase=fact.phase,
                    **fact.snapshot._asdict(),
                    step=fact.step,
                    batches=fact.batches,
                    losses=json.dumps(fact.losses),
                    tokens=fact.tokens,
                    seconds=fact.seconds,
                    bytes_down=fact.bytes_down,
                    bytes_up=fact.bytes_up,
                )
            case StageDone():
                change(
                    "add_stage",
                    stage=fact.stage,
                    artifacts=json.dumps(fact.artifacts),
                    summary=json.dumps(fact.summary),
                    seconds=fact.seconds,
                )
            case PathScored():
                change(
                    "add_score",
                    arm=fact.arm,
                    path=fact.path,
                    phase=fact.phase,
                    **fact.scores._asdict(),
                    seconds=fact.seconds,
                )
            case Evaluated():
                change(
                    "add_evaluation",
                    arm=fact.arm,
                    phase=fact.phase,
                    perplexity=fact.perplexity,
                    best_path_perplexity=fact.best_path_perplexity,
                    documents=fact.documents,
                    tokens=fact.tokens,
                    seconds=fact.seconds,
                )


def _stage(stage: Any, artifacts: str, summary: str, seconds: float) -> StageDone:
    receipts = {name: Receipt(*values) for name, values in json.loads(artifacts).items()}
    return StageDone(stage=stage, artifacts=receipts, summary=json.loads(summary), seconds=seconds)


@contextlib.contextmanager
def open_ledger(file: Path) -> Generator[Ledger]:
    """A ledger, closed at the end."""
    ledger = Ledger(file)
    try:
        yield ledger
    finally:
        ledger.close()
