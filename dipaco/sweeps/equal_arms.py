"""Arms that are equal are trained once for all rows of a sweep.

Two rows may be the same run under two names, or their runs may have the same dense baseline, which
depends on the steps that it takes and not on what the paths share. An arm is known by the digest of
all settings that it depends on. The first run that has it trains it. Runs begun later leave it out,
and the table shows its figures under every row.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
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
        """Sentences: which baselines no run of the plan trains, as where a row that is not asked
        for was to train it.
        """
        return [
            f"`{arm}` of {trial} is left to another row, and no run of this command trains it: "
            f"`--only {shlex.quote(trial.row)} --redo {shlex.quote(trial.row)}` does, once the row "
            "is finished"
            for trial, sources in self.sources.items()
            for arm in trial.config.baselines
            if arm not in sources
        ]


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


def plan_runs(
    trials: Sequence[Trial], own: Mapping[Trial, Path], existing: Sequence[SweepRun]
) -> SweepPlan:
    """The runs that give every trial its results, with no arm trained twice.

    Args:
      trials: the requested trials, in the order in which to run them.
      existing: runs to take results from: finished runs, and the trials' runs.
    """
    by_folder = {run.folder: run for run in existing}
    trained_by: dict[str, SweepRun] = {}  # digest of an arm -> the run that trains it
    run_of: dict[Trial, SweepRun] = {}

    def note_arms_of(run: SweepRun) -> None:
        for digest in run.arms.values():
            trained_by.setdefault(digest, run)

    for run in existing:
        note_arms_of(run)
    for trial in trials:
        arms, run = arms_of(trial.config), by_folder.get(own[trial])
        if run is None and not trained_by.keys() >= set(arms.values()):
            left = tuple(each for each in trial.config.baselines if arms[each] not in trained_by)
            config = dataclasses.replace(trial.config, baselines=left)
            run = SweepRun(str(trial), own[trial], config)
            note_arms_of(run)
        if run is not None:
            run_of[trial] = run
    sources: dict[Trial, Sources] = {}
    for trial in trials:
        run = run_of.get(trial)
        own_arms = {} if run is None else run.arms
        sources[trial] = {
            arm: run if run is not None and arm in own_arms else trained_by[digest]
            for arm, digest in arms_of(trial.config).items()
            if arm in own_arms or digest in trained_by
        }
    return SweepPlan(list(run_of.values()), sources)
