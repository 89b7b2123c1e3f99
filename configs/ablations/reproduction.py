"""The paper's comparisons in small: paths of 0.5 M parameters, base model 2 M tokens, 1 M tokens a
path, on the demo corpus. In pieces of any length, into one folder:

    dipaco ablate configs/ablations/reproduction.py --run runs/reproduction --seeds 0,1,2 --only \\
        "dense 1x" "data_parallel 4" "diloco 4" "flat 4" "2x2" "2x2 private" "2x2 synchronous" \\
        "2x2 discriminative"
    dipaco ablate configs/ablations/reproduction.py --run runs/reproduction --seeds 0,1,2 --only \\
        "dense 1x rate 0.012" "data_parallel 4 rate 0.012" "diloco 4 by row *" "flat 4 by row" \\
        "2x2 by row *" "2x2 discriminative by row *" "2x2 private plain rate 0.012" \\
        "2x2 private plain mean rate 0.012" "2x2 synchronous rate 0.012"
    dipaco ablate configs/ablations/reproduction.py --run runs/reproduction

The first is P = 4 with three seeds. The second compares the same with what was found to be better
here: plain outer steps (rate 1, no momentum), rows of the vocabulary by who holds the token, absent
rows at rest where rows are shared, and a rate of 12e-3. A module moves by the mean of its paths'
movements in rows called `mean`, and by the root of the fan-in times as far in rows called `root`.
Where a name has neither word, DiLoCo has the mean and all others have the root, as published.
The third is every row; what is finished is not run again, and its table has all rows under seed 0.
Dense models are the size of a path with 1, 4 and 16 times the
steps of one, and 2 and 4 times the size, each under three peak rates, which are lower for the
larger ones.

Two races at three budgets, 2, 5 and 10 phases of a path: the flat mixture, 2x2, and 2x2 with
private parts averaged without momentum, against dense models of 1, 2 and 4 times a path's size at
equal steps, and against one of a path's size with the steps of all four paths together. Each row is
tuned over three rates, and one more where the best was the first or the last; shards are balanced
(`routing.capacity`).

Cost on two cores that have nothing else to do: a row of four paths 4 minutes, of 16 paths 10;
dense 1x one and a half, 16x 15. The first command 85 minutes, the second 90, the third seven hours
more. Documents are evaluated to their 128th token.
"""

import dataclasses
from typing import Any

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig, part_names
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RerouteConfig, RoutingConfig
from dipaco.topology import PER_PATH, SHARED, Level, Topology, blocks

PUBLISHED = {"root": OuterSettings(), "mean": OuterSettings(rescale_by_fan_in=False)}
TOGETHER = OuterSettings(synchronous=True)
PLAIN = OuterSettings(learning_rate=1.0, momentum=0.0)  # with one path: AdamW alone
PLAIN_MEAN = dataclasses.replace(PLAIN, rescale_by_fan_in=False)
PHASES = 10
BUDGETS = (2, 5, PHASES)  # phases of a path
RATES = (3e-3, 6e-3, 12e-3)
RATES_OF_LARGER = (1.5e-3, 3e-3, 6e-3)  # the larger the model, the lower its best rate
BEYOND = (  # one more, where the best of three was the first or the last
    ("2x2", 1.5e-3, 2),
    ("2x2", 1.5e-3, 5),
    ("flat 4", 24e-3, PHASES),
    ("2x2 private plain", 24e-3, PHASES),
    ("dense size 4x", 0.75e-3, 2),
    ("dense 16x", 1.5e-3, PHASES),
)


def sweep() -> dict[str, RunConfig]:
    return paper() | by_row() | races() | averaged()


