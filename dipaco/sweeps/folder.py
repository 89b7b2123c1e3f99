"""The folder of a sweep: its lock, its finished runs, and runs whose rows have changed."""

import contextlib
import fcntl
import json
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from dipaco.config import ReportSettings, RunConfig
from dipaco.control.planning.summaries import Prepared
from dipaco.errors import BadSetting, DipacoError, RunBusy, SettingsDisagree
from dipaco.evaluation.tables import ReportRow
from dipaco.files import translate_os_errors, write_atomically
from dipaco.overrides import row_folder
from dipaco.runs.folder_lock import is_in_use
from dipaco.runs.opening import difference, find_run, reading
from dipaco.runs.reading.report import make_report
from dipaco.runs.rules import check_settings
from dipaco.store.address import Address
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.errors import RowRefused, RowsChanged, SweepBusy, SweepMismatch
from dipaco.sweeps.kinds import but_for_speed
from dipaco.sweeps.measured import Origin
from dipaco.sweeps.trials import Trial, trials_of


def is_finished(folder: Path) -> bool:
    """True if the run in a folder is finished."""
    if not Layout(folder).ledger.exists():
        return False
    with reading(folder) as run:
        return run.ledger.queue.is_finished()


def rows_of(folder: Path, settings: ReportSettings | None = None) -> list[ReportRow]:
    """The table of a finished run, by its own settings of reports if none are given."""
    with reading(folder) as opened:
        return make_report(opened, settings).rows


def origin_of(folder: Path) -> Origin:
    """The text and program of a finished run."""
    with reading(folder) as run:
        prepared = run.stage("prepare")
        return Origin(
            prepared.artifacts["corpus"].digest,
            run.ledger.meta.get("version") or "",
            Prepared.of(prepared).documents["test"],
        )


def beside(
    layout: SweepLayout, name: str, rows: Mapping[str, RunConfig], asked: Sequence[Trial]
) -> dict[Trial, Path]:
    """Other rows and seeds of the sweep with finished runs, which the table holds too.

    Runs that have changed or cannot be read are printed and left out.
    """
    found: dict[Trial, Path] = {}
    left_out: list[str] = []
    for trial in trials_of(name, rows, layout.seeds()):
        folder = layout.row(row_folder(trial.row), trial.seed)
        if trial in asked:
            continue
        try:
            if not is_finished(folder):
                continue
            if _is_of(trial, config_of(folder)):
                found[trial] = folder
            else:
                left_out.append(f"{trial} (has changed)")
        except DipacoError:
            left_out.append(f"{trial} (cannot be read)")
    if left_out:
        print(f"Not asked for, and not in the table: {', '.join(left_out)}.", flush=True)
    return found


def config_of(folder: Path) -> RunConfig:
    """The config that a run was begun with."""
    with reading(folder) as run:
        return run.requested_config


def _is_of(trial: Trial, run: RunConfig) -> bool:
    return but_for_speed(trial.config).has_results_of(but_for_speed(run))


def move_changed(
    layout: SweepLayout,
    trials: Sequence[Trial],
    folders: Mapping[Trial, Path],
    redo: Sequence[str],
) -> None:
    """Moves the runs of `redo` rows that have another config than their row has now.

    Raises:
      RowsChanged: other rows have changed. Nothing is moved.
      RowRefused: a row that is to begin, again or for the first time, has settings that no run
        begins with.
      RunBusy: a process works on a run that is to be moved.
    """
    changed: dict[Trial, str] = {}
    begun: set[Trial] = set()
    for trial in trials:
        if Layout(folders[trial]).ledger.exists():
            there = config_of(folders[trial])
            if _is_of(trial, there):
                begun.add(trial)
            else:
                changed[trial] = difference(there, trial.config)
    for row in redo:
        if row not in {trial.row for trial in changed}:
            print(f"`{row}` has not changed: there is nothing to redo.", flush=True)
    left = [trial for trial in changed if trial.row not in redo]
    if left:
        names = dict.fromkeys(trial.row for trial in left)
        raise RowsChanged(
            rows=", ".join(f"`{name}`" for name in names),
            folder=layout.root,
            difference=f"in `{left[0].row}`, {changed[left[0]]}",
        )
    for trial in trials:
        if trial not in begun:
            _check_settings(trial)
    for trial in changed:
        if is_in_use(folders[trial]):
            raise RunBusy(folder=folders[trial])
    for trial in changed:
        replaced = layout.replaced(row_folder(trial.row), trial.seed)
        replaced.parent.mkdir(parents=True, exist_ok=True)
        folders[trial].rename(replaced)


def _check_settings(trial: Trial) -> None:
    try:
        check_settings(trial.config, {})
    except (BadSetting, SettingsDisagree) as error:
        raise RowRefused(row=trial.row, problem=error) from error


@contextlib.contextmanager
def lock_folder(layout: SweepLayout, name: str) -> Generator[None]:
    """Takes the folder for this sweep, and for this process.

    Raises:
      SweepMismatch, RunIsFile, LinkLeadsNowhere: it holds something else, or is no folder.
      SweepBusy: another process works on the sweep.
    """
    if layout.sweep.exists():
        found = _name_in(layout.sweep)
        if found is None:  # the file holds the name only: removing it loses nothing else
            what = f"a damaged {layout.sweep.name} (where it is `{name}`'s, remove that file)"
            raise SweepMismatch(folder=layout.root, found=what, sweep=name)
        if found != name:
            raise SweepMismatch(folder=layout.root, found=f"the sweep `{found}`", sweep=name)
    elif find_run(Address(layout.root)) is not None:
        raise SweepMismatch(folder=layout.root, found="a single run", sweep=name)
    with translate_os_errors(layout.root):
        layout.root.mkdir(parents=True, exist_ok=True)
        lock = layout.lock.open("a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SweepBusy(folder=layout.root) from error
        write_atomically(layout.sweep, json.dumps({"sweep": name}).encode())
        yield


def _name_in(file: Path) -> str | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(file.read_bytes())["sweep"])
    return None
