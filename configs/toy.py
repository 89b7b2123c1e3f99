"""2x2 paths of 37 thousand parameters on text that is made up. CPU, a tenth of a minute.

It learns next to nothing: tests and tools train it, most of them with some settings changed."""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig
from dipaco.store.retention import RetentionSettings
from dipaco.topology import Level, Topology


def run() -> RunConfig:
    return RunConfig(
        name="toy",
        model=ModelConfig(
            vocab_size=300, d_model=32, num_layers=2, num_heads=2, d_ff=48, max_length=64
        ),
        topology=Topology(
            levels=(
                Level(name="early", parts=("embed", "block_00"), experts=2),
                Level(name="late", parts=("block_01", "final_norm", "head"), experts=2),
            )
        ),
        data=DataConfig(
            sources=("toy:?clusters=4&documents=240&words=40",),
            length=64,
            held_fraction=0.05,
            router_fraction=0.2,
            processes=1,
        ),
        base=BaseSettings(steps=4, steps_per_phase=2),
        phases=2,
        inner=InnerSettings(steps=3, batch_size=4, learning_rate=3e-3, warmup_steps=1),
        evaluation=EvaluationSettings(batch_size=16),
        retention=RetentionSettings(modules=None, contributions=None),  # Tests read them.
        baselines=("dense", "dense_equal_tokens"),
    )
