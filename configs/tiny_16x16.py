"""16x16: 256 paths of 43 thousand parameters with private parts, on 256 made-up languages. Two
processes (`dipaco launch configs/tiny_16x16.py --run RUN --workers 2`) take under ten minutes on
two cores.

The smallest run in which the router of features is far from the best path: it shows what routing
by likelihood among a shortlist brings with many paths."""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.topology import PER_PATH, Level, Topology, blocks


def run() -> RunConfig:
    return RunConfig(
        name="tiny_16x16",
        model=ModelConfig(
            vocab_size=400, d_model=32, num_layers=2, num_heads=2, d_ff=48, max_length=96
        ),
        topology=Topology(
            levels=(
                Level(name="own", parts=("embed", "final_norm", "head"), experts=PER_PATH),
                Level(name="early", parts=blocks(0, 0), experts=16),
                Level(name="late", parts=blocks(1, 1), experts=16),
            )
        ),
        data=DataConfig(
            sources=("toy:?clusters=256&documents=20480&words=40",),
            length=96,
            held_fraction=0.05,
            router_fraction=0.2,
        ),
        base=BaseSettings(steps=40, steps_per_phase=40),
        routing=RoutingConfig(kind="product_kmeans", rule="likelihood", shortlist=16),
        phases=3,
        inner=InnerSettings(steps=20, batch_size=4, learning_rate=1e-2, warmup_steps=5),
        outer=OuterSettings(learning_rate=0.5, momentum=0.0),
        evaluation=EvaluationSettings(every_phases=3, max_documents=800),
        baselines=(),
    )
