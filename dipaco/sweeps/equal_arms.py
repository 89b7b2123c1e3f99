"""Arms that are equal are trained once for all rows of a sweep.

Two rows may be the same run under two names, or their runs may have the same dense baseline, which
depends on the steps that it takes and not on what the paths share. An arm is known by the digest of
all settings that it depends on. The first run that has it trains it. Runs begun later leave it out,
and the table shows its figures under every row.
"""

import dataclasses
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dipaco.config import MODULAR, OF_NO_RESULT, RunConfig
from dipaco.sweeps.kinds import but_for_speed
from dipaco.sweeps.shared_base import base_digest, digest_of
from dipaco.sweeps.trials import Trial

# Inner settings that only paths of shards read.
OF_PATHS = ("freeze_absent_tokens", "hold_out")
NOT_OF_AN_ARM = ("name", "baselines", *OF_NO_RESULT)


class SweepRun(NamedTuple):
    """A run of a sweep: the arms that it trains, for all rows that have an equal one."""

    title: str
    folder: Path
    config: RunConfig  # config that the run begins with, without baselines that other runs train

    @property
    def arms(self) -> dict[str, str]:
        """Arm -> digest."""
        return arms_of(self.config)


Sources = Mapping[str, SweepRun]  # arm of a row -> the run that trains it


class SweepPlan(NamedTuple):
    """The runs that some rows need, and the run that each row takes its results from."""

    runs: list[SweepRun]
    sources: dict[Trial, Sources]
    others: Sequence[SweepRun] = ()  # unfinished ones of rows that are not asked for

    @property
    def shared(self) -> list[str]:
        """Sentences: which rows an arm of another one is trained for."""
        rows: dict[tuple[str, str], list[Trial]] = {}  # run, arm -> rows besides its own
        for trial, sources in self.sources.items():
            for arm, run in sources.items():
                if run.title != str(trial):
                    rows.setdefault((run.title, arm), []).append(trial)
        return [
            f"{'' if arm == MODULAR else f'`{arm}` of '}{title} is also that of "
            f"{', '.join(trial.row for trial in trials)}: trained once"
            for (title, arm), trials in rows.items()
        ]

    @property
    def untrained(self) -> list[str]:
        """Sentences: which baselines no run of the plan trains, as where the one that was to is
        gone.
        """
        left_to = {digest: run for run in reversed(self.others) for digest in run.arms.values()}
        sentences = []
        for trial, sources in self.sources.items():
            arms = arms_of(trial.config)
            for arm in (each for each in trial.config.baselines if each not in sources):
                if other := left_to.get(arms[arm]):
                    why = f"left to {other.title}, which is not finished"
                else:
                    redo = f"`--redo {shlex.quote(trial.row)}`"
                    why = (
                        f"trained by no run: once the row is finished, {redo} runs it again with it"
                    )
                sentences.append(f"`{arm}` of {trial} is {why}")
        return sentences


def arms_of(config: RunConfig) -> dict[str, str]:
    """Arm -> digest of all that its results depend on: the modular arm, then the baselines."""
    config = but_for_speed(config)
    settings = dataclasses.asdict(config)
    inner = {name: value for name, value in settings["inner"].items() if name not in OF_PATHS}
    modular = {name: settings[name] for name in settings if name not in NOT_OF_AN_ARM}
    return {MODULAR: digest_of(modular)} | {
        baseline: digest_of(
            {
                "base": base_digest(config),
                "arm": dataclasses.asdict(config.plan.arm(baseline)),
                "inner": inner,
                **{name: settings[name] for name in ("data", "evaluation")},
            }
        )
        for baseline in config.baselines
    }


def is_of_row(run: RunConfig, row: RunConfig) -> bool:
    """True if a run belongs to a row: both train the same, except that the run may leave baselines
    to other runs, or train more of them.
    """
    of_run = but_for_speed(dataclasses.replace(row, baselines=run.baselines))
    return of_run.has_results_of(but_for_speed(run))


def baselines_to_redo(
    trials: Sequence[Trial],
    redo: Collection[str],
    begun: Mapping[Trial, SweepRun],
    finished: Sequence[SweepRun],
    going_on: Sequence[SweepRun],
) -> dict[Trial, list[str]]:
    """The baselines that `redo` rows have and no run will train.

    An unfinished run is left to go on, whatever it lacks. If several rows lack the same baseline,
    the first is to train it.

    Args:
      trials: the requested trials.
      redo: rows.
      begun: trial -> its run, if it is begun and the row has not changed since.
      finished: all finished runs.
      going_on: unfinished runs that have not failed.

    Returns:
      Trial -> digests of the baselines that a new run of it is to train.
    """
    good = {run.folder: run for run in (*finished, *going_on)}
    failing = [run for run in begun.values() if run.folder not in good]
    there, of_failing = (
        {digest for run in runs for digest in run.arms.values()}
        for runs in (good.values(), failing)
    )
    for trial in trials:
        if trial not in begun:  # its run trains what it does not leave to another
            there |= set(arms_of(trial.config).values()) - of_failing
    ended = {run.folder for run in finished}
    found: dict[Trial, list[str]] = {}
    for trial in (each for each in trials if each.row in redo):
        run = begun.get(trial)
        if run is not None and run.folder not in ended:
            continue
        arms, own = arms_of(trial.config), () if run is None else run.arms
        lacks = [arms[each] for each in trial.config.baselines if each not in own]
        if lacks := [digest for digest in lacks if digest not in there]:
            found[trial] = lacks
            there.update(lacks)
    return found


