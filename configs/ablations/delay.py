"""What late modules cost a small model: 2x2 that waits at every phase's end, and that trains on
while its contributions travel (`outer.delay`), by so many of its 50 inner steps and with so much of
its own parameters kept at the merge (Streaming DiLoCo, arXiv 2501.18512).

    dipaco ablate configs/ablations/delay.py --run runs/delay --seeds 0,1,2 --jobs 2
    dipaco ablate configs/ablations/delay.py --run runs/delay_short --set base.steps=100 \\
        --set phases=3 --set inner.steps=30 --set inner.warmup_steps=20 \\
        --set evaluation.every_phases=3 --set evaluation.max_documents=150 \\
        --set evaluation.best_path=false --set evaluation.ensembles=false \\
        --only plain "plain delay 5"

Rows have the size, text, router and rate of `reproduction.py`; plain ones average without momentum,
rows of the vocabulary by holders. The second command is the smallest form: 90 steps a path.

Cost on two cores that have nothing else to do: a base model, 1 minute a seed; a row 4 minutes. With
three seeds 3.5 hours; the second command 4 minutes.
"""

import dataclasses

import reproduction

from dipaco.config import RunConfig
from dipaco.outer.config import OuterSettings

OUTER_STEPS = {
    "plain": OuterSettings(learning_rate=1.0, momentum=0.0, vocabulary_rows="holders"),
    "published": OuterSettings(),
}
DELAYS = (5, 10, 25)  # of 50 steps
KEPT = (0.5, 0.0)  # the paper's alpha; the modules alone


def sweep() -> dict[str, RunConfig]:
    rows = {}
    for name, outer in OUTER_STEPS.items():
        rows[name] = row(outer, 0, 0.5)
        for delay in DELAYS:
            for keep in KEPT:
                kept = "" if keep == 0.5 else f" keep {keep:g}"
                rows[f"{name} delay {delay}{kept}"] = row(outer, delay, keep)
    return rows


def row(outer: OuterSettings, delay: int, keep: float) -> RunConfig:
    outer = dataclasses.replace(outer, delay=delay, delay_merge=keep)
    return reproduction.of(reproduction.shared_grid(2), outer=outer)
