"""The ledger: records the facts of a finished task together with the tasks that follow, in one
transaction, and tells them again.

Record a fact only when its bytes are durable: a row without bytes cannot be repaired, bytes without
a row are swept later.
"""

import contextlib
import json
import uuid
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from dipaco.control.database import KeyTaken
from dipaco.control.errors import NoSuchRelease, NotAvailable
from dipaco.control.facts import (
    counted_with,
    is_known,
    record,
    row_of_arrival,
    row_of_trained,
    stage_done,
)
from dipaco.control.members import Members
from dipaco.control.opening import open_database
from dipaco.control.plan import Plan
from dipaco.control.queue import Queue
from dipaco.control.quorums import Quorums
from dipaco.control.redos import Redos
from dipaco.control.release import Release, make_release
from dipaco.control.retry import retried, with_retry
from dipaco.control.rollback import Rollbacks
from dipaco.control.scheduler import due, first_task, gathering, quorums
from dipaco.control.swarms import Swarms
from dipaco.control.tasks import (
    PRIORITY,
    Claim,
    Contribution,
    Evaluated,
    Fact,
    ModuleReady,
    Moves,
    PathChecked,
    PathTrained,
    StageDone,
    Task,
)
from dipaco.errors import ClaimLost
from dipaco.receipt import Receipt
from dipaco.topology import ModuleId


class RunCommand(NamedTuple):
    """To everybody who works on a run."""

    order: str  # run, pause, drain
    version: str | None  # of the program


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


class PartialSnapshot(NamedTuple):
    """A path that stopped inside a phase, and what it has of that phase."""

    receipt: Receipt  # snapshot of parameters and inner state
    step: int  # inner steps taken in all
    batches: str
    losses: tuple[float, ...]  # of the steps of this phase
    seconds: float


class DesiredWorkers(NamedTuple):
    """How many workers somebody wants a launcher to keep."""

    workers: int
    identity: str


