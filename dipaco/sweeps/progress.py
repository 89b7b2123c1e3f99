"""Progress of a whole sweep, and the time it still takes.

Counted in floating point operations of training: a model of four times the size counts four times.
Read from the ledgers at first, then from the event files of the runs. Of a run that
has failed, or that no row waits for any more, what it has trained counts, and the rest does not.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from dipaco.config import RunConfig
from dipaco.model.config import flops_per_token
from dipaco.observe.events import Event
from dipaco.observe.progress import Progress
from dipaco.observe.writers import EventFileReader
from dipaco.runs.opening import reading
from dipaco.schedule.arm import Arm
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
        self._left: dict[Path, int] = {}  # flops that a run has still to do
        self._done = 0  # flops, of all runs
        bases: dict[Path, RunConfig] = {}
        for _, folder, config in runs:
            bases.setdefault(layout.shared(base_digest(config)), config)
            self._add(folder, config, config.plan.arms, of_base=False)
        for shared, config in bases.items():
            self._add(shared, config, [config.plan.base], of_base=True)
        # The largest unit in which the total is at least 1000: whole numbers are precise enough.
        total = self._total
        unit = next((unit for unit, size in UNITS.items() if total >= 1000 * size), "MFLOP")
        self._unit = UNITS[unit]
        self._shown = round(self._done / self._unit)  # units of the bar
        self._bar = Progress(name, round(total / self._unit), done_steps=self._shown, unit=unit)
        self._bar.begin(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def look(self, still_to_do: Sequence[Path]) -> None:
        """Shows the progress of all runs since the last call. Runs in the folders `still_to_do`
        will do more. The others are not followed any further.
        """
        tokens = 0
        for folder, follower in self._followers.items():
            for event in follower.new():
                if event.name == "path_trained":
                    trained = event.fields["tokens"]
                    assert isinstance(trained, int)
                    tokens += trained
                    flops = trained * self._flops_per_token[folder]
                    self._done += flops
                    self._left[folder] = max(self._left[folder] - flops, 0)
        if tokens:
            before, self._shown = self._shown, round(self._done / self._unit)
            self._bar.advance(self._shown - before, tokens=tokens)
        if over := self._followers.keys() - set(still_to_do):
            for folder in over:
                del self._followers[folder], self._left[folder]
            self._bar.expect(round(self._total / self._unit))

    def show(self, event: Event) -> None:
        self.say(event.line)

    def say(self, text: str) -> None:
        self._bar.say(text)

    @property
    def _total(self) -> int:
        """Flops of the whole sweep."""
        return self._done + sum(self._left.values())

    def _add(self, folder: Path, config: RunConfig, arms: Sequence[Arm], *, of_base: bool) -> None:
        self._flops_per_token[folder] = each = flops_per_token(config.model, config.data.length)
        self._followers[folder] = EventFileReader(Layout(folder).events)
        steps = sum(arm.path_steps for arm in arms)
        done = _tokens_done(folder, of_base=of_base)
        left = steps * config.inner.batch_size * config.data.length - done
        self._done += done * each
        self._left[folder] = max(left, 0) * each


def _tokens_done(folder: Path, *, of_base: bool) -> int:
    if not Layout(folder).ledger.exists():
        return 0
    with reading(folder) as run:
        arms = [run.plan.base] if of_base else run.plan.arms
        return sum(run.ledger.progress.training_totals(arm.name).tokens for arm in arms)
