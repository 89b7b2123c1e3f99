"""What the same machines could do in lock-step: paths with shared blocks against one model of a
path's size, whose gradients P machines average at every step.

    dipaco ablate configs/ablations/lockstep.py --run runs/lockstep --only \
        "data_parallel 4 rate 0.012 phases 20" "2x2 holders rate 0.012 phases 20"
    python tools/lockstep.py runs/lockstep/table.json

The size, text, schedule and evaluation are those of `reproduction.py`, P is 4 and 16, and a path's
budget 2 to 40 phases of 50 steps. All start from the same base model and take as many steps on as
many tokens: `data_parallel` is one model under batches P times as large, dealt out at random;
`holders` shares every part of K x K paths, rows of the vocabulary by who has the token; `private`
shares the blocks. Both average plainly. Every row comes at four peak rates (that of the base model
included): compare each at its best one.

Cost on two cores that have nothing else to do: four minutes for four paths and ten phases, ten for
sixteen, and as much in lock-step. The whole sweep takes a day: name rows, a budget at a time.
"""

from reproduction import PLAIN, data_parallel, inner, of, private_grid, shared_grid

from dipaco.config import RunConfig
from dipaco.outer.config import OuterSettings

BUDGETS = (2, 5, 10, 20, 40)  # phases of a path
RATES = (3e-3, 6e-3, 12e-3, 24e-3)
HOLDERS = OuterSettings(learning_rate=1.0, momentum=0.0, vocabulary_rows="holders")


def sweep() -> dict[str, RunConfig]:
    rows = {}
    for k in (2, 4):
        for phases in BUDGETS:
            for rate in RATES:
                at = f" rate {rate:g} phases {phases}"
                tuned = {"inner": inner(rate), "phases": phases}
                rows[f"data_parallel {k * k}{at}"] = data_parallel(k, **tuned)
                rows[f"{k}x{k} holders{at}"] = of(shared_grid(k), outer=HOLDERS, **tuned)
                rows[f"{k}x{k} private{at}"] = of(private_grid(k), outer=PLAIN, **tuned)
    return rows
