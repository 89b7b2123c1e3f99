"""2x2 paths of 0.84 M parameters on the demo corpus. CPU, about five minutes on two cores.

Reaches a perplexity about a fifth below a dense model of a path's size after the same number of
steps. Tried on the way (`configs/README.md`, "What was tried"): plain k-means, other capacities,
smaller batches, fewer phases."""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig
from dipaco.routing.config import RoutingConfig
from dipaco.topology import Level, Topology, blocks


def run() -> RunConfig:
    return RunConfig(
        name="quickstart",
        model=ModelConfig(
            vocab_size=2048, d_model=96, num_layers=4, num_heads=4, d_ff=256, max_length=128
        ),
        topology=Topology(
            levels=(
                Level(name="early", parts=("embed", *blocks(0, 1)), experts=2),
                Level(name="late", parts=(*blocks(2, 3), "final_norm", "head"), experts=2),
            )
        ),
        data=DataConfig(vocab_size=2048, length=128, max_document_bytes=2048),
        base=BaseSettings(steps=150, steps_per_phase=50),
        routing=RoutingConfig(kind="product_kmeans"),
        phases=5,
        inner=InnerSettings(steps=20, batch_size=16, learning_rate=3e-3, warmup_steps=20),
        evaluation=EvaluationSettings(max_documents=500),
    )
