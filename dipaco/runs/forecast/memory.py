"""Memory and operations that a worker needs, computed from the config alone.

Parameters, their gradients and the optimiser's state are exact. Activations are what the backward
pass reads again, counted block by block. `tools/large.py` measures how far that holds.
"""

import dataclasses
import math
from collections.abc import Callable

from dipaco.config import RunConfig
from dipaco.model.config import ModelConfig, flops_per_token, num_parameters
from dipaco.outer.compress import codec_of
from dipaco.runs.forecast.traffic import (
    VALUE_BYTES,
    module_parameters,
    optimizer_bytes,
)

OUTER_SIZES = 3  # An outer step holds three copies of its module (`outer/step.py`).
GRADIENT, ACTIVATIONS = "gradient", "activations, roughly"
LIBRARIES_BYTES = 450_000_000  # Python, libraries and compiled programs of a process
FEW_ROWS = 8  # of one device, whose step is compiled to tell the memory of a row


def worker_memory(config: RunConfig) -> dict[str, int]:
    """Bytes while a path trains, by what they are for."""
    size = VALUE_BYTES * num_parameters(config.model)
    memory = {
        "parameters": size,
        GRADIENT: size * (2 if config.inner.accumulation_steps > 1 else 1),
        "optimiser's state": optimizer_bytes(config.model, config.inner.optimizer),
        "modules as the phase began": size,
        ACTIVATIONS: activation_bytes(config),
    }
    if config.num_paths > 1 and codec_of(config.outer).is_lossy:
        memory["what the codec left out"] = size
    return memory


def cpu_memory(memory: dict[str, int]) -> int:
    """Bytes of a worker's process on a CPU.

    The memory in which a step works is there twice: XLA frees it a moment after the step's results
    are there, when the next step has already asked for its own.

    Args:
      memory: `worker_memory`.
    """
    return sum(memory.values()) + memory[GRADIENT] + memory[ACTIVATIONS] + LIBRARIES_BYTES


def largest_batch(
    config: RunConfig,
    memory: float,
    memory_of: Callable[[RunConfig], float],
    *,
    rematerialise: bool,
) -> int:
    """The rows of a device that fit its memory in one piece: a line through the memory of the
    config's own rows and of a few.

    Args:
      config: its mesh has no -1.
      memory_of: config -> bytes of its training step on one device.
    """
    share, inner = batch_devices(config), config.inner
    own = inner.batch_size // (inner.accumulation_steps * share)
    few, many = tried = (FEW_ROWS, own if own > FEW_ROWS else 2 * FEW_ROWS)
    needed = []
    for rows in tried:
        changes = {"batch_size": rows * share, "accumulation_steps": 1}
        changed = dataclasses.replace(inner, rematerialise=rematerialise, **changes)
        needed.append(memory_of(dataclasses.replace(config, inner=changed)))
    of_row = (needed[1] - needed[0]) / (many - few)
    return max(0, int(many + (memory - needed[1]) // of_row))


def batch_devices(config: RunConfig) -> int:
    """The devices that share the rows of a batch. An axis of -1 counts as one."""
    return math.prod(max(1, getattr(config.mesh, axis)) for axis in config.mesh.rules.batch)


def step_memory(config: RunConfig) -> int:
    """Bytes while the largest module steps, whatever the number of its paths."""
    return OUTER_SIZES * VALUE_BYTES * max(module_parameters(config).values())


def step_flops(config: RunConfig) -> int:
    """Floating point operations of an inner step of one path."""
    tokens = config.inner.batch_size * config.data.length
    return tokens * flops_per_token(config.model, config.data.length)


def activation_bytes(config: RunConfig) -> int:
    """Bytes of activations on one device, for the rows that it works through at once."""
    inner, model = config.inner, config.model
    rows = math.ceil(inner.batch_size / (inner.accumulation_steps * batch_devices(config)))
    tokens = rows * config.data.length
    of_block = tokens * _block_values(model, config.data.length)
    layer_input = tokens * model.d_model
    if inner.rematerialise:
        blocks = model.num_layers * layer_input + of_block
    else:
        blocks = model.num_layers * of_block
    # The loss holds logits, their softmax and the gradient of both.
    logits = 3 * tokens * model.vocab_size // inner.loss_chunks
    return VALUE_BYTES * (blocks + logits)


def _block_values(model: ModelConfig, length: int) -> int:
    """Values that one token leaves in a block: both norms' inputs and outputs, queries, keys and
    values, attention's weights and what it adds, the gated feed-forward.
    """
    heads = (2 * model.num_heads + 2 * model.kv_heads) * model.head_size
    weights = model.num_heads * length * 5 // 8  # Blocks of queries see 5/8 of the square.
    return 5 * model.d_model + heads + weights + 4 * model.d_ff
