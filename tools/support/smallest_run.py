"""A run of a second's work, and its worker in this process: what laws of training are tried on."""

import dataclasses

from dipaco.config import BaseSettings, EvaluationSettings
from dipaco.model.config import part_names
from dipaco.overrides import load_config
from dipaco.runs.run import Run
from dipaco.store.retention import RetentionSettings
from dipaco.topology import PER_PATH, Level, Topology
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.heartbeat import LeaseRenewer
from dipaco.workers.loop import Worker

TOY = load_config("toy")
MODEL = dataclasses.replace(TOY.model, d_model=16, num_layers=1, d_ff=24, max_length=48)
EVERYTHING = part_names(MODEL)
SHARINGS = {
    "2x2": (
        Level(name="early", parts=("embed",), experts=2),
        Level(name="late", parts=("block_00", "final_norm", "head"), experts=2),
    ),
    "diloco": (Level(name="all", parts=EVERYTHING), Level(name="replica", experts=3)),
    "flat_moe": (Level(name="all", parts=EVERYTHING, experts=3),),
    "grid_with_private_parts": (
        Level(name="early", parts=("embed",), experts=2),
        Level(name="late", parts=("final_norm",), experts=2),
        Level(name="own", parts=("block_00",), experts=PER_PATH),
        Level(name="stem", parts=("head",)),
    ),
}
CONFIG = dataclasses.replace(
    TOY,
    model=MODEL,
    topology=Topology(levels=SHARINGS["2x2"]),
    data=dataclasses.replace(TOY.data, sources=("toy:?documents=160&words=30",), length=48),
    base=BaseSettings(steps=2, steps_per_phase=1),
    phases=3,
    inner=dataclasses.replace(TOY.inner, steps=2),
    evaluation=EvaluationSettings(every_phases=3),
    baselines=(),
    retention=RetentionSettings(),
)


def worker_of(run: Run, name: str = "test", callbacks: Callbacks | None = None, **more) -> Worker:
    """A worker whose heart is not started: its leases last as long as the test."""
    return Worker(
        run, name, callbacks or Callbacks(), LeaseRenewer(run.open_ledger, name, 60.0), **more
    )
