"""A small run for swarms of processes, and what `swarm_slow.py` has noted of its volunteers."""

import contextlib
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ONE_PATH = 'Topology(levels=(Level(name="all", parts=part_names(MODEL)),))'
CONFIG = '''"""{name} on the toy corpus."""

from dipaco.config import BaseSettings, EvaluationSettings, RunConfig
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import ModelConfig, part_names
from dipaco.outer.config import OuterSettings
from dipaco.routing.config import RoutingConfig
from dipaco.store.retention import RetentionSettings
from dipaco.topology import Level, Topology, grid

MODEL = ModelConfig(
    vocab_size=300, d_model={d_model}, num_layers=2, num_heads=2, d_ff={d_ff}, max_length=64
)


def run() -> RunConfig:
    return RunConfig(
        name="{name}",
        model=MODEL,
        topology={topology},
        data=DataConfig(
            sources=("toy:?clusters=4&documents={documents}&words=60",),
            length=64,
            held_fraction=0.05,
            router_fraction=0.2,
            processes=1,
        ),
        base=BaseSettings(steps=0),
        phases={phases},
        routing=RoutingConfig(kind="kmeans"),
        outer=OuterSettings(learning_rate=1.0, momentum=0.0),
        inner=InnerSettings(steps={steps}, batch_size={batch}, learning_rate=1e-3, warmup_steps=2),
        evaluation=EvaluationSettings(batch_size=16, every_phases={phases}),
        retention=RetentionSettings(contributions=None),  # a replay compares with them
        baselines=(),
    )
'''


def write_config(
    file: Path,
    *,
    name: str,
    phases: int,
    steps: int,
    batch: int,
    d_model: int = 32,
    documents: int = 400,
    topology: str = ONE_PATH,
) -> None:
    """Writes a config file. `topology` is an expression."""
    file.write_text(
        CONFIG.format(
            name=name,
            topology=topology,
            documents=documents,
            phases=phases,
            steps=steps,
            batch=batch,
            d_model=d_model,
            d_ff=3 * d_model // 2,
        )
    )


class Paced(NamedTuple):
    """A paced volunteer's notes on itself, with times as `time.time`."""

    doing: str  # computing, averaging, waiting
    began: float  # its first block
    ended: float  # when it last worked
    seconds_per_block: float
    computing_seconds: float
    blocks: int

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def paced_by(file: Path) -> Paced | None:
    """None: it has not computed yet."""
    with contextlib.suppress(OSError, ValueError):
        doing, *times, blocks = file.read_text().split("\n")[:6]
        began, ended, usual, computing = map(float, times)
        return Paced(doing, began, ended, usual, computing, int(blocks))
    return None


def share_of_computing(noted: Iterable[Paced]) -> tuple[float | None, int]:
    """The share of the volunteers' time from first to last block, and their number of blocks."""
    busy = there = 0.0
    blocks = 0
    for one in noted:
        busy, there = busy + one.computing_seconds, there + one.seconds
        blocks += one.blocks
    return (round(busy / there, 3) if there else None), blocks


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def dipaco_words() -> list[str]:
    """The beginning of a command line."""
    return [sys.executable, "-m", "dipaco.cli.main"]
