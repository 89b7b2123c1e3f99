"""2x2 paths of 0.84 M parameters on the demo corpus. CPU, about five minutes on two cores.

Reaches a perplexity a quarter below a dense model of a path's size after the same number of steps,
and comes near lock-step for a seventh of its bytes. `published.py` has the published settings. Here
paths train with Muon and meet after every five steps. A module then becomes the mean of its paths,
weighted by their documents, without momentum or the root of the fan-in. A token's rows of embedding
and head are weighted by how often each path's shard has the token. Contributions have four bits a
value. Shards are made by product k-means. A held-out document or a prompt goes to the
path under which its first tokens are likeliest. The path that k-means would choose starts 2 nats
ahead (`routing.prior`). `configs/ablations/muon.py` compares optimisers, outer steps, phases and
codecs.
"""

from dipaco.config import BASELINES, BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.data.prompts import SampleSettings
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.store.retention import RetentionSettings
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
        data=DataConfig(length=128, max_document_bytes=2048),
        base=BaseSettings(steps=150, steps_per_phase=50),
        routing=RoutingConfig(kind="product_kmeans", rule="likelihood"),
        phases=20,
        inner=InnerSettings(
            optimizer="muon", steps=5, batch_size=16, learning_rate=24e-3, warmup_steps=20
        ),
        outer=OuterSettings(
            learning_rate=1.0,
            momentum=0.0,
            rescale_by_fan_in=False,
            vocabulary_rows="holders",
            codec="int4",
        ),
        evaluation=EvaluationSettings(every_phases=4, max_documents=500),
        retention=RetentionSettings(send_snapshots_every=5),
        samples=SampleSettings(prompts=4),
        baselines=BASELINES,  # dense models beside it take over half of all steps; () = none
    )
