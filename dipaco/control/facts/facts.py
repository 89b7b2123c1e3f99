"""Reading the facts of a run: the results of each task, and the frontier that the scheduler
reads.
"""

import json
from typing import NamedTuple

from dipaco.control.database.contract import Database
from dipaco.control.errors import NoSuchRelease, NotAvailable
from dipaco.control.facts.recording import sampled_facts, slice_done, stage_done
from dipaco.control.planning.release import Release
from dipaco.control.planning.tasks import (
    PRIORITY,
    Contribution,
    Evaluated,
    GradientStats,
    PathChecked,
    Sampled,
    SliceDone,
    StageDone,
)
from dipaco.receipt import Receipt
from dipaco.topology import ModuleId


class Snapshot(NamedTuple):
    """A path's snapshot, and how far it has come."""

    receipt: Receipt
    step: int  # Counted in the arm's schedule.
    position: int  # Counted in the data of `batches`.
    batches: str


class StoredModule(NamedTuple):
    """The objects of a module at a phase."""

    parameters: Receipt
    outer_state: Receipt | None


class OuterStep(NamedTuple):
    """The outer step that made a module as it is at the start of a phase."""

    phase: int
    gradient_norm: float | None  # Norm of the mean outer gradient. None = nothing was averaged.
    gradient_stats: GradientStats | None


class PartialSnapshot(NamedTuple):
    """A path that stopped inside a phase: its snapshot, and how far it is."""

    receipt: Receipt  # snapshot of parameters and inner state
    step: int  # inner steps taken in all
    batches: str
    losses: tuple[float, ...]  # Losses of this phase's steps.
    seconds: float
    norms: tuple[float, ...] = ()  # Gradient norms of those steps, as far as they are known.


