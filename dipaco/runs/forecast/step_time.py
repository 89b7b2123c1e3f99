"""Seconds of an inner step of a config on this machine, measured with made-up text."""

import statistics
import time
from pathlib import Path

import numpy as np

from dipaco.config import RunConfig
from dipaco.runs.forecast.memory import step_flops, worker_memory
from dipaco.runs.meshes import why_not_trained
from dipaco.runs.programs import Programs

STEPS = 3  # These come after one that compiles.
MOST_FLOPS = 2e12  # A step of so many takes about twenty seconds on a CPU of two cores.
MOST_MEMORY = 0.5  # The share of the free memory that a trial may take.


def why_not_tried(config: RunConfig, platform: str, free_bytes: int | None) -> str | None:
    """Why no step of this config is taken here, as the end of a sentence. None: it is."""
    flops, needed = step_flops(config), sum(worker_memory(config).values())
    if platform == "cpu" and flops > MOST_FLOPS:
        return f"a step of {flops:.1e} floating point operations is too long for a CPU"
    if platform == "cpu" and free_bytes is not None and needed > MOST_MEMORY * free_bytes:
        return f"it needs {needed / 1e9:.1f} GB, and {free_bytes / 1e9:.1f} GB are free here"
    return None


def why_not_trained_here(config: RunConfig) -> str | None:
    """Why the devices of this process cannot take a step of it, as the end of a sentence."""
    if (fault := why_not_trained(config)) is None:
        return None
    return f"this machine cannot train it: {str(fault).partition('. ')[0]}"


def free_memory() -> int | None:
    """Bytes of this machine that programs can have. None: the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(kibibytes) * 1024 for kibibytes in found), None)


def step_seconds(config: RunConfig) -> float:
    """The median of a few steps. A loss of one's own is replaced, since it hardly matters here."""
    programs = Programs(config)
    state = programs.place(programs.initial_parts(), None, 0)
    rng, shape = np.random.default_rng(0), (config.inner.batch_size, config.data.length)
    positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    seconds = []
    for _ in range(1 + STEPS):
        tokens = rng.integers(0, config.model.vocab_size, shape, np.int32)
        batch = {"tokens": tokens, "segments": np.ones_like(tokens), "positions": positions}
        began = time.perf_counter()
        state, metrics = programs.step(state, programs.place_batch(batch), np.float32(1e-4))
        metrics.loss.block_until_ready()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])