class Ledger:
    """The memory of one run.

    Args:
      place: a file, or the URL of a database server.
      schema: the run's own name there.
      is_older_fine: its tables may be of an older version of this program; see `upgrade`.
    """

    def __init__(self, place: Path | str, schema: str = "", *, is_older_fine: bool = False):
        self._database = open_database(place, schema, is_older_fine=is_older_fine)
        self.queue = Queue(self._database)
        self.members = Members(self._database)
        self.swarms = Swarms(self._database)
        self.redos = Redos(self._database, self.queue)
        self.rollbacks = Rollbacks(self._database)
        self.quorums = Quorums(self._database)

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

    @retried
    def order(self, order: str) -> None:
        """What everybody who works on this run should do from now on: `run`, `pause`, `drain`."""
        with self._database.transaction():
            self._database.change("change_meta", key="order", value=order)

    @retried
    def want_workers(self, count: int, launcher: str | None = None) -> None:
        """How many workers one launcher, or each of all, should keep from now on."""
        wish = f"{count} {uuid.uuid4().hex}"  # the same number again is another wish
        with self._database.transaction():
            self._database.change("change_meta", key=_workers_of(launcher), value=wish)

    def wishes(self, launcher: str) -> list[DesiredWorkers]:
        """What was wanted last of all launchers and, after it, of this one."""
        texts = [self.meta(_workers_of(None)), self.meta(_workers_of(launcher))]
        return [DesiredWorkers(int(text.split()[0]), text) for text in texts if text is not None]

    @retried
    def orders(self) -> RunCommand:
        """What everybody should do, and which version of this program they should be."""
        found = dict(self._database.rows("orders"))
        return RunCommand(found.get("order", "run"), found.get("version"))

    @retried
    def upgrade(self, version: str) -> tuple[int, int]:
        """Brings the tables to this program's, and says that from now on the run is of `version`;
        the versions of the tables, before and now.
        """
        before, now = self._database.upgrade()
        with self._database.transaction():
            self._database.change("change_meta", key="version", value=version)
            self._database.change("change_meta", key="order", value="run")
        return before, now

    @contextlib.contextmanager
    def at_one_moment(self) -> Generator[None]:
        """What is read inside is of one moment, whatever others write meanwhile."""
        with self._database.snapshot():
            yield

    # --- tasks ---------------------------------------------------------------------------------

    def finish(self, plan: Plan, claim: Claim, facts: Iterable[Fact]) -> list[Task]:
        """Records the facts of a finished task, and makes due what they make due. All or nothing.

        Returns:
          What is due now, outer steps aside: the database alone knows whether they are.

        Raises:
          ClaimLost: somebody else holds the task by now, or has finished it. Nothing was recorded.
        """
        facts, has_tried = list(facts), False

        def record() -> list[Task]:
            nonlocal has_tried
            if has_tried and self.queue.is_finished_by(claim):
                return []  # the connection broke during the commit, which went through
            has_tried = True
            if self._database.is_remote and self._finish_training(plan, claim, facts):
                return []
            return self._finish(plan, claim, facts)

        return with_retry(record, self._database.reconnect)

    def _finish_training(self, plan: Plan, claim: Claim, facts: list[Fact]) -> bool:
        """In one statement, as it happens most often. False where these are other facts, or come a
        second time: nothing was changed.
        """
        for fact in facts:
            if not isinstance(fact, PathTrained | Contribution) or plan.arm(fact.arm).has_quorum:
                return False
        outer = [
            {**task._asdict(), "priority": PRIORITY[task.kind], "awaited": awaited}
            for task, awaited in gathering(plan, facts)
        ]
        trained = [row_of_trained(fact) for fact in facts if isinstance(fact, PathTrained)]
        arrivals = [row_of_arrival(fact) for fact in facts if isinstance(fact, Contribution)]
        try:
            ((done,),) = self._database.once(
                "finish_training",
                task_id=claim.task_id,
                attempt=claim.attempt,
                worker=claim.worker,
                trained=json.dumps(trained),
                arrivals=json.dumps(arrivals),
                lock_keys=self._database.lock_keys(*_counted_with_any(plan, facts)),
                outer=json.dumps(outer),
            )
            self._database.flush()
        except KeyTaken as error:
            raise ClaimLost(task=claim.task) from error
        return done == "done"

    def _finish(self, plan: Plan, claim: Claim, facts: list[Fact]) -> list[Task]:
        database = self._database
        try:
            with database.transaction():
                seconds, redone = self.queue.end_finished(claim)
                for fact in facts:
                    if not (redone and is_known(database, claim.task, fact)):
                        record(database, fact)
                if redone:  # whoever waited looks again; what is still missing is found again
                    database.change("wake_tasks")
                database.wait_for_others(*_counted_with_any(plan, facts))
                for task, awaited in gathering(plan, facts):
                    self._add_task("add_outer_task", task, awaited=awaited)
                for quorum in quorums(plan, facts):
                    self.quorums.look_at(quorum)
                tasks = due(plan, facts, self)
                scored = [(t.arm, t.phase) for t in tasks if t.kind == "score"]
                for arm, phase in dict.fromkeys(scored):
                    self._release(plan, arm, phase)
                self._add_tasks(tasks)
                database.change("credit_worker", name=claim.worker, seconds=seconds)
        except KeyTaken as error:
            raise ClaimLost(task=claim.task) from error
        return tasks

    @retried
    def release_with_snapshot(self, claim: Claim, partial_snapshot: PartialSnapshot) -> None:
        """Gives a training task back part-way: whoever takes it goes on from there.

        Raises:
          ClaimLost: somebody else holds the task by now. Nothing was recorded.
        """
        with self._database.transaction():
            held = self._database.one("drop_claim", **_key(claim))
            if held is None:
                raise ClaimLost(task=claim.task)
            self._put_partial_snapshot(claim.task, partial_snapshot)
            self._database.change("reopen_tasks")
            self._database.change("credit_worker", name=claim.worker, seconds=held[0])

    @retried
    def save_partial_snapshot(self, claim: Claim, partial_snapshot: PartialSnapshot) -> None:
        """Remembers how far a training task is, and goes on with it. Raises as `release_with_snapshot`."""
        with self._database.transaction():
            if self._database.one("holds_claim", **_key(claim)) is None:
                raise ClaimLost(task=claim.task)
            self._put_partial_snapshot(claim.task, partial_snapshot)

    def _put_partial_snapshot(self, task: Task, partial_snapshot: PartialSnapshot) -> None:
        self._database.change(
            "put_partway",
            arm=task.arm,
            path=task.path,
            phase=task.phase,
            **partial_snapshot.receipt._asdict(),
            step=partial_snapshot.step,
            batches=partial_snapshot.batches,
            losses=json.dumps(partial_snapshot.losses),
            seconds=partial_snapshot.seconds,
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
        """What a stage made; `route`, at the phase of an alternation. Raises `NotAvailable`."""
        row = self._database.one("get_stage", stage=stage, phase=phase)
        if row is None:
            raise NotAvailable(what=f"stage `{stage}`" + (f" at phase {phase}" if phase else ""))
        return stage_done(stage, phase, *row)

    def stages(self) -> list[StageDone]:
        """All that are done, in the order of their work."""
        facts = (stage_done(*row) for row in self._database.rows("list_stages"))
        return sorted(facts, key=lambda fact: (PRIORITY[fact.stage], fact.phase))

    def module(self, arm: str, module: ModuleId, phase: int) -> StoredModule:
        """Raises `NotAvailable`."""
        row = self._database.one("get_module", arm=arm, module=str(module), phase=phase)
        if row is None:
            raise NotAvailable(what=f"module {module} of `{arm}` at phase {phase}")
        return StoredModule(Receipt(*row[:3]), Receipt(*row[3:6]) if row[3] else None)

    def arrivals(self, arm: str, module: ModuleId, phase: int) -> list[Contribution]:
        """Contributions to a module in a phase, in path order."""
        rows = self._database.rows("arrivals", arm=arm, module=str(module), phase=phase)
        return [
            Contribution(
                arm=arm,
                module=module,
                phase=phase,
                path=path,
                base_digest=base_digest,
                message=Receipt(*receipt),
            )
            for path, base_digest, *receipt in rows
        ]

    def partial_snapshot(self, arm: str, path: int, phase: int) -> PartialSnapshot | None:
        """Where a path stopped inside a phase, if it did."""
        row = self._database.one("get_partway", arm=arm, path=path, phase=phase)
        if row is None:
            return None
        return PartialSnapshot(Receipt(*row[:3]), row[3], row[4], tuple(json.loads(row[5])), row[6])

    def snapshot(self, arm: str, path: int, phase: int) -> Snapshot:
        """A path after `phase`. Raises `NotAvailable`."""
        row = self._database.one("get_trained", arm=arm, path=path, phase=phase)
        if row is None:
            raise NotAvailable(what=f"path {path} of `{arm}` after phase {phase}")
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
        """The release of a phase, or the newest. Raises `NotAvailable`, `NoSuchRelease`."""
        phases = sorted(at for name, at in self.releases() if name == arm)
        if not phases:
            raise NotAvailable(what=f"release of `{arm}`")
        if phase is not None and phase not in phases:
            raise NoSuchRelease(arm=arm, phase=phase, known=", ".join(map(str, phases)))
        row = self._database.one(
            "get_release", arm=arm, phase=phases[-1] if phase is None else phase
        )
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

    def steps_partway(self, arm: str) -> int:
        """Inner steps that are saved, of phases that nobody has finished."""
        rows = self._database.rows("partway_losses", arm=arm)
        return sum(len(json.loads(losses)) for (losses,) in rows)

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

    def superseded_messages(
        self, arm: str, module: ModuleId, newest: int, keep: int, *, has_quorum: bool = False
    ) -> list[str]:
        """Names of the contributions that a module at phase `newest` leaves behind, where those of
        `keep` phases are kept, the one that is being gathered included; of as many steps, where a
        contribution may have been late.
        """
        of = {"arm": arm, "module": str(module), "newest": newest, "keep": keep}
        query = "superseded_taken" if has_quorum else "superseded_arrivals"
        return [name for (name,) in self._database.rows(query, **of)]

    def superseded_snapshots(self, arm: str, path: int, newest: int, keep: int) -> list[str]:
        """Names of the snapshots that a path's snapshot after phase `newest` leaves behind, where
        `keep` are kept.
        """
        of = {"arm": arm, "path": path, "newest": newest, "keep": keep}
        return [name for (name,) in self._database.rows("superseded_snapshots", **of)]

    def superseded_modules(self, arm: str, module: ModuleId, phase: int) -> list[str]:
        """Names of a module's parameters and outer state at a phase, where no other fact has
        them.
        """
        of = {"arm": arm, "module": str(module), "phase": phase}
        return [name for (name,) in self._database.rows("superseded_modules", **of)]

    def live_names(self, *, snapshots: int, contributions: int) -> set[str]:
        """Names of the newest snapshots of every path and of the newest phases of contributions,
        so many of each, and of what stopped part-way.
        """
        keep = {"snapshots": snapshots, "contributions": contributions}
        return {name for (name,) in self._database.rows("live_names", **keep)}

    def bytes_by_kind(self) -> dict[str, int]:
        """What was exchanged and what was written, over the whole run."""
        return dict(self._database.rows("bytes_by_kind"))

    def tokens_by_arm(self) -> dict[str, int]:
        """Tokens that were trained on and recorded."""
        return dict(self._database.rows("tokens_by_arm"))

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

    def num_arrived(self, arm: str, module: ModuleId, phase: int) -> int:
        return len(self.arrivals(arm, module, phase))

    def trained(self, arm: str, phase: int) -> set[int]:
        """The paths that went through a phase."""
        rows = self._database.rows("trained_in", arm=arm, phase=phase)
        return {path for (path,) in rows}

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

    # --- what follows from facts -----------------------------------------------------------------

    def _add_tasks(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._add_task("add_task", task)

    def _add_task(self, query: str, task: Task, **values: Any) -> None:
        self._database.change(query, **task._asdict(), priority=PRIORITY[task.kind], **values)

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


def _workers_of(launcher: str | None) -> str:
    return "workers" if launcher is None else f"workers {launcher}"


def _counted_with_any(plan: Plan, facts: list[Fact]) -> list[str]:
    return [
        subject
        for fact in facts
        for subject in counted_with(fact, has_quorum=_has_quorum(plan, fact))
    ]


def _has_quorum(plan: Plan, fact: Fact) -> bool:
    return (
        isinstance(fact, Contribution | ModuleReady | PathTrained) and plan.arm(fact.arm).has_quorum
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
