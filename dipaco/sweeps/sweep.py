"""A sweep at work: its runs side by side, each until it is finished or has failed, and its table.

A run is a row under one seed. A base model that several rows begin with is trained once, first.
The table holds the runs that are asked for and those finished before.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dipaco.config import RunConfig
from dipaco.evaluation.tables import ReportRow
from dipaco.files import translate_os_errors, write_atomically
from dipaco.observe.events import Event
from dipaco.overrides import row_folder
from dipaco.runs.folder_lock import is_in_use
from dipaco.runs.opening import reading
from dipaco.runs.progress import progress_of
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.folder import finished_beside, is_finished, lock_folder, move_changed, rows_of
from dipaco.sweeps.jobs import Job, JobPool
from dipaco.sweeps.plot import draw_sweep
from dipaco.sweeps.progress import SweepProgress
from dipaco.sweeps.shared_base import (
    base_digest,
    begin_row,
    begin_shared,
    corpus_digest,
    has_base_model,
)
from dipaco.sweeps.table import SweepTable, make_table
from dipaco.sweeps.text import render_sweep_markdown
from dipaco.sweeps.trials import Trial, trials_of
from dipaco.workers.signals import on_sigterm


class SweepOutcome(NamedTuple):
    """What `run_sweep` returns."""

    table: SweepTable
    is_stopped: bool  # by SIGTERM, before every run was finished or had failed
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
) -> SweepOutcome:
    """Runs the rows of a sweep under every seed, and writes its table, text and picture.

    Args:
      name: of the sweep.
      rows: row -> config.
      layout: the sweep's folder.
      seeds: every row is run under each.
      only: rows to run, none = all; the table has all that are finished.
      redo: rows that have changed and are run again; their former runs are moved to `replaced`.
      max_running: runs at once.

    Raises:
      SweepMismatch, SweepBusy, RowsChanged, NoSuchRow, RunBusy.
    """
    trials = trials_of(name, rows, seeds, [*only, *redo] if only else [])
    with lock_folder(layout, name):
        folders = {trial: layout.row(row_folder(trial.row), trial.seed) for trial in trials}
        move_changed(layout, trials, folders, redo)
        finished = finished_beside(layout, name, rows, trials)
        return _Sweep(name, layout, list(rows), folders, finished).run(max_running)


class _Sweep:
    """The runs that are asked for, by `folders`, and the `finished` ones beside them."""

    def __init__(
        self,
        name: str,
        layout: SweepLayout,
        rows: Sequence[str],
        folders: dict[Trial, Path],
        finished: dict[Trial, list[ReportRow]],
    ):
        self._name, self._layout, self._folders = name, layout, folders
        self._trials = list(folders)
        in_table = [*self._trials, *finished]
        self._in_table = sorted(in_table, key=lambda trial: rows.index(trial.row))
        self._rows = finished | {
            trial: rows_of(folder) for trial, folder in folders.items() if is_finished(folder)
        }

    def run(self, max_running: int) -> SweepOutcome:
        jobs = self._jobs()
        with SweepProgress(self._name, self._trials, self._folders, self._layout) as progress:
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
                progress.look([job.folder for job in pool.active])
                self._add_finished(progress.show)

            with on_sigterm(pool.end):
                is_over = pool.work(look)
            look()
        return SweepOutcome(self._write_table(), not is_over, pool.failed)

    def _write_table(self) -> SweepTable:
        table = make_table(self._name, self._in_table, self._rows)
        if table.rows:
            write_atomically(self._layout.table("json"), table.to_json())
            write_atomically(self._layout.table("md"), render_sweep_markdown(table).encode())
            with translate_os_errors(self._layout.plot):
                draw_sweep(table, self._layout.plot)
        return table

    def _add_finished(self, tell: Callable[[Event], None]) -> None:
        """Takes the runs that have finished since the last call into the table."""
        for trial in self._trials:
            if trial in self._rows or not is_finished(self._folders[trial]):
                continue
            self._rows[trial] = rows_of(self._folders[trial])
            table = self._write_table()
            perplexity = next(
                row.perplexity
                for row in table.runs
                if (row.name, row.seed) == (trial.row, trial.seed)
            )
            fields = {
                "row": str(trial),
                "perplexity": perplexity,
                "finished": sum(trial in self._rows for trial in self._trials),
                "total": len(self._trials),
            }
            tell(Event("row_finished", fields))

    def _jobs(self) -> list[Job]:
        """The runs that are left, each after the base model that it begins with."""
        jobs: dict[str, Job] = {}
        prepared_by: dict[str, tuple[str, Path]] = {}  # text -> title and folder of the first
        for trial in self._trials:
            folder = self._folders[trial]
            if trial in self._rows:
                continue
            digest = base_digest(trial.config)
            shared, title = self._layout.shared(digest), f"base model {digest}"
            if not Layout(folder).ledger.exists() and title not in jobs:
                text = corpus_digest(trial.config)
                before, prepared = prepared_by.setdefault(text, (title, shared))
                if not has_base_model(shared):
                    jobs[title] = Job(
                        title,
                        shared,
                        "pretrain",
                        before if before in jobs else None,
                        _begin_shared(trial, shared, None if prepared == shared else prepared),
                        lambda shared=shared: has_base_model(shared),
                    )
            jobs[str(trial)] = Job(
                str(trial),
                folder,
                "worker",
                title if title in jobs else None,
                _begin_row(trial, folder, shared),
                lambda folder=folder: is_finished(folder),
            )
        return list(jobs.values())


def _begin_shared(trial: Trial, shared: Path, prepared: Path | None) -> Callable[[], Event]:
    def begin() -> Event:
        begin_shared(shared, trial.config, prepared)
        return Event("base_begun", {"shared": shared.name, "row": str(trial)})

    return begin


def _begin_row(trial: Trial, folder: Path, shared: Path) -> Callable[[], Event]:
    def begin() -> Event:
        if not Layout(folder).ledger.exists():
            begin_row(folder, trial.config, shared)
            return Event("row_begun", {"row": str(trial), "shared": shared.name})
        with reading(folder) as run:
            run.ledger.failures.retry()
            done, total = progress_of(run)
        return Event("row_goes_on", {"row": str(trial), "done": done / max(total, 1)})

    return begin
