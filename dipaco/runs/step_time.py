"""How long an inner step of a config takes on this machine: a few are taken, with made-up text.

The result is kept in the user's cache folder, by machine and by what the program depends on.
"""

import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from dipaco.config import RunConfig
from dipaco.files import write_atomically
from dipaco.model.config import flops_per_token
from dipaco.runs.machine import machine
from dipaco.runs.meshes import why_not_trained
from dipaco.runs.programs import Programs
from dipaco.runs.worker_memory import worker_memory

STEPS = 3  # after one that compiles
MOST_FLOPS = 2e12  # of a step that is tried on a CPU: about twenty seconds on two cores
MOST_MEMORY = 0.5  # of what is free
KEPT = 200  # measurements


class StepTime(NamedTuple):
    """Of one inner step of one path."""

    seconds: float
    is_remembered: bool


def step_flops(config: RunConfig) -> int:
    """Floating point operations of an inner step."""
    tokens = config.inner.batch_size * config.data.length
    return tokens * flops_per_token(config.model, config.data.length)


def why_not_tried(config: RunConfig, platform: str, free_bytes: int | None) -> str | None:
    """Why no step of this config is taken here, as the end of a sentence; None: it is."""
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
    """Bytes of this machine that programs can have; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(kibibytes) * 1024 for kibibytes in found), None)


def step_time(config: RunConfig, cache: Path) -> StepTime:
    """Measured now, or remembered.

    Args:
      config: whose step it is. A loss of one's own is not asked for: it hardly matters here.
      cache: folder of the file that remembers.
    """
    file, key = cache / "step_seconds.json", _key(config)
    remembered = _remembered(file)
    if key in remembered:
        return StepTime(remembered[key], is_remembered=True)
    seconds = measure(config)
    newest = dict(list((_remembered(file) | {key: seconds}).items())[-KEPT:])
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(newest).encode())
    return StepTime(seconds, is_remembered=False)


def measure(config: RunConfig) -> float:
    """The median of a few steps, in seconds, after the one that compiles."""
    config = dataclasses.replace(
        config, inner=dataclasses.replace(config.inner, absent_tokens="plain")
    )
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


def _key(config: RunConfig) -> str:
    of = [machine(), str(config.model), str(config.inner), str(config.mesh), config.data.length]
    return xxhash.xxh3_64_hexdigest(json.dumps(of).encode())


def _remembered(file: Path) -> dict[str, float]:
    """What was measured; nothing where the file is missing or damaged."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        key: value
        for key, value in (found.items() if isinstance(found, dict) else ())
        if isinstance(value, float) and value > 0
    }
