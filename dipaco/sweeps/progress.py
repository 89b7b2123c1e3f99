"""Progress of a whole sweep, and the time it still takes.

The title counts the runs that are over, and the bar floating point operations of training: a model
of four times the size counts four times. They are read from the ledgers at first, then from the
event files of the runs. Of a run that has failed, what it has trained counts, and no more.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from dipaco.config import RunConfig
from dipaco.model.config import flops_per_token
from dipaco.observe.events import Event
from dipaco.observe.progress import Progress
from dipaco.observe.writers import Closing, EventFileReader
from dipaco.runs.opening import reading
from dipaco.schedule.arm import Arm
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.shared_base import base_digest
from dipaco.sweeps.trials import SweepRun

ALL = 1000  # the whole sweep on the bar


class SweepProgress(Closing):
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
        self._name, self._runs = name, [run.folder for run in runs]
        self._shown = self._share
        self._bar = Progress(name, ALL, done_steps=self._shown, unit="")
        self._bar.begin(self._title([folder for folder, left in self._left.items() if left]))

    def close(self) -> None:
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
        for folder in self._followers.keys() - set(still_to_do):
            del self._followers[folder], self._left[folder]
        self._bar.rename(self._title(still_to_do))
        if tokens or self._share > self._shown:
            before, self._shown = self._shown, self._share
            self._bar.advance(self._shown - before, tokens=tokens)

    def show(self, event: Event) -> None:
        self.say(event.line)

    def say(self, text: str) -> None:
        self._bar.say(text)

    @property
    def _share(self) -> int:
        """The part of the whole sweep that is done, of `ALL`."""
        total = self._done + sum(self._left.values())
        return ALL * self._done // total if total else 0

    def _title(self, still_to_do: Collection[Path]) -> str:
        left = sum(folder in still_to_do for folder in self._runs)
        return f"{self._name}, {len(self._runs) - left} of {len(self._runs)} runs"

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
