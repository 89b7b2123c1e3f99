"""A sweep at work: its runs side by side, each until it is finished or has failed, and its table.

A run is a row under one seed. A base model that several rows begin with is trained once, first. The
table holds the rows that are asked for and those finished before.
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
from dipaco.stopping import on_sigterm
from dipaco.store.layout import SweepLayout
from dipaco.sweeps.folder import (
    beside,
    is_finished,
    lock_folder,
    move_changed,
    origin_of,
    rows_of,
)
from dipaco.sweeps.jobs import JobPool
from dipaco.sweeps.jobs_left import jobs_left
from dipaco.sweeps.measured import Origin
from dipaco.sweeps.plot import draw_sweep
from dipaco.sweeps.progress import SweepProgress
from dipaco.sweeps.table import SweepTable, make_table
from dipaco.sweeps.text import render_sweep_csv, render_sweep_markdown
from dipaco.sweeps.trials import SweepRun, Trial, named, trials_of


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
        move_changed(layout, trials, own, redo)
        others = beside(layout, name, rows, trials)
        return _Sweep(name, layout, list(rows), own, others, reference).run(max_running)


class _Sweep:
    """The rows that are asked for, and the finished ones beside them."""

    def __init__(
        self,
        name: str,
        layout: SweepLayout,
        rows: Sequence[str],
        asked: dict[Trial, Path],  # -> folder of its run
        others: dict[Trial, Path],
        reference: str,
    ):
        self._name, self._layout, self._reference = name, layout, reference
        self._first_row = rows[0]
        self._trials = list(asked)
        self._runs = [SweepRun(str(trial), folder, trial.config) for trial, folder in asked.items()]
        self._folders = asked | others
        self._in_table = sorted(self._folders, key=lambda trial: rows.index(trial.row))
        # One for all rows: a table has the same columns of links for each.
        self._report_settings = self._trials[0].config.report
        self._reports: dict[Trial, list[ReportRow]] = {}  # of finished runs
        self._origins: dict[Trial, Origin] = {}  # likewise
        for trial in self._folders:
            self._read(trial)

    def run(self, max_running: int) -> SweepOutcome:
        with SweepProgress(self._name, self._runs, self._layout) as progress:
            done = {self._folders[trial] for trial in self._reports}
            left = [run for run in self._runs if run.folder not in done]
            jobs = jobs_left(left, self._layout, self._first_row, progress.show)
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

    def _read(self, trial: Trial) -> bool:
        """True if the run of a trial is finished. Its report is kept."""
        folder = self._folders[trial]
        if trial not in self._reports and is_finished(folder):
            self._reports[trial] = rows_of(folder, self._report_settings)
            self._origins[trial] = origin_of(folder)
        return trial in self._reports

    def _write_table(self) -> SweepTable:
        table = make_table(
            self._name, self._in_table, self._reports, self._origins, self._reference
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
        before = set(self._reports)
        new = [t for t in self._trials if t not in before and self._read(t)]
        for number, trial in enumerate(new, 1 + sum(t in before for t in self._trials)):
            perplexity = next(r.perplexity for r in self._reports[trial] if r.name == MODULAR)
            fields = {
                "row": str(trial),
                "perplexity": perplexity,
                "finished": number,
                "total": len(self._trials),
            }
            tell(Event("row_finished", fields))
        if new:
            self._write_table()
