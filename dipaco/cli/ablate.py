"""Run a sweep: named rows under several seeds, as runs of their own, and one table of them all.

  dipaco ablate configs/ablations/sharing.py --run runs/sharing
  dipaco ablate configs/ablations/sharing.py --run runs/sharing --seeds 0,1,2 --jobs 2
  dipaco ablate SWEEP --run DIR --only 2x2 diloco         runs these; the table has all
  dipaco ablate SWEEP --run DIR --redo 2x2                a row whose settings have changed, anew

A sweep is a file with a function `sweep() -> dict[str, RunConfig]`. Rows that agree on it share
text, tokens and base model, which is made once. Interrupted at any point (Ctrl-C, kill -9, power),
the same command goes on from there; what is finished is never run again, and a new row or seed runs
alone. Writes table.md, table.json and plot.png whenever a run is finished.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.errors import NotForSweeps, RowsFailed, SweepNeedsFolder
from dipaco.cli.options import add_run, add_set
from dipaco.errors import BadSetting
from dipaco.sweeps.folder import (
    alone_at,
    finished_beside,
    is_finished,
    put_changed_aside,
    rows_of,
)
from dipaco.workers.signals import on_sigterm

if TYPE_CHECKING:
    from dipaco.evaluation.tables import ReportRow
    from dipaco.observe.events import Event
    from dipaco.store.layout import SweepLayout
    from dipaco.sweeps.jobs import Job
    from dipaco.sweeps.table import SweepTable, Trial

HELP = "run a sweep of configs, and compare its rows"
SAID_OTHERWISE = {  # what cannot be `--set`
    "seed": "`--seeds` says under which its rows are run",
    "name": "its file names the rows",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sweep", type=Path, metavar="SWEEP", help="a file with a function `sweep()`"
    )
    add_run(parser)
    parser.add_argument(
        "--seeds", default="0", metavar="N,N,...", help="run every row under each (default: 0)"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these rows")
    parser.add_argument(
        "--redo",
        nargs="+",
        default=[],
        metavar="NAME",
        help="rows that have changed, to be run anew; what was there is kept under `replaced`",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at once (default: 1)"
    )
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.overrides import load_sweep, row_folder
    from dipaco.store.layout import SweepLayout
    from dipaco.sweeps.table import seeds_of, trials_of

    # Everything that a person may have got wrong, before anything is written.
    name, seeds = options.sweep.stem, seeds_of(options.seeds)
    for text in options.overrides:
        setting = text.partition("=")[0].strip()
        if setting in SAID_OTHERWISE:
            raise NotForSweeps(name=setting, instead=SAID_OTHERWISE[setting])
    rows = load_sweep(options.sweep, options.overrides)
    trials_of(name, rows, seeds, options.redo)
    trials = trials_of(name, rows, seeds, [*options.only, *options.redo] if options.only else [])
    if options.jobs < 1:
        raise BadSetting(name="--jobs", value=options.jobs, expected="1 or more")
    if options.run.url is not None:
        raise SweepNeedsFolder(given=options.run)
    layout = SweepLayout(options.run.folder)
    with alone_at(layout, name):
        folders = {trial: layout.row(row_folder(trial.row), trial.seed) for trial in trials}
        put_changed_aside(layout, trials, folders, options.redo)
        beside = finished_beside(layout, name, rows, trials)
        _Sweep(name, layout, list(rows), trials, folders, beside).work(options.jobs)
    return 0


class _Sweep:
    """The runs of a sweep that are asked for, and in its table also those finished before."""

    def __init__(
        self,
        name: str,
        layout: "SweepLayout",
        rows: Sequence[str],
        trials: Sequence["Trial"],
        folders: dict["Trial", Path],
        beside: "dict[Trial, list[ReportRow]]",
    ):
        self._name, self._layout, self._trials, self._folders = name, layout, trials, folders
        self._beside = beside
        self._in_table = sorted([*trials, *beside], key=lambda trial: rows.index(trial.row))
        self._rows = {
            trial: rows_of(folders[trial]) for trial in trials if is_finished(folders[trial])
        }

    def work(self, at_once: int) -> None:
        """Until every run is finished or has failed.

        Raises:
          RowsFailed: some have.
        """
        from dipaco.runs.run import is_worked_on
        from dipaco.sweeps.jobs import JobPool
        from dipaco.sweeps.progress import SweepProgress

        jobs = self._jobs()
        with SweepProgress(self._name, self._trials, self._folders, self._layout) as progress:
            if not jobs:
                progress.say(f"all {len(self._trials)} runs of {self._name} are finished")
            crew = JobPool(
                jobs,
                at_once,
                is_worked_on,
                progress.tell,
                lambda job: job.folder / "logs" / f"{job.verb}.log",
            )

            def look() -> None:
                progress.look([job.folder for job in crew.active])
                self._tell_finished(progress.tell)

            with on_sigterm(crew.end):
                is_over = crew.work(look)
            look()
        table = self.write_table()
        _print(table, self._layout)
        if not is_over:
            print("Stopped in order. The same command goes on from here.", flush=True)
        if crew.failed:
            problems = " ".join(f"{title}: {words}" for title, words in crew.failed.items())
            raise RowsFailed(count=len(crew.failed), problems=problems)

    def write_table(self) -> "SweepTable":
        """Of what is finished."""
        from dipaco.files import translate_os_errors, write_atomically
        from dipaco.sweeps.plot import draw_sweep
        from dipaco.sweeps.table import make_table
        from dipaco.sweeps.text import render_sweep_markdown

        table = make_table(self._name, self._in_table, self._beside | self._rows)
        if table.rows:
            write_atomically(self._layout.table("json"), table.to_json())
            write_atomically(self._layout.table("md"), render_sweep_markdown(table).encode())
            with translate_os_errors(self._layout.plot):
                draw_sweep(table, self._layout.plot)
        return table

    def _tell_finished(self, tell: Callable[["Event"], None]) -> None:
        """Looks for runs that have been finished since, and takes them into the table."""
        from dipaco.observe.events import Event

        for trial in self._trials:
            if trial in self._rows or not is_finished(self._folders[trial]):
                continue
            self._rows[trial] = rows_of(self._folders[trial])
            table = self.write_table()
            perplexity = next(
                row.perplexity
                for row in table.runs
                if (row.name, row.seed) == (trial.row, trial.seed)
            )
            fields = {
                "row": str(trial),
                "perplexity": perplexity,
                "finished": len(self._rows),
                "total": len(self._trials),
            }
            tell(Event("row_finished", fields))

    def _jobs(self) -> list["Job"]:
        """What is left to do: rows, and before them the base models that they begin with."""
        from dipaco.store.layout import Layout
        from dipaco.sweeps.jobs import Job
        from dipaco.sweeps.shared_base import base_digest, corpus_digest, has_base_model

        jobs: dict[str, Job] = {}
        prepares: dict[str, tuple[str, Path]] = {}  # text -> who prepares it first
        for trial in self._trials:
            folder = self._folders[trial]
            if trial in self._rows:
                continue
            digest = base_digest(trial.config)
            shared, title = self._layout.shared(digest), f"base model {digest}"
            if not Layout(folder).ledger.exists() and title not in jobs:
                text = corpus_digest(trial.config)
                before, prepared = prepares.setdefault(text, (title, shared))
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


def _begin_shared(trial: "Trial", shared: Path, prepared: Path | None) -> Callable[[], "Event"]:
    def begin() -> "Event":
        from dipaco.observe.events import Event
        from dipaco.sweeps.shared_base import begin_shared

        begin_shared(shared, trial.config, prepared)
        return Event("base_begun", {"shared": shared.name, "row": str(trial)})

    return begin


def _begin_row(trial: "Trial", folder: Path, shared: Path) -> Callable[[], "Event"]:
    def begin() -> "Event":
        from dipaco.observe.events import Event
        from dipaco.runs.run import reading
        from dipaco.store.layout import Layout
        from dipaco.sweeps.shared_base import begin_row
        from dipaco.workers.loop import progress_of

        if not Layout(folder).ledger.exists():
            begin_row(folder, trial.config, shared)
            return Event("row_begun", {"row": str(trial), "shared": shared.name})
        with reading(folder) as run:
            done, total = progress_of(run)
        return Event("row_goes_on", {"row": str(trial), "done": done / max(total, 1)})

    return begin


def _print(table: "SweepTable", layout: "SweepLayout") -> None:
    from dipaco.sweeps.text import render_sweep_text

    if table.rows:
        print(f"\n{render_sweep_text(table)}\n")
        for note in table.notes:
            print(f"- {note}")
    if table.missing:
        print(f"Not finished: {'; '.join(table.missing)}.")
    if table.rows:
        print(f"\nWritten: {layout.table('md')}, {layout.table('json')}, {layout.plot}")
    sys.stdout.flush()
