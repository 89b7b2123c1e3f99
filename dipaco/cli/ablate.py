"""Run a sweep: named rows under several seeds, each a separate run, and one table of all runs.

  dipaco ablate configs/ablations/sharing.py --run runs/sharing
  dipaco ablate configs/ablations/sharing.py --run runs/sharing --seeds 0,1,2 --jobs 2
  dipaco ablate SWEEP --run DIR --only 2x2 diloco         runs these, and the table has all
  dipaco ablate SWEEP --run DIR --redo 2x2                runs a row again whose settings changed

A sweep is a file with a function `sweep() -> dict[str, RunConfig]`. Text, tokens and base model are
made once for all rows that agree on them. Interrupted at any point (Ctrl-C, kill -9, power loss),
the same command continues. Finished runs are never run again, and a new row or seed runs alone.
Writes table.md, .json, .csv and plot.png whenever a run is finished.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dipaco.cli.errors import NotForSweeps, RowsFailed, SweepNeedsFolder
from dipaco.cli.options import add_run, add_set
from dipaco.errors import BadSetting

if TYPE_CHECKING:
    from dipaco.store.layout import SweepLayout
    from dipaco.sweeps.table import SweepTable

HELP = "run a sweep of configs, and compare its rows"
NOT_FOR_SET = {
    "seed": "`--seeds` says under which its rows are run",
    "name": "its file names the rows",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sweep",
        type=Path,
        metavar="SWEEP",
        help="a file with a function `sweep()`, or a shipped one by name",
    )
    add_run(parser)
    parser.add_argument(
        "--seeds", default="0", metavar="N,N,...", help="run every row under each (default: 0)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="only these rows; * stands for any letters: '2x2 *'",
    )
    parser.add_argument(
        "--redo",
        nargs="+",
        default=[],
        metavar="NAME",
        help="rows that have changed, to run again; their former runs are kept under `replaced`",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at once (default: 1)"
    )
    parser.add_argument(
        "--reference", default="", metavar="ROW", help="the row that others are compared with"
    )
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    from dipaco.overrides import load_sweep
    from dipaco.store.layout import SweepLayout
    from dipaco.sweeps.trials import named, seeds_of

    # All arguments are checked before anything is written, and before JAX is loaded.
    name, seeds = options.sweep.stem, seeds_of(options.seeds)
    for text in options.overrides:
        setting = text.partition("=")[0].strip()
        if setting in NOT_FOR_SET:
            raise NotForSweeps(name=setting, instead=NOT_FOR_SET[setting])
    rows = load_sweep(options.sweep, options.overrides)
    of_reference = [options.reference.partition("/")[0]] if options.reference else []
    named(name, rows, [*options.only, *options.redo, *of_reference])  # raises `NoSuchRow`
    if options.jobs < 1:
        raise BadSetting(name="--jobs", value=options.jobs, expected="1 or more")
    if options.run.url is not None:
        raise SweepNeedsFolder(given=options.run)

    from dipaco.sweeps.sweep import run_sweep

    layout = SweepLayout(options.run.folder)
    outcome = run_sweep(
        name,
        rows,
        layout,
        seeds,
        only=options.only,
        redo=options.redo,
        max_running=options.jobs,
        reference=options.reference,
    )
    _print(outcome.table, layout)
    if outcome.is_stopped:
        print("Stopped. The same command goes on from here.", flush=True)
    if outcome.failed:
        problems = " ".join(f"{title}: {problem}" for title, problem in outcome.failed.items())
        raise RowsFailed(count=len(outcome.failed), problems=problems)
    return 0


def _print(table: "SweepTable", layout: "SweepLayout") -> None:
    from dipaco.observe.terminal import bullets, terminal_width
    from dipaco.sweeps.text import render_sweep_text

    width = terminal_width()
    if table.rows:
        print(f"\n{render_sweep_text(table, width)}\n")
        print(bullets(table.notes, width))
    if table.missing:
        print(f"Not finished: {'; '.join(table.missing)}.")
    if table.rows:
        files = *(layout.table(suffix) for suffix in ("md", "json", "csv")), layout.plot
        print(f"\nWritten: {', '.join(map(str, files))}")
    sys.stdout.flush()
