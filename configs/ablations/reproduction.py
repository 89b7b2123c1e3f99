"""The paper's comparisons in small: paths of 0.5 M parameters, base model 2 M tokens, 1 M tokens a
path, on the packages corpus. In pieces of any length, into one folder:

    dipaco ablate configs/ablations/reproduction.py --run runs/reproduction --seeds 0,1,2 --only \\
        "dense 1x" "diloco 4" "flat 4" "2x2" "2x2 private" "2x2 synchronous" "2x2 discriminative"
    dipaco ablate configs/ablations/reproduction.py --run runs/reproduction

The first is P = 4 with three seeds, the second every row with one; what is finished is not run
again, and the table of the second has all rows under seed 0. Dense models are the size of a path
with 1, 4 and 16 times the steps of one, and 2 and 4 times the size, each under three peak rates.

Cost on two cores, estimated from the quickstart's 44 GFLOP/s: a row of four paths 4 minutes, of 16
paths 16; dense 1x one minute, 16x 16, each under three rates. The first command 85 minutes, the
second 5 hours more. Documents are evaluated to their 128th token.
"""

from typing import Any

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig, part_names
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.topology import PER_PATH, SHARED, Level, Topology, blocks

PUBLISHED_DILOCO = OuterSettings(rescale_by_fan_in=False)
TOGETHER = OuterSettings(synchronous=True)
PLAIN = OuterSettings(learning_rate=1.0, momentum=0.0)  # of one path: AdamW and nothing else
PHASES = 10


def sweep() -> dict[str, RunConfig]:
    rows = {"dense 1x": dense()}
    for k, paths in ((2, 4), (4, 16)):
        grid = f"{k}x{k}"
        rows[f"diloco {paths}"] = of(whole(k, SHARED), outer=PUBLISHED_DILOCO)
        rows[f"flat {paths}"] = of(whole(k, PER_PATH))
        rows[grid] = of(shared_grid(k))
        rows[f"{grid} private"] = of(private_grid(k))
        rows[f"{grid} synchronous"] = of(shared_grid(k), outer=TOGETHER)
        rows[f"{grid} discriminative"] = of(shared_grid(k), routing=alternating(1))
    rows["4x4 k-means"] = of(shared_grid(4), routing=RoutingConfig(kind="kmeans"))
    rows["4x4 private stopped"] = of(private_grid(4), inner=inner(hold_out=0.05))
    for count in (1, 2, 3):  # none: `flat 4`
        rows[f"flat 4 alternations {count}"] = of(whole(2, PER_PATH), routing=alternating(count))
    for times in (1, 4, 16):
        for rate in (1.5e-3, 3e-3, 6e-3):
            if (times, rate) != (1, 3e-3):  # that is `dense 1x`
                rows[f"dense {times}x rate {rate:g}"] = dense(rate, phases=times * PHASES)
    for size, model in ((2, sized(96, 320)), (4, sized(160, 448))):
        for rate in (1.5e-3, 3e-3, 6e-3):
            rows[f"dense size {size}x rate {rate:g}"] = dense(rate, model=model)
    return rows


def of(topology: Topology, **changes: Any) -> RunConfig:
    """Any row: the same text, schedule and evaluation."""
    settings: dict[str, Any] = {
        "name": "reproduction",
        "model": sized(64, 192),
        "topology": topology,
        "data": DataConfig(vocab_size=2048, length=128, max_document_bytes=2048),
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
