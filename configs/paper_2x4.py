"""DiPaCo 2x4 on C4: 8 paths of 150 M parameters. The smallest grid of the paper; perplexity
there 14.86.

Cost: 24,000 + 8 x 64,000 steps of 512 x 1024 tokens, about 3.5e19 FLOP a path; days on eight
accelerators. Dense at a path's size reaches 16.23. Needs the extra `datasets` and a network.
Evaluated at the training length, where the paper evaluates at 2048. A worker takes all devices of
its machine: a step fits eight TPUs v5e or four v6e; one H100 needs `inner.accumulation_steps=2`.

The feed-forward is gated, and 2304 wide so that blocks and embedding come to the paper's 150 M; the
untied head adds 29 M.
"""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.data.prompts import SampleSettings
from dipaco.inner.config import InnerSettings
from dipaco.model.config import MeshConfig, ModelConfig
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.topology import Level, Topology, blocks


def run() -> RunConfig:
    return RunConfig(
        name="paper_2x4",
        model=ModelConfig(
            vocab_size=32_000,
            d_model=896,
            num_layers=12,
            num_heads=16,
            head_dim=64,
            d_ff=2304,
            max_length=2048,
            compute_dtype="bfloat16",
        ),
        topology=grid(2, 4),
        data=DataConfig(
            sources=("hf:allenai/c4#en",),
            tokenizer_sample_bytes=500_000_000,
            length=1024,
            max_document_bytes=65_536,
            held_fraction=0.0005,
            router_fraction=0.005,
        ),
        base=BaseSettings(steps=24_000, steps_per_phase=1000),
        phases=427,
        # As published: no bound on the shards. The paper does not say how features are normalised.
        routing=RoutingConfig(capacity=None, floor=0.0),
        # Rate, warm-up and decay are the paper's by default.
        inner=InnerSettings(steps=150, batch_size=512, rematerialise=True, loss_chunks=8),
        # For eight TPUs v5e: 64 rows on each, in one piece.
        mesh=MeshConfig(data=-1),
        outer=OuterSettings(learning_rate=0.7, momentum=0.9),
        # Ensembles would keep what every path says of every token: hundreds of megabytes a path.
        evaluation=EvaluationSettings(every_phases=20, ensembles=False),
        samples=SampleSettings(prompts=8),
        baselines=("dense",),
    )


def grid(early: int, late: int) -> Topology:
    """Two levels of neighbouring blocks, the embedding with the first, final norm and head with
    the last.
    """
    return Topology(
        levels=(
            Level(name="early", parts=("embed", *blocks(0, 5)), experts=early),
            Level(name="late", parts=(*blocks(6, 11), "final_norm", "head"), experts=late),
        )
    )