class Facts:
    """The recorded facts of one run, which are a `Frontier` of the scheduler."""

    def __init__(self, database: Database):
        self._database = database

    def stage(self, stage: str, phase: int = 0) -> StageDone:
        """The result of a stage. `route` has one at the phase of each alternation too.

        Raises `NotAvailable`.
        """
        row = self._database.one("get_stage", stage=stage, phase=phase)
        if row is None:
            raise NotAvailable(what=f"stage `{stage}`" + (f" at phase {phase}" if phase else ""))
        return stage_done(stage, phase, *row)

    def stages(self) -> list[StageDone]:
        """All that are done, in the order of their work."""
        facts = (stage_done(*row) for row in self._database.rows("list_stages"))
        return sorted(facts, key=lambda fact: (PRIORITY[fact.stage], fact.phase))

    def routings(self) -> list[StageDone]:
        """Those that routed documents, the first one first."""
        return [stage for stage in self.stages() if stage.stage == "route"]

    def slices(self, stage: str, step: str = "") -> list[SliceDone]:
        """Results of a stage's slices that are done, of one step or of all, in order."""
        rows = self._database.rows("list_slices", names=f"{stage} {step + ' ' if step else ''}%")
        return sorted((slice_done(*row) for row in rows), key=lambda fact: (fact.step, fact.slice))

    def module(self, arm: str, module: ModuleId, phase: int) -> StoredModule:
        """Raises `NotAvailable`."""
        row = self._database.one("get_module", arm=arm, module=str(module), phase=phase)
        if row is None:
            raise NotAvailable(what=f"module {module} of `{arm}` at phase {phase}")
        return StoredModule(Receipt(*row[:3]), Receipt(*row[3:6]) if row[3] else None)

    def has_module(self, arm: str, module: ModuleId, phase: int) -> bool:
        """True if a module has reached a phase."""
        row = self._database.one("get_module", arm=arm, module=str(module), phase=phase)
        return row is not None

    def receipts_at(self, arm: str, phase: int) -> dict[ModuleId, Receipt]:
        """Parameters of all modules of an arm at the start of a phase."""
        rows = self._database.rows("modules_at", arm=arm, phase=phase)
        return {ModuleId.parse(module): Receipt(*receipt) for module, *receipt in rows}

    def outer_steps(self, arm: str) -> dict[ModuleId, list[OuterStep]]:
        """The outer steps of every module of an arm, phase by phase."""
        steps: dict[ModuleId, list[OuterStep]] = {}
        for module, phase, norm, text in self._database.rows("outer_steps", arm=arm):
            gradient_stats = None
            if text is not None:
                norms, cosine = json.loads(text)
                gradient_stats = GradientStats(
                    {int(path): value for path, value in norms.items()}, cosine
                )
            steps.setdefault(ModuleId.parse(module), []).append(
                OuterStep(phase, norm, gradient_stats)
            )
        return steps

    def contributions(self, arm: str, module: ModuleId, phase: int) -> list[Contribution]:
        """Contributions to a module in a phase, in path order."""
        rows = self._database.rows("contributions", arm=arm, module=str(module), phase=phase)
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
        """The state of a path that stopped inside a phase. None if it did not."""
        return next(iter(self.partial_snapshots(arm, path, phase)), None)

    def partial_snapshots(self, arm: str, path: int, phase: int) -> list[PartialSnapshot]:
        """All that are kept of a path inside a phase, the newest first."""
        return [
            PartialSnapshot(
                Receipt(*row[:3]),
                *row[3:5],
                tuple(json.loads(row[5])),
                row[6],
                tuple(json.loads(row[7])),
            )
            for row in self._database.rows("get_partial_snapshots", arm=arm, path=path, phase=phase)
        ]

    def snapshot(self, arm: str, path: int, phase: int) -> Snapshot:
        """A path after `phase`. Raises `NotAvailable`."""
        row = self._database.one("get_trained", arm=arm, path=path, phase=phase)
        if row is None:
            raise NotAvailable(what=f"path {path} of `{arm}` after phase {phase}")
        return Snapshot(Receipt(*row[:3]), *row[3:])

    def labels(self, arm: str, phase: int) -> list[Receipt]:
        """Log-likelihoods of the router's documents under every path, in path order."""
        rows = self._database.rows("likelihoods labels", arm=arm, phase=phase)
        return [Receipt(*row) for row in rows]

    def checks(self, arm: str, phase: int) -> dict[int, PathChecked]:
        """Losses on what the shards hold out, by path."""
        return {
            path: PathChecked(
                arm=arm, path=path, phase=phase, loss=loss, best_phase=best, seconds=seconds
            )
            for path, loss, best, seconds in self._database.rows("checks", arm=arm, phase=phase)
        }

    def scores(self, arm: str, phase: int) -> list[Receipt]:
        """Scores of every path of a release, in path order."""
        rows = self._database.rows("likelihoods scores", arm=arm, phase=phase)
        return [Receipt(*row) for row in rows]

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
        return Release.from_json(row[0])

    def releases(self) -> list[tuple[str, int]]:
        return self._database.rows("list_releases")

    def evaluations(self) -> list[Evaluated]:
        names = (
            *("arm", "phase", "perplexity", "best_path_perplexity", "other_rows"),
            *("tune_rows", "documents", "tokens", "seconds"),
        )
        evaluations = []
        for row in self._database.rows("list_evaluations"):
            fields = dict(zip(names, row, strict=True))
            for name in ("other_rows", "tune_rows"):
                fields[name] = json.loads(fields[name])
            evaluations.append(Evaluated(**fields))
        return evaluations

    def samples(self, arm: str | None = None) -> list[Sampled]:
        """Continuations of the run's prompts by the releases of an arm, or of all; phases
        ascending.
        """
        return sampled_facts(self._database.rows("list_samples", arm=arm))

    def newest_samples(self, arm: str) -> Sampled | None:
        """Continuations by the newest release of an arm that was sampled. None = none so far."""
        return next(iter(sampled_facts(self._database.rows("newest_samples", arm=arm))), None)

    # The frontier, as the scheduler asks for it.

    def modules_at(self, arm: str, phase: int) -> set[ModuleId]:
        return set(self.receipts_at(arm, phase))

    def num_contributions(self, arm: str, module: ModuleId, phase: int) -> int:
        return len(self.contributions(arm, module, phase))

    def trained(self, arm: str, phase: int) -> set[int]:
        """The paths that went through a phase."""
        rows = self._database.rows("trained_in", arm=arm, phase=phase)
        return {path for (path,) in rows}

    def num_labelled(self, arm: str, phase: int) -> int:
        return len(self.labels(arm, phase))

    def num_slices(self, stage: str, step: str) -> int:
        row = self._database.one("num_slices", names=f"{stage} {step} %")
        assert row is not None
        return row[0]

    def checked(self, arm: str, phase: int) -> set[int]:
        return set(self.checks(arm, phase))

    def num_scored(self, arm: str, phase: int) -> int:
        row = self._database.one("num_scored", arm=arm, phase=phase)
        assert row is not None
        return row[0]

    def evaluated(self) -> set[tuple[str, int]]:
        return {(fact.arm, fact.phase) for fact in self.evaluations()}
