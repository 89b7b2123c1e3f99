"""The bar of a sweep: what counts, and that it reaches its end where rows have failed."""

import contextlib
import dataclasses
import re
from pathlib import Path

import pytest

from dipaco.observe.events import Event
from dipaco.observe.writers import JsonLines
from dipaco.store.layout import Layout, SweepLayout
from dipaco.sweeps.progress import SweepProgress
from dipaco.sweeps.shared_base import base_digest
from dipaco.sweeps.trials import SweepRun
from tests.workers.conftest import CONFIG


class Little:
    """A sweep of two rows, each with a base model of its own, and its bar."""

    def __init__(self, root: Path):
        layout = SweepLayout(root)
        configs = (CONFIG, dataclasses.replace(CONFIG, seed=1))
        self.runs = [
            SweepRun(f"row {number}", layout.row("row", number), config)
            for number, config in enumerate(configs)
        ]
        self.bases = [layout.shared(base_digest(config)) for config in configs]
        self._layout = layout

    @property
    def folders(self) -> list[Path]:
        return [*self.bases, *(run.folder for run in self.runs)]

    def bar(self) -> SweepProgress:
        return SweepProgress("little", self.runs, self._layout)

    def train(self, folder: Path, *, of_base: bool, share: float = 1.0) -> None:
        """Has a run say that it has trained a share of its steps."""
        plan = CONFIG.plan
        steps = sum(arm.path_steps for arm in ([plan.base] if of_base else plan.arms))
        tokens = round(share * steps * CONFIG.inner.batch_size * CONFIG.data.length)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(JsonLines(Layout(folder).events, clock=lambda: 0.0)) as log:
            log.write(Event("path_trained", {"tokens": tokens}))


@pytest.fixture
def little(tmp_path) -> Little:
    return Little(tmp_path / "sweep")


def counts(said: str) -> tuple[int, int]:
    """Runs that are over, of two, and per cent of all work, in the last line."""
    found = re.fullmatch(r"little, (\d) of 2 runs: (\d+)%.*", said.splitlines()[-1])
    assert found, said
    return int(found[1]), int(found[2])


def test_the_bar_reaches_its_end_when_all_is_trained(little, capsys):
    with little.bar() as bar:
        for run, base in zip(little.runs, little.bases, strict=True):
            for share in (0.25, 0.5, 0.25):
                little.train(base, of_base=True, share=share)
                little.train(run.folder, of_base=False, share=share)
                bar.look(little.folders)
        bar.look([])
    assert counts(capsys.readouterr().err) == (2, 100)


def test_of_what_has_failed_the_bar_counts_what_it_has_trained(little, capsys):
    (first, second), (base, base_left) = little.runs, little.bases
    with little.bar() as bar:
        little.train(base_left, of_base=True, share=0.5)
        bar.look(little.folders)
        bar.look([base, first.folder])
        little.train(base_left, of_base=True, share=0.25)  # it takes a while to end
        bar.look([base, first.folder])
        little.train(base, of_base=True)
        bar.look([first.folder])
    runs, share = counts(capsys.readouterr().err)
    assert (runs, share < 100) == (1, True)
    with little.bar() as bar:
        little.train(first.folder, of_base=False)
        bar.look([])
    assert counts(capsys.readouterr().err) == (2, 100)
    assert second.folder not in bar._left


def test_where_all_have_failed_before_they_have_trained_nothing_is_to_do(little, capsys):
    with little.bar() as bar:
        bar.look([])
        bar.say("the end")
    assert capsys.readouterr().err == "the end\n"
