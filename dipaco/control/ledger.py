"""The ledger: records the facts of a finished task together with the tasks that follow, in one
transaction, and tells them again.

Record a fact only when its bytes are durable: a row without bytes cannot be repaired, bytes without
a row are swept later.
"""

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dipaco.control.database import KeyTaken, open_database
from dipaco.control.patience import patient
from dipaco.control.plan import Plan
from dipaco.control.queue import Queue
from dipaco.control.release import Release, make_release
from dipaco.control.roster import Roster
from dipaco.control.scheduler import due, first_task
from dipaco.control.swarms import Swarms
from dipaco.control.tasks import (
    PRIORITY,
    Arrival,
    Claim,
    Evaluated,
    Fact,
    ModuleReady,
    Moves,
    PathChecked,
    PathLabelled,
    PathScored,
    PathTrained,
    StageDone,
    Task,
)
from dipaco.errors import ClaimLost, KeepsFailing, NotYet, OtherBytes
from dipaco.receipt import Receipt
from dipaco.topology import ModuleId

MOST_REDOS = 3  # the same task, before a person must look


class Snapshot(NamedTuple):
    """Where a path's snapshot lies, and what its position counts."""

    receipt: Receipt
    step: int  # of the arm's schedule
    position: int  # in the data of `batches`
    batches: str


class StoredModule(NamedTuple):
    """Where a module at a phase lies."""

    parameters: Receipt
    outer_state: Receipt | None


class OuterStep(NamedTuple):
    """How a module came to be as it is at the start of a phase."""

    phase: int
    gradient_norm: float | None  # of the mean outer gradient; None where nothing was averaged
    moves: Moves | None


class Partway(NamedTuple):
    """A path that stopped inside a phase, and what it has of that phase."""

    receipt: Receipt  # snapshot of parameters and inner state
    step: int  # inner steps taken in all
    batches: str
    losses: tuple[float, ...]  # of the steps of this phase
    seconds: float


class Wish(NamedTuple):
    """How many workers somebody wants a launcher to keep."""

    workers: int
    identity: str


