"""A ledger of a run that never was, of any size: for what reads a ledger and draws it."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from dipaco.config import MODULAR, RunConfig
from dipaco.overrides import load_config
from dipaco.runs.opening import create_or_open

CONFIG = Path(__file__).parents[2] / "configs" / "tiny_16x16.py"
ORIGIN = 1_700_000_000.0  # start of its clock
PHASE_SECONDS = 86.4  # 1,000 phases are a day
MACHINE = "cpu, made up"
TASK = (
    "INSERT INTO tasks (id, kind, arm, subject, phase, priority, state, attempt) "
    "VALUES (?, ?, 'modular', ?, ?, 8, 'done', 1)"
)
EVENT = (
    "INSERT INTO history (task_id, attempt, worker, machine, begun, ended, outcome, reason) "
    f"VALUES (?, ?, ?, '{MACHINE}', ?, ?, ?, ?)"
)
TRAINED = (
    "INSERT INTO trained (arm, path, phase, name, digest, num_bytes, step, batches, losses, "
    "tokens, seconds, bytes_down, bytes_up, machine) "
    f"VALUES ('modular', ?, ?, 's', 'd', 8, ?, 'b', ?, 7680, 60.0, 4096, 1024, '{MACHINE}')"
)
MODULE = (
    "INSERT INTO modules (arm, module, phase, name, digest, num_bytes, gradient_norm, "
    "gradient_stats) VALUES ('modular', ?, ?, 'm', 'd', 8, ?, ?)"
)


def make_run(folder: Path, phases: int, workers: int = 64, config: RunConfig | None = None) -> None:
    """Writes the ledger of a finished run, of which nothing else exists.

    Args:
      folder: a new one.
      phases: phases of the modular arm.
      workers: number of workers that took turns. About one in 300 tasks was lost.
      config: gives the topology. None = `configs/tiny_16x16.py`.
    """
    config = dataclasses.replace(config or load_config(CONFIG), phases=phases)
    run, _ = create_or_open(folder, config)
    topology, random = run.plan.arm(MODULAR).topology, np.random.default_rng(0)
    tasks, events, trained, modules = [], [], [], []
    for phase in range(phases):
        start = ORIGIN + PHASE_SECONDS * phase
        for path in range(topology.num_paths):
            number = len(tasks) + 10
            tasks.append((number, "train", str(path), phase))
            begun, worker = start + 2.0 * random.random(), f"worker-{path % workers:03}"
            if random.random() < 1 / 300:
                lost = (number, 1, worker, begun, begun + 20, "lost", "its worker fell silent")
                events.append(lost)
                begun, worker = begun + 20, f"worker-{(path + 1) % workers:03}"
            ended = begun + 50 + 10 * random.random()
            events.append((number, 2, worker, begun, ended, "done", ""))
            loss = 3 + 3 / (1 + phase / 20) + 0.01 * path
            trained.append((path, phase, 20 * (phase + 1), json.dumps([loss + 0.1, loss])))
        for module in topology.modules:
            number = len(tasks) + 10
            tasks.append((number, "outer", str(module), phase))
            begun, paths = start + 75 + 2 * random.random(), topology.paths_through(module)
            worker = f"worker-{number % workers:03}"
            events.append((number, 1, worker, begun, begun + 3.0, "done", ""))
            cosine = None if len(paths) == 1 else float(random.uniform(-0.1, 0.6))
            norm = float(random.uniform(0.1, 2))
            stats = json.dumps([dict.fromkeys(paths, norm), cosine])
            modules.append((str(module), phase + 1, norm, stats))
    events.sort(key=lambda event: event[4])
    database = run.ledger._database
    with database.transaction():
        many = database._connection.executemany  # ty: ignore[missing-attribute]
        many(TASK, tasks)
        many(EVENT, events)
        many(TRAINED, trained)
        many(MODULE, modules)
        database._connection.execute(  # ty: ignore[missing-attribute]
            "UPDATE tasks SET state = 'done' WHERE state <> 'done'"
        )
    run.ledger.close()