def plan_runs(
    trials: Sequence[Trial],
    own: Mapping[Trial, Path],
    existing: Sequence[SweepRun],
    trains: Mapping[Trial, Collection[str]],
    others: Sequence[SweepRun] = (),
) -> SweepPlan:
    """The runs that give every trial its results, with no arm trained twice.

    Args:
      trials: the requested trials, in the order in which to run them.
      own: trial -> its folder.
      existing: runs to take results from: finished runs, and the trials' runs.
      trains: trial -> digests of arms that its run trains, if it is begun, whatever others do.
      others: unfinished runs of other trials. One that has all arms of a trial goes on for it. The
        rest go on when their trials are requested.
    """
    begun = {run.folder for run in existing}
    trained = {digest for run in existing for digest in run.arms.values()}
    new = [t for t in trials if own[t] not in begun and not trains.get(t)]
    found = {t: _equal_of(arms_of(t.config), others, trained) for t in new}
    going_on = {t: run for t, run in found.items() if run is not None}
    of_others = {run.folder for run in others}
    while True:
        run_of, trained_by = _assigned(trials, own, existing, trains, others, going_on)
        goes_on = {t: run for t, run in run_of.items() if run.folder in of_others}
        if len(goes_on) == len(going_on):
            break
        # More go on, as rows before them train what they lack: those leave out what these train.
        going_on = goes_on
    sources: dict[Trial, Sources] = {}
    for trial in trials:
        run = run_of.get(trial)
        own_arms = {} if run is None else run.arms
        sources[trial] = {
            arm: run if run is not None and arm in own_arms else trained_by[digest]
            for arm, digest in arms_of(trial.config).items()
            if arm in own_arms or digest in trained_by
        }
    runs = {run.folder: run for run in run_of.values()}
    return SweepPlan(list(runs.values()), sources, others)


def _assigned(
    trials: Sequence[Trial],
    own: Mapping[Trial, Path],
    existing: Sequence[SweepRun],
    trains: Mapping[Trial, Collection[str]],
    others: Sequence[SweepRun],
    going_on: Mapping[Trial, SweepRun],
) -> tuple[dict[Trial, SweepRun], dict[str, SweepRun]]:
    """Assigns runs to trials, with arguments as in `plan_runs`. `going_on` has the trials for which
    a run of `others` goes on: no trial before them begins a run with its arms.

    Returns:
      Trial -> its run, if it has one. Digest of an arm -> the run that trains it.
    """
    by_folder = {run.folder: run for run in existing}
    trained_by: dict[str, SweepRun] = {}

    def note_arms_of(run: SweepRun) -> None:
        for digest in run.arms.values():
            trained_by.setdefault(digest, run)

    for run in (*existing, *going_on.values()):
        note_arms_of(run)
    run_of: dict[Trial, SweepRun] = {}
    for trial in trials:
        arms, wanted = arms_of(trial.config), trains.get(trial, ())
        run = going_on.get(trial) or by_folder.get(own[trial])
        elsewhere = trained_by.keys() - set(wanted)
        if run is None and not wanted:
            run = _equal_of(arms, others, elsewhere)
            if run is not None:
                note_arms_of(run)
        if run is None and not elsewhere >= set(arms.values()):
            left = (each for each in trial.config.baselines if arms[each] not in elsewhere)
            config = dataclasses.replace(trial.config, baselines=tuple(left))
            run = SweepRun(str(trial), own[trial], config)
            for digest in run.arms.values():
                if digest in wanted or digest not in trained_by:
                    trained_by[digest] = run
        if run is not None:
            run_of[trial] = run
    return run_of, trained_by


def _equal_of(
    arms: Mapping[str, str], others: Sequence[SweepRun], elsewhere: Collection[str]
) -> SweepRun | None:
    """The unfinished run of another trial that trains a trial's modules, and all of its arms (arm
    -> digest) that are not trained elsewhere.
    """
    for run in others:
        lacking = set(arms.values()) - set(run.arms.values())
        if arms[MODULAR] not in (*lacking, *elsewhere) and lacking <= set(elsewhere):
            return run
    return None
