"""A finished run for benchmarks of serving: speed does not depend on how far it was trained."""

import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).parents[2]
CONFIG = '''
"""The quickstart with {side}x{side} paths of {width} wide, hardly trained."""

import dataclasses
from pathlib import Path

from dipaco.config import BaseSettings, EvaluationSettings
from dipaco.data.prompts import SampleSettings
from dipaco.inner.config import InnerSettings
from dipaco.model.config import part_names
from dipaco.overrides import load_config
from dipaco.routing.config import RoutingConfig
from dipaco.topology import grid

QUICKSTART = load_config(Path({configs!r}) / "quickstart.py")
VOCABULARY, LENGTH = {vocabulary}, {length}
MODEL = dataclasses.replace(
    QUICKSTART.model,
    vocab_size=VOCABULARY,
    d_model={width},
    d_ff={d_ff},
    max_length=LENGTH,
)


def run():
    return dataclasses.replace(
        QUICKSTART,
        name="bench",
        model=MODEL,
        topology=grid(part_names(MODEL), ({side}, {side})),
        data=dataclasses.replace(QUICKSTART.data, length=LENGTH),
        routing=RoutingConfig({routing}),
        base=BaseSettings(steps=2, steps_per_phase=2),
        phases=1,
        inner=InnerSettings(steps=2, batch_size=2, learning_rate=1e-3, warmup_steps=1),
        evaluation=EvaluationSettings(max_documents=20),
        samples=SampleSettings(),
        baselines=(),
    )
'''


def make_run(folder: Path, *, side: int = 2, width: int = 256) -> None:
    """Trains `side` x `side` paths for two steps, in a folder. Paths that are 256 wide have 8.39 M
    parameters and a context of 256. Narrower ones have the quickstart's vocabulary and context (128
    wide: 1.57 M).
    """
    large = width >= 256
    config = CONFIG.format(
        configs=str(HOME / "configs"),
        side=side,
        routing="" if side < 8 else 'kind="random"',  # else some of 256 shards have no document
        width=width,
        d_ff=4 * width,
        vocabulary=8192 if large else 2048,
        length=256 if large else 128,
    )
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "bench.py"
        file.write_text(config)
        command = [sys.executable, "-m", "dipaco.cli.main", "train", file, "--run", folder]
        subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)
