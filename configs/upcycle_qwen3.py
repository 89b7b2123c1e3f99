"""2x2 paths that begin as Qwen3-0.6B: a public model becomes four experts on your text.

    dipaco train configs/upcycle_qwen3.py --run RUN --init-from Qwen3-0.6B \\
        --set data.sources=text:notes/**/*.txt

Paths share two halves of the blocks, and each keeps an embedding and a final norm of its own. Cost:
1,000 steps of 16 x 1024 tokens a path of 596 M parameters, 7e16 FLOP; 14.7 GB of a GPU, 20 GB of a
machine without one (`dipaco plan`). The base model reads no text (`base.steps`). What upcycling
brings was measured elsewhere (FlexOlmo, arXiv 2507.07024), not here.
"""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.topology import PER_PATH, Level, Topology, blocks


def run() -> RunConfig:
    return RunConfig(
        name="upcycle_qwen3",
        model=ModelConfig(
            vocab_size=151_936,
            d_model=1024,
            num_layers=28,
            num_heads=16,
            num_kv_heads=8,
            head_dim=128,
            d_ff=3072,
            max_length=2048,
            rope_theta=1e6,
            qk_norm=True,
            tied_head=True,
            compute_dtype="bfloat16",
        ),
        topology=Topology(
            levels=(
                Level(name="own", parts=("embed", "final_norm"), experts=PER_PATH),
                Level(name="early", parts=blocks(0, 13), experts=2),
                Level(name="late", parts=blocks(14, 27), experts=2),
            )
        ),
        data=DataConfig(sources=("hf:allenai/c4#en",), length=1024, max_document_bytes=65_536),
        base=BaseSettings(steps=0),
        routing=RoutingConfig(kind="product_kmeans", rule="likelihood"),
        phases=20,
        inner=InnerSettings(
            steps=50,
            batch_size=16,
            learning_rate=5e-5,
            warmup_steps=50,
            rematerialise=True,
            accumulation_steps=16,
            loss_chunks=16,
        ),
        # A published model is near its optimum: paths move by the plain mean.
        outer=OuterSettings(learning_rate=1.0, momentum=0.0, rescale_by_fan_in=False),
        evaluation=EvaluationSettings(every_phases=5, max_documents=2000, ensembles=False),
        baselines=("dense",),
    )
