"""The outer step of 2x2 by regime: how long a path trains, how often modules step, and whether the
inner rate decays.

    dipaco ablate configs/ablations/outer_step.py --run runs/outer_step --seeds 0 --jobs 2 --only \\
        "published 10x50" "plain 10x50" "rate 1.5 10x50" \\
        "published 10x50 constant" "plain 10x50 constant" "rate 1.5 10x50 constant"
    dipaco ablate configs/ablations/outer_step.py --run runs/outer_step --seeds 0 --jobs 2

The first is one budget, at one horizon; the second every row, into the same folder. A row is called
after its outer step, its phases and the inner steps of each: 250, 500 and 1,000 steps a path, in
phases of 50 or 10. Decayed rows have a peak rate of 6e-3 and end at a tenth of it; constant ones
have 3e-3, about its mean, after the same warm-up, and so has their base model, which therefore is
another one. All have the size, text, base steps and router of `reproduction.py`, and rows of the
vocabulary averaged by holders.

All rows multiply means by the root of the fan-in, 2 here: without it `plain` would be rate 1.41.

Cost on two cores that have nothing else to do: a base model for each of the two schedules, 1
minute; a row of 250, 500 and 1,000 steps 2, 4 and 8 minutes; in phases of ten a tenth more. The
first command 26 minutes, the second two hours and a quarter more.
"""

import dataclasses

import reproduction

from dipaco.config import EvaluationSettings, RunConfig
from dipaco.outer.config import OuterSettings

PLAIN = OuterSettings(learning_rate=1.0, momentum=0.0, vocabulary_rows="holders")
OUTER_STEPS = {
    "published": OuterSettings(vocabulary_rows="holders"),
    "plain": PLAIN,
    "rate 1.5": dataclasses.replace(PLAIN, learning_rate=1.5),
}
BUDGETS = (250, 500, 1000)  # inner steps of a path
HORIZONS = (50, 10)  # inner steps of a phase
SCHEDULES = {"": (6e-3, 0.1), " constant": (3e-3, 1.0)}  # peak rate, end as a fraction of it


def sweep() -> dict[str, RunConfig]:
    return {
        f"{name} {budget // horizon}x{horizon}{schedule}": row(outer, budget, horizon, *rates)
        for schedule, rates in SCHEDULES.items()
        for budget in BUDGETS
        for horizon in HORIZONS
        for name, outer in OUTER_STEPS.items()
    }


def row(
    outer: OuterSettings, budget: int, horizon: int, rate: float, end_fraction: float
) -> RunConfig:
    inner = dataclasses.replace(reproduction.inner(rate), steps=horizon, end_fraction=end_fraction)
    phases = budget // horizon
    return reproduction.of(
        reproduction.shared_grid(2),
        outer=outer,
        inner=inner,
        phases=phases,
        evaluation=EvaluationSettings(every_phases=phases),
    )