def paper() -> dict[str, RunConfig]:
    """What the paper compares, at one rate."""
    rows = {"dense 1x": dense()}
    for k, paths in ((2, 4), (4, 16)):
        grid = f"{k}x{k}"
        rows[f"data_parallel {paths}"] = data_parallel(k)
        rows[f"diloco {paths}"] = of(whole(k, SHARED), outer=PUBLISHED["mean"])
        rows[f"flat {paths}"] = of(whole(k, PER_PATH))
        rows[grid] = of(shared_grid(k))
        rows[f"{grid} private"] = of(private_grid(k))
        rows[f"{grid} synchronous"] = of(shared_grid(k), outer=TOGETHER)
        rows[f"{grid} discriminative"] = of(shared_grid(k), routing=alternating(1))
    rows["diloco 4 root"] = of(whole(2, SHARED), outer=PUBLISHED["root"])
    rows["2x2 mean"] = of(shared_grid(2), outer=PUBLISHED["mean"])
    rows["2x2 private mean"] = of(private_grid(2), outer=PUBLISHED["mean"])
    rows["4x4 k-means"] = of(shared_grid(4), routing=RoutingConfig(kind="kmeans"))
    rows["4x4 private stopped"] = of(private_grid(4), inner=inner(hold_out=0.05))
    for count in (1, 2, 3):  # none: `flat 4`
        rows[f"flat 4 alternations {count}"] = of(whole(2, PER_PATH), routing=alternating(count))
    rerouted = RerouteConfig(every=(16, 32, 64), steps=100, learning_rate=1e-3)
    for k, paths in ((2, 4), (4, 16)):
        rows[f"flat {paths} re-routed"] = of(whole(k, PER_PATH), reroute=rerouted)
    return rows


def by_row() -> dict[str, RunConfig]:
    """What the paper compares at P = 4, with plain outer steps and rows of the vocabulary by
    holders, with the root of the fan-in and without. In `flat 4` no module has several paths.
    Absent rows rest where paths share rows: a path with rows of its own does better to move them.
    """
    at_rest = dataclasses.replace(inner(12e-3), freeze_absent_tokens=True)
    rows = {"flat 4 by row": of(whole(2, PER_PATH), outer=PLAIN, inner=inner(12e-3))}
    for step, plain in (("mean", PLAIN_MEAN), ("root", PLAIN)):
        outer = dataclasses.replace(plain, vocabulary_rows="holders")
        tuned: dict[str, Any] = {"outer": outer, "inner": at_rest}
        rows[f"diloco 4 by row {step}"] = of(whole(2, SHARED), **tuned)
        rows[f"2x2 by row {step}"] = of(shared_grid(2), **tuned)
        rows[f"2x2 discriminative by row {step}"] = of(
            shared_grid(2), **tuned, routing=alternating(1)
        )
    return rows


def races() -> dict[str, RunConfig]:
    """Every competitor, under every rate and budget. At 3e-3 and ten phases `dense 1x`,
    `flat 4` and `2x2` are what `paper()` has, and `2x2 private plain` what `averaged()` has.
    """
    entries = []
    for phases in BUDGETS:
        for rate in RATES:
            if (rate, phases) != (3e-3, PHASES):
                for name in ("dense 1x", "flat 4", "2x2", "2x2 private plain"):
                    entries.append((name, rate, phases))
            entries.append(("dense 4x", rate, phases))
        for rate in RATES_OF_LARGER:
            entries.append(("dense size 2x", rate, phases))
            entries.append(("dense size 4x", rate, phases))
    entries += [("dense 16x", rate, PHASES) for rate in RATES]
    return {
        name + _at(rate, phases): racer(name, rate, phases)
        for name, rate, phases in (*entries, *BEYOND)
    }


def racer(name: str, rate: float, phases: int) -> RunConfig:
    """One competitor, with so many phases of a path."""
    tuned: dict[str, Any] = {"inner": inner(rate), "phases": phases}
    match name:
        case "flat 4":
            return of(whole(2, PER_PATH), **tuned)
        case "2x2":
            return of(shared_grid(2), **tuned)
        case "2x2 private plain":
            return of(private_grid(2), outer=PLAIN, **tuned)
        case "dense size 2x":
            return dense(rate, model=sized(96, 320), phases=phases)
        case "dense size 4x":
            return dense(rate, model=sized(160, 448), phases=phases)
    times = int(name.removeprefix("dense ").removesuffix("x"))  # the steps of so many paths
    return dense(rate, phases=times * phases)


def _at(rate: float, phases: int) -> str:
    return f" rate {rate:g}" + ("" if phases == PHASES else f" phases {phases}")


