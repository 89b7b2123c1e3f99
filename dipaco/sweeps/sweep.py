"""A sweep at work: its runs side by side, each until it is finished or has failed, and its table.

A run is a row under one seed. A base model that several rows begin with is trained once, first, and
so is an arm that several rows have (`equal_arms.py`). The table holds the rows that are asked for
and those finished before.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dipaco.config import MODULAR, RunConfig
from dipaco.evaluation.style import why_not_drawn
from dipaco.evaluation.tables import ReportRow
from dipaco.files import write_atomically
from dipaco.observe.events import Event
from dipaco.overrides import row_folder
from dipaco.runs.folder_lock import is_in_use
from dipaco.runs.reading.report import place_in_table
from dipaco.stopping import on_sigterm
from dipaco.store.layout import SweepLayout
from dipaco.sweeps.equal_arms import Sources, SweepPlan, SweepRun, plan_runs
from dipaco.sweeps.folder import (
    beside,
    is_finished,
    lock_folder,
    move_changed,
    origin_of,
    rows_of,
    runs_in,
)
from dipaco.sweeps.jobs import JobPool
from dipaco.sweeps.jobs_left import jobs_left
from dipaco.sweeps.measured import Origin
from dipaco.sweeps.plot import draw_sweep
from dipaco.sweeps.progress import SweepProgress
from dipaco.sweeps.table import SweepTable, make_table
from dipaco.sweeps.text import render_sweep_csv, render_sweep_markdown
from dipaco.sweeps.trials import Trial, named, trials_of


class SweepOutcome(NamedTuple):
    """The result of `run_sweep`."""

    table: SweepTable
    is_stopped: bool  # SIGTERM came before every run was finished or had failed
    failed: dict[str, str]  # title of a run -> why it could not be finished


def run_sweep(
    name: str,
    rows: Mapping[str, RunConfig],
    layout: SweepLayout,
    seeds: Sequence[int],
    *,
    only: Sequence[str] = (),
    redo: Sequence[str] = (),
    max_running: int = 1,
    reference: str = "",
) -> SweepOutcome:
    """Runs the rows of a sweep under every seed, and writes its table, text and picture.

    Args:
      only: names of the rows to run (`named`), none = all. The table has all finished rows.
      redo: names of changed rows that are run again. Their former runs are moved to `replaced`.
      reference: name in the table of the row that others are compared with. Empty = the first row.

    Raises:
      SweepMismatch, SweepBusy, RowsChanged, RowRefused, NoSuchRow, RunBusy.
    """
    only, redo = named(name, rows, only), named(name, rows, redo)
    trials = trials_of(name, rows, seeds, [*only, *redo] if only else [])
    with lock_folder(layout, name):
        own = {trial: layout.row(row_folder(trial.row), trial.seed) for trial in trials}
        move_changed(layout, trials, own, redo, _runs_there(layout, name)[0])
        finished, unfinished = _runs_there(layout, name)
        begun = [run for run in unfinished if run.folder in own.values()]
        plan = plan_runs(trials, own, [*finished, *begun])
        others = beside(layout, name, rows, trials, finished)
        return _Sweep(name, layout, list(rows), plan, others, reference).run(max_running)


def _runs_there(layout: SweepLayout, name: str) -> tuple[list[SweepRun], list[SweepRun]]:
    """The finished runs of a sweep, and the unfinished ones."""
    runs = runs_in(layout, name)
    finished = [run for run in runs if is_finished(run.folder)]
    return finished, [run for run in runs if run not in finished]


class _Sweep:
    """The rows that are asked for, by `plan`, and the finished ones beside them."""

    def __init__(
        self,
        name: str,
        layout: SweepLayout,
        rows: Sequence[str],
        plan: SweepPlan,
        others: dict[Trial, Sources],
        reference: str,
    ):
        self._name, self._layout, self._plan, self._reference = name, layout, plan, reference
        self._first_row = rows[0]
        self._trials = list(plan.sources)
        self._sources = {**plan.sources, **others}
        self._in_table = sorted(self._sources, key=lambda trial: rows.index(trial.row))
        # One for all rows: a table has the same columns of links for each.
        self._report_settings = self._trials[0].config.report
        self._reports: dict[Path, list[ReportRow]] = {}  # folder of a finished run -> its report
        self._origins: dict[Path, Origin] = {}  # folder of a finished run -> its origin
        self._told: set[Trial] = set()  # finished, and in the table
        for sources in self._sources.values():
            for run in sources.values():
                self._read(run)
        self._told = {trial for trial in self._trials if self._is_finished(trial)}

    def run(self, max_running: int) -> SweepOutcome:
        with SweepProgress(self._name, self._plan.runs, self._layout) as progress:
            for sentence in (*self._plan.shared, *self._plan.untrained):
                progress.say(sentence)
            jobs = jobs_left(
                self._plan.runs, self._layout, self._is_left, self._first_row, progress.show
            )
            if not jobs:
                progress.say(f"all {len(self._trials)} runs of {self._name} are finished")
            pool = JobPool(
                jobs,
                max_running,
                is_in_use,
                progress.show,
                lambda job: job.folder / "logs" / f"{job.verb}.log",
            )

            def look() -> None:
                progress.look(pool.still_to_do)
                self._add_finished(progress.show)

            with on_sigterm(pool.end):
                is_over = pool.work(look)
            look()
        return SweepOutcome(self._write_table(), not is_over, pool.failed)

    def _read(self, run: SweepRun) -> bool:
        """True if a run is finished. Its report is kept."""
        if run.folder not in self._reports and is_finished(run.folder):
            self._reports[run.folder] = rows_of(run.folder, self._report_settings)
            self._origins[run.folder] = origin_of(run.folder)
        return run.folder in self._reports

    def _is_left(self, run: SweepRun) -> bool:
        return run.folder not in self._reports

    def _is_finished(self, trial: Trial) -> bool:
        return self._sources[trial][MODULAR].folder in self._reports

    def _results_of(self, trial: Trial) -> list[ReportRow]:
        """The rows of a trial's arms, from the runs that trained them, in the order of a report."""
        found = [
            row
            for arm, run in self._sources[trial].items()
            for row in self._reports.get(run.folder, ())
            if row.arm == arm
        ]
        return sorted(found, key=place_in_table)

    def _origins_of(self, trial: Trial) -> dict[str, Origin]:
        return {
            arm: self._origins[run.folder]
            for arm, run in self._sources[trial].items()
            if run.folder in self._origins
        }

    def _write_table(self) -> SweepTable:
        finished = [trial for trial in self._in_table if self._is_finished(trial)]
        table = make_table(
            self._name,
            self._in_table,
            {trial: self._results_of(trial) for trial in finished},
            {trial: self._origins_of(trial) for trial in finished},
            self._reference,
        )
        if table.rows:
            if problem := why_not_drawn(lambda file: draw_sweep(table, file), self._layout.plot):
                table.notes.append(problem)
            write_atomically(self._layout.table("json"), table.to_json())
            write_atomically(self._layout.table("csv"), render_sweep_csv(table).encode())
            write_atomically(self._layout.table("md"), render_sweep_markdown(table).encode())
        return table

    def _add_finished(self, tell: Callable[[Event], None]) -> None:
        """Takes the runs that have finished since the last call into the table."""
        for run in self._plan.runs:
            self._read(run)
        new = [t for t in self._trials if t not in self._told and self._is_finished(t)]
        for trial in new:
            self._told.add(trial)
            perplexity = next(r.perplexity for r in self._results_of(trial) if r.name == MODULAR)
            fields = {
                "row": str(trial),
                "perplexity": perplexity,
                "finished": len(self._told),
                "total": len(self._trials),
            }
            tell(Event("row_finished", fields))
        if new:
            self._write_table()
