"""Progress of a whole sweep, and the time it still takes.

Counted in floating point operations of training: a model of four times the size counts four times.
Read from the ledgers at first, then from the event files of the runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from dipaco.config import RunConfig
from dipaco.control.plan import Arm
from dipaco.model.config import flops_per_token
from dipaco.observe.events import Event
from dipaco.observe.follow import EventFileReader
from dipaco.observe.progress import Progress
from dipaco.runs.opening import reading
from dipaco.runs.run import Run
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.equal_arms import SweepRun
from dipaco.sweeps.shared_base import base_digest

UNITS = {"PFLOP": 1e15, "TFLOP": 1e12, "GFLOP": 1e9, "MFLOP": 1e6}


class SweepProgress:
    """One bar for the sweep, and a line for each of its events."""

    def __init__(
        self,
        name: str,
        runs: Sequence[SweepRun],
        layout: SweepLayout,
    ):
        self._flops_per_token: dict[Path, int] = {}
        self._followers: dict[Path, EventFileReader] = {}
        self._fraction = 0.0  # of a unit, added to the next
        total = done = 0.0
        bases: dict[Path, RunConfig] = {}
        for _, folder, config in runs:
            bases.setdefault(layout.shared(base_digest(config)), config)
            self._add(folder, config)
            total += sum(_flops(config, arm) for arm in config.plan.arms)
            done += _done(folder, config, of_base=False)
        for shared, config in bases.items():
            self._add(shared, config)
            total += _flops(config, config.plan.base)
            done += _done(shared, config, of_base=True)
        # The largest unit in which the total is at least 1000: whole numbers are precise enough.
        unit = next((unit for unit, size in UNITS.items() if total >= 1000 * size), "MFLOP")
        self._unit = UNITS[unit]
        self._bar = Progress(
            name, round(total / self._unit), done_steps=round(done / self._unit), unit=unit
        )
        self._bar.begin(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def look(self, folders: Sequence[Path]) -> None:
        """Shows what all runs have done since the last call; `folders` are those running now."""
        tokens = flops = 0
        for folder in dict.fromkeys([*self._followers, *folders]):
            for event in self._followers[folder].new():
                if event.name == "path_trained":
                    trained = event.fields["tokens"]
                    assert isinstance(trained, int)
                    tokens += trained
                    flops += trained * self._flops_per_token[folder]
        if flops:
            self._fraction += flops / self._unit
            whole = int(self._fraction)
            self._fraction -= whole
            self._bar.advance(whole, tokens=tokens)

    def show(self, event: Event) -> None:
        self.say(event.line)

    def say(self, text: str) -> None:
        self._bar.say(text)

    def _add(self, folder: Path, config: RunConfig) -> None:
        self._flops_per_token[folder] = flops_per_token(config.model, config.data.length)
        self._followers[folder] = EventFileReader(Layout(folder).events)


def _flops(config: RunConfig, arm: Arm) -> float:
    """Of training one arm, according to its plan."""
    tokens = arm.path_steps * config.inner.batch_size * config.data.length
    return float(tokens * flops_per_token(config.model, config.data.length))


def _done(folder: Path, config: RunConfig, *, of_base: bool) -> float:
    if not Layout(folder).ledger.exists():
        return 0.0
    with reading(folder) as run:
        return _done_flops(run, config, [run.plan.base] if of_base else list(run.plan.arms))


def _done_flops(run: Run, config: RunConfig, arms: Sequence[Arm]) -> float:
    tokens = sum(run.ledger.progress.training_totals(arm.name).tokens for arm in arms)
    return float(tokens * flops_per_token(config.model, config.data.length))