class Ledger:
    """The memory of one run.

    Args:
      place: a file, or the URL of a database server.
      schema: the run's own name there.
    """

    def __init__(self, place: Path | str, schema: str = ""):
        self._database = open_database(place, schema)
        self.queue = Queue(self._database)
        self.roster = Roster(self._database)
        self.swarms = Swarms(self._database)

    def close(self) -> None:
        self._database.close()

    # --- the run as a whole --------------------------------------------------------------------

    def start(self, meta: dict[str, str]) -> None:
        """Begins a run: remembers what it is and makes its first task due."""
        with self._database.transaction():
            for key, value in meta.items():
                self._database.change("put_meta", key=key, value=value)
            self._add_tasks([first_task()])
        self._database.fold()  # it may be put in its place now

    def fork(self, file: Path, meta: dict[str, str]) -> None:
        """Begins another run, in a file, with all that this one has recorded; `meta` says what is
        different about it. Whether what was recorded would be the same there is the caller's to
        know.
        """
        self._database.copy_to(file)
        with open_ledger(file) as other:
            with other._database.transaction():
                for key, value in meta.items():
                    other._database.change("change_meta", key=key, value=value)
            other._database.fold()

    def meta(self, key: str) -> str | None:
        row = self._database.one("get_meta", key=key)
        return None if row is None else row[0]

    def remember(self, key: str, value: str) -> str:
        """Remembers a value unless there is one already; returns the one that is remembered."""
        with self._database.transaction():
            self._database.change("remember_meta", key=key, value=value)
        return self.meta(key) or value

    @patient
    def order(self, order: str) -> None:
        """What everybody who works on this run should do from now on: `run`, `pause`, `drain`."""
        with self._database.transaction():
            self._database.change("change_meta", key="order", value=order)

    @patient
    def want_workers(self, count: int, launcher: str | None = None) -> None:
        """How many workers one launcher, or each of all, should keep from now on."""
        wish = f"{count} {uuid.uuid4().hex}"  # the same number again is another wish
        with self._database.transaction():
            self._database.change("change_meta", key=_workers_of(launcher), value=wish)

    def wishes(self, launcher: str) -> list[Wish]:
        """What was wanted last of all launchers and, after it, of this one."""
        texts = [self.meta(_workers_of(None)), self.meta(_workers_of(launcher))]
        return [Wish(int(text.split()[0]), text) for text in texts if text is not None]

    @contextlib.contextmanager
    def at_one_moment(self) -> Generator[None]:
        """What is read inside is of one moment, whatever others write meanwhile."""
        with self._database.snapshot():
            yield

    # --- tasks ---------------------------------------------------------------------------------

    def finish(self, plan: Plan, claim: Claim, facts: Iterable[Fact]) -> list[Task]:
        """Records the facts of a finished task, and makes due what they make due. All or nothing.

        Raises:
          ClaimLost: somebody else holds the task by now, or has finished it. Nothing was recorded.
        """
        tries = iter(range(1_000_000))
        return self._finish(plan, claim, list(facts), tries)

    @patient
    def _finish(
        self, plan: Plan, claim: Claim, facts: list[Fact], tries: Iterator[int]
    ) -> list[Task]:
        """`tries` counts: a connection that broke during the commit may have committed."""
        key = {"task_id": claim.task_id, "attempt": claim.attempt}
        if next(tries) and self._database.one("is_finished_by", **key):
            return []
        with self._database.transaction():
            seconds = self._end_claims(claim)
            finished = self._database.one("finish_task", task_id=claim.task_id)
            if finished is None:
                raise ClaimLost(task=claim.task)
            (redone,) = finished
            try:
                for fact in facts:
                    if not (redone and self._is_known(claim.task, fact)):
                        self._record(fact)
            except KeyTaken as error:
                raise ClaimLost(task=claim.task) from error
            if redone:  # whoever waited looks again; what is still missing is found again
                self._database.change("wake_tasks")
            self._database.wait_for_others(*(s for fact in facts for s in _counted_with(fact)))
            tasks = due(plan, facts, self)
            for arm, phase in dict.fromkeys((t.arm, t.phase) for t in tasks if t.kind == "score"):
                self._release(plan, arm, phase)
            self._add_tasks(tasks)
            self._database.change("credit_worker", name=claim.worker, seconds=seconds)
        return tasks

    def _end_claims(self, claim: Claim) -> float:
        """Inside a transaction: nobody holds the task any more, whoever else tried it; for how long
        `claim` held it. Raises `ClaimLost`.
        """
        rows = self._database.rows("drop_claims_of_task", task_id=claim.task_id)
        held_seconds = {(attempt, worker): seconds for attempt, worker, seconds in rows}
        if (claim.attempt, claim.worker) not in held_seconds:
            raise ClaimLost(task=claim.task)
        return held_seconds[claim.attempt, claim.worker]

    @patient
    def redo(
        self, claim: Claim, cause: Task, what: str, reason: str, refused: Arrival | None = None
    ) -> None:
        """What `claim` needs is lost: the task that made it is done again, and this one waits.

        Args:
          claim: is given up.
          cause: the task that made it.
          what: the object that is damaged, or was refused.
          reason: what is wrong with it; `status` shows it.
          refused: a contribution to take out.

        Raises:
          ClaimLost: nothing was changed.
          KeepsFailing: that has been tried `MOST_REDOS` times.
        """
        with self._database.transaction():
            self._end_claims(claim)
            key = cause._asdict()
            found = self._database.one("get_task", **key)
            assert found is not None, cause
            state, redone = found
            if redone >= MOST_REDOS:
                raise KeepsFailing(task=cause, what=what, reason=reason, times=redone)
            self._database.change("wait_task", task_id=claim.task_id)
            if state == "done":
                self._database.change("redo_task", **key)
            if refused is not None:
                self._database.change(
                    "drop_arrival",
                    arm=refused.arm,
                    module=str(refused.module),
                    phase=refused.phase,
                    path=refused.path,
                )
            self._database.change(
                "put_refusal", what=what, reason=reason, task=str(cause), worker=claim.worker
            )

    def refuse(self, claim: Claim, arrival: Arrival, reason: str) -> None:
        """A contribution is wrong: it is taken out, and its path is trained again. Raises as
        `redo`.
        """
        cause = Task("train", arrival.arm, str(arrival.path), arrival.phase)
        self.redo(claim, cause, arrival.message.name, reason, refused=arrival)

    def refusals(self) -> list[dict[str, str]]:
        """What was refused or found damaged, the newest first."""
        names = ("what", "reason", "task", "worker")
        return [dict(zip(names, row, strict=True)) for row in self._database.rows("refusals")]

    def maker_of(self, plan: Plan, name: str) -> Task | None:
        """The task that made an object; None where its loss costs nothing but time."""
        one = self._database.one
        if row := one("maker_of_snapshot", name=name):
            return _training(plan, *row)
        if row := one("maker_of_message", name=name):
            return _training(plan, *row)
        if rows := self._database.rows("maker_of_module", name=name):
            # Equal parameters are one object: a dense arm begins with the base model's. Who made
            # them first makes them again.
            makers = [_maker_of_module(plan, *row) for row in rows]
            return min(makers, key=lambda task: (PRIORITY[task.kind], task.phase))
        if row := one("maker_of_scores", name=name):
            arm, path, phase = row
            return Task("score", arm, str(path), phase)
        if row := one("maker_of_labels", name=name):
            arm, path, phase = row
            return Task("label", arm, str(path), phase)
        for stage in self.stages():
            if name in {receipt.name for receipt in stage.artifacts.values()}:
                return Task(stage.stage, phase=stage.phase)
        return None

    @patient
    def forget_partway(self, name: str) -> bool:
        """Drops what a path had of a phase, where `name` is that; True where it is."""
        with self._database.transaction():
            return bool(self._database.change("drop_partway_named", name=name))

    @patient
    def hand_on(self, claim: Claim, partway: Partway) -> None:
        """Gives a training task back part-way: whoever takes it goes on from there.

        Raises:
          ClaimLost: somebody else holds the task by now. Nothing was recorded.
        """
        with self._database.transaction():
            held = self._database.one("drop_claim", **_key(claim))
            if held is None:
                raise ClaimLost(task=claim.task)
            self._put_partway(claim.task, partway)
            self._database.change("reopen_tasks")
            self._database.change("credit_worker", name=claim.worker, seconds=held[0])

    @patient
    def save_partway(self, claim: Claim, partway: Partway) -> None:
        """Remembers how far a training task is, and goes on with it. Raises as `hand_on`."""
        with self._database.transaction():
            if self._database.one("holds_claim", **_key(claim)) is None:
                raise ClaimLost(task=claim.task)
            self._put_partway(claim.task, partway)

    def _put_partway(self, task: Task, partway: Partway) -> None:
        self._database.change(
            "put_partway",
            arm=task.arm,
            path=task.path,
            phase=task.phase,
            **partway.receipt._asdict(),
            step=partway.step,
            batches=partway.batches,
            losses=json.dumps(partway.losses),
            seconds=partway.seconds,
        )

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

    def stage(self, stage: str, phase: int = 0) -> StageDone:
        """What a stage made; `route`, at the phase of an alternation. Raises `NotYet`."""
        row = self._database.one("get_stage", stage=stage, phase=phase)
        if row is None:
            raise NotYet(what=f"stage `{stage}`" + (f" at phase {phase}" if phase else ""))
        return _stage(stage, phase, *row)

    def stages(self) -> list[StageDone]:
        """All that are done, in the order of their work."""
        facts = (_stage(*row) for row in self._database.rows("list_stages"))
        return sorted(facts, key=lambda fact: (PRIORITY[fact.stage], fact.phase))

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

    def partway(self, arm: str, path: int, phase: int) -> Partway | None:
        """Where a path stopped inside a phase, if it did."""
        row = self._database.one("get_partway", arm=arm, path=path, phase=phase)
        if row is None:
            return None
        return Partway(Receipt(*row[:3]), row[3], row[4], tuple(json.loads(row[5])), row[6])

    def snapshot(self, arm: str, path: int, phase: int) -> Snapshot:
        """A path after `phase`. Raises `NotYet`."""
        row = self._database.one("get_trained", arm=arm, path=path, phase=phase)
        if row is None:
            raise NotYet(what=f"path {path} of `{arm}` after phase {phase}")
        return Snapshot(Receipt(*row[:3]), *row[3:])

    def labels(self, arm: str, phase: int) -> list[Receipt]:
        """What every path says of the router's documents, in path order."""
        return [Receipt(*row[1:]) for row in self._database.rows("labels", arm=arm, phase=phase)]

    def checks(self, arm: str, phase: int) -> dict[int, PathChecked]:
        """How well paths predicted what their shards hold out, by path."""
        return {
            path: PathChecked(
                arm=arm, path=path, phase=phase, loss=loss, best_phase=best, seconds=seconds
            )
            for path, loss, best, seconds in self._database.rows("checks", arm=arm, phase=phase)
        }

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

    def machines(self) -> dict[str, int]:
        """Kind of machine -> phases of paths that it trained."""
        return dict(self._database.rows("machines"))

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

    def outer_steps(self, arm: str) -> dict[ModuleId, list[OuterStep]]:
        """How every module of an arm was moved, phase by phase."""
        steps: dict[ModuleId, list[OuterStep]] = {}
        for module, phase, norm, text in self._database.rows("outer_steps", arm=arm):
            moves = None
            if text is not None:
                norms, cosine = json.loads(text)
                moves = Moves({int(path): value for path, value in norms.items()}, cosine)
            steps.setdefault(ModuleId.parse(module), []).append(OuterStep(phase, norm, moves))
        return steps

    def phases_reached(self, arm: str, num_modules: int) -> int:
        """The last phase that all modules of an arm have reached."""
        row = self._database.one("phases_reached", arm=arm, num_modules=num_modules)
        return -1 if row is None else row[0]

    def num_arrivals(self, arm: str, module: ModuleId, phase: int) -> int:
        row = self._database.one("num_arrivals", arm=arm, module=str(module), phase=phase)
        assert row is not None
        return row[0]

    def num_labelled(self, arm: str, phase: int) -> int:
        return len(self.labels(arm, phase))

    def checked(self, arm: str, phase: int) -> set[int]:
        return set(self.checks(arm, phase))

    def num_scored(self, arm: str, phase: int) -> int:
        row = self._database.one("num_scored", arm=arm, phase=phase)
        assert row is not None
        return row[0]

    def evaluated(self) -> set[tuple[str, int]]:
        return {(fact.arm, fact.phase) for fact in self.evaluations()}

    # --- facts that come a second time -----------------------------------------------------------

    def _is_known(self, task: Task, fact: Fact) -> bool:
        """Whether the fact of a task that was done again is recorded already, with the same bytes.

        Raises:
          OtherBytes: it is recorded with others.
        """
        match fact:
            case ModuleReady():
                what = {"arm": fact.arm, "module": str(fact.module), "phase": fact.phase}
                row = self._database.one("get_module", **what)
                known = None if row is None else row[1]
                new = fact.parameters.digest
            case Arrival():
                what = {"arm": fact.arm, "module": str(fact.module), "phase": fact.phase}
                row = self._database.one("get_arrival", **what, path=fact.path)
                known = None if row is None else row[0]
                new = fact.message.digest
            case PathTrained():
                what = {"arm": fact.arm, "path": fact.path, "phase": fact.phase}
                row = self._database.one("get_trained", **what)
                known = None if row is None else row[1]
                new = fact.snapshot.digest
                # The snapshot of another attempt lies in another folder.
                self._database.change("move_snapshot", **what, name=fact.snapshot.name)
            case StageDone():
                row = self._database.one("get_stage", stage=fact.stage, phase=fact.phase)
                known = None if row is None else _digests(json.loads(row[0]))
                new = _digests(fact.artifacts)
                if fact.stage == "report":
                    new = known
            case PathScored() | PathLabelled():
                query = "get_score" if isinstance(fact, PathScored) else "get_label"
                what = {"arm": fact.arm, "path": fact.path, "phase": fact.phase}
                row = self._database.one(query, **what)
                known = None if row is None else row[0]
                new = fact.scores.digest
            case PathChecked():
                what = {"arm": fact.arm, "path": fact.path, "phase": fact.phase}
                row = self._database.one("get_check", **what)
                known = new = None
            case Evaluated():
                row = self._database.one("get_evaluation", arm=fact.arm, phase=fact.phase)
                known = new = None
        if row is not None and known != new:
            raise OtherBytes(task=task, known=known, new=new)
        return row is not None

    # --- how each fact is written ----------------------------------------------------------------

    def _add_tasks(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._database.change("add_task", **task._asdict(), priority=PRIORITY[task.kind])

    def _release(self, plan: Plan, arm: str, phase: int) -> None:
        routed_at, topology = plan.arm(arm).routed_at(phase), plan.arm(arm).topology
        companions = {
            name: receipt.digest
            for stage in (self.stage("prepare"), self.stage("route", routed_at))
            for name, receipt in stage.artifacts.items()
        }
        phases = [phase] * topology.num_paths
        if plan.arm(arm).stops_early:
            checks = self.checks(arm, phase)
            phases = [checks[path].best_phase for path in range(topology.num_paths)]
        modules = {at: self.receipts_at(arm, at) for at in set(phases)}
        release = make_release(arm, phase, topology, [modules[at] for at in phases], companions)
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
                    moves=None if fact.moves is None else json.dumps(fact.moves),
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
                    position=fact.position,
                    batches=fact.batches,
                    losses=json.dumps(fact.losses),
                    tokens=fact.tokens,
                    seconds=fact.seconds,
                    bytes_down=fact.bytes_down,
                    bytes_up=fact.bytes_up,
                    machine=fact.machine,
                )
                change("drop_partway", arm=fact.arm, path=fact.path, phase=fact.phase)
            case StageDone():
                change(
                    "add_stage",
                    stage=fact.stage,
                    phase=fact.phase,
                    artifacts=json.dumps(fact.artifacts),
                    summary=json.dumps(fact.summary),
                    seconds=fact.seconds,
                )
            case PathChecked():
                change("add_check", **dataclasses.asdict(fact))
            case PathScored() | PathLabelled():
                change(
                    "add_score" if isinstance(fact, PathScored) else "add_label",
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


def _workers_of(launcher: str | None) -> str:
    return "workers" if launcher is None else f"workers {launcher}"


def _digests(artifacts: Any) -> dict[str, str]:
    return {name: receipt[1] for name, receipt in artifacts.items()}


def _training(plan: Plan, arm: str, path: int, phase: int) -> Task:
    if plan.arm(arm).is_synchronous:
        path = 0  # one task trains all paths
    return Task("pretrain" if arm == plan.base.name else "train", arm, str(path), phase)


def _maker_of_module(plan: Plan, arm: str, module: str, phase: int) -> Task:
    if phase == 0:
        return Task("route")
    if plan.arm(arm).is_averaged:
        return Task("outer", arm, module, phase - 1)
    return _training(plan, arm, 0, phase - 1)


def _counted_with(fact: Fact) -> tuple[str, ...]:
    """What the scheduler counts when a fact comes: two facts of one name must not be recorded side
    by side, or neither would see that it was the last.
    """
    match fact:
        case Arrival():
            return (f"Arrival {fact.arm} {fact.module} {fact.phase}",)
        case ModuleReady() | PathScored() | PathLabelled():
            return (f"{type(fact).__name__} {fact.arm} {fact.phase}",)
        case PathChecked():  # the next check waits for this one and for the path's modules
            return (
                f"PathChecked {fact.arm} {fact.phase}",
                f"ModuleReady {fact.arm} {fact.phase + 1}",
            )
        case _:
            return (type(fact).__name__,)


def _stage(stage: Any, phase: int, artifacts: str, summary: str, seconds: float) -> StageDone:
    return StageDone(
        stage=stage,
        phase=phase,
        artifacts={name: Receipt(*values) for name, values in json.loads(artifacts).items()},
        summary=json.loads(summary),
        seconds=seconds,
    )


@contextlib.contextmanager
def open_ledger(place: Path | str, schema: str = "") -> Generator[Ledger]:
    """A ledger, closed at the end."""
    ledger = Ledger(place, schema)
    try:
        yield ledger
    finally:
        ledger.close()


def _key(claim: Claim) -> dict[str, Any]:
    return {"task_id": claim.task_id, "attempt": claim.attempt, "worker": claim.worker}
