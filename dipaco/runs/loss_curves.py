"""The training losses of a report: of every inner step, or, where these are too many for a file
that is read whole, means over stretches of steps.

A run of 256 paths and a thousand phases of 100 steps has 26 million losses: `report.json` would
have more than a gigabyte.
"""

import math
import statistics

from dipaco.control.plan import Arm
from dipaco.evaluation.tables import Curve
from dipaco.runs.curves import steps_before
from dipaco.runs.run import Run

MOST_LOSSES = 200_000  # of an arm: some ten megabytes of `report.json`


def stretch_of(arm: Arm) -> int:
    """Inner steps of a path that are one loss of the report."""
    return max(1, math.ceil(arm.path_steps / MOST_LOSSES))


def loss_curves(run: Run, arm: Arm) -> dict[str, Curve]:
    """Path -> (steps, training loss), where a loss is the mean over `stretch_of(arm)` steps up to
    there. One path is read at a time.
    """
    before, stretch = steps_before(run, arm), stretch_of(arm)
    curves: dict[str, Curve] = {}
    for path in range(arm.topology.num_paths):
        losses = run.ledger.progress.losses_of(arm.name, path)
        if losses:
            curves[str(path)] = thinned(losses, before, stretch)
    return curves


def thinned(losses: list[float], before: int, stretch: int) -> Curve:
    """Means over so many losses each, the last over what is left; `before` steps came first."""
    if stretch == 1:
        return list(enumerate(losses, start=before + 1))
    return [
        (before + min(at + stretch, len(losses)), statistics.fmean(losses[at : at + stretch]))
        for at in range(0, len(losses), stretch)
    ]


def notes_on_losses(run: Run) -> list[str]:
    """Says where losses are means."""
    return [
        f"The training losses of {arm.name} in report.json are means over {stretch_of(arm):,} "
        f"steps each: its paths took {arm.path_steps:,}."
        for arm in run.plan.arms
        if stretch_of(arm) > 1
    ]