def averaged() -> dict[str, RunConfig]:
    """2x2 averaged at every step, and after every phase without momentum, each at its own rate. The
    same where what touches the vocabulary is not averaged at all. And one model in lock-step.
    """
    rows = {}
    for rate in RATES:
        tuned = {"topology": shared_grid(2), "inner": inner(rate)}
        rows[f"2x2 plain rate {rate:g}"] = of(outer=PLAIN, **tuned)
        rows[f"2x2 plain mean rate {rate:g}"] = of(outer=PLAIN_MEAN, **tuned)
        if rate != 3e-3:  # those are `2x2 synchronous` and `data_parallel 4`
            rows[f"2x2 synchronous rate {rate:g}"] = of(outer=TOGETHER, **tuned)
            rows[f"data_parallel 4 rate {rate:g}"] = data_parallel(2, inner=inner(rate))
        tuned = {"topology": private_grid(2), "inner": inner(rate)}
        at = "" if rate == 3e-3 else _at(rate, PHASES)
        rows["2x2 private synchronous" + at] = of(outer=TOGETHER, **tuned)
        rows["2x2 private plain mean" + at] = of(outer=PLAIN_MEAN, **tuned)
    rows["2x2 private plain"] = of(private_grid(2), outer=PLAIN)  # at other rates it races
    return rows


def of(topology: Topology, **changes: Any) -> RunConfig:
    """Any row: the same text, schedule and evaluation."""
    settings: dict[str, Any] = {
        "name": "reproduction",
        "model": sized(64, 192),
        "topology": topology,
        "data": DataConfig(length=128, max_document_bytes=2048),
        "base": BaseSettings(steps=1000, steps_per_phase=200),
        "routing": RoutingConfig(kind="product_kmeans"),
        "phases": PHASES,
        "inner": inner(),
        "evaluation": EvaluationSettings(every_phases=5),
        "baselines": (),
    }
    return RunConfig(**settings | changes)


def dense(rate: float = 3e-3, **changes: Any) -> RunConfig:
    """One model, as a run of one path."""
    changes = {"routing": RoutingConfig(), "outer": PLAIN, "inner": inner(rate)} | changes
    return of(whole(1, SHARED), **changes)


def data_parallel(k: int, **tuned: Any) -> RunConfig:
    """K x K machines that train one model in lock-step: any path is the best."""
    return of(
        whole(k, SHARED),
        outer=TOGETHER,
        routing=RoutingConfig(kind="random"),
        evaluation=EvaluationSettings(every_phases=5, best_path=False),
        **tuned,
    )


def inner(learning_rate: float = 3e-3, hold_out: float = 0.0) -> InnerSettings:
    return InnerSettings(
        steps=50,
        batch_size=16,
        learning_rate=learning_rate,
        warmup_steps=50,
        hold_out=hold_out,
    )


def alternating(count: int) -> RoutingConfig:
    """Discriminative routing, so many times, the first in the middle."""
    return RoutingConfig(kind="product_kmeans", alternations=(5, 7, 9)[:count])


def sized(d_model: int, d_ff: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=2048, d_model=d_model, num_layers=4, num_heads=4, d_ff=d_ff, max_length=128
    )


def whole(k: int, experts: int) -> Topology:
    """K x K paths through one level that owns every part."""
    every = Level(name="all", parts=part_names(sized(64, 192)), experts=experts)
    if k == 1:
        return Topology(levels=(every,))
    return Topology(levels=(every, Level(name="first", experts=k), Level(name="second", experts=k)))


def shared_grid(k: int) -> Topology:
    return Topology(
        levels=(
            Level(name="early", parts=("embed", *blocks(0, 1)), experts=k),
            Level(name="late", parts=(*blocks(2, 3), "final_norm", "head"), experts=k),
        )
    )


def private_grid(k: int) -> Topology:
    """What touches the vocabulary is each path's own."""
    return Topology(
        levels=(
            Level(name="own", parts=("embed", "final_norm", "head"), experts=PER_PATH),
            Level(name="early", parts=blocks(0, 1), experts=k),
            Level(name="late", parts=blocks(2, 3), experts=k),
        )
    )
