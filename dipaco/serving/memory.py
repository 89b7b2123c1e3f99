"""One budget for all that a serving process holds: the rows of the cache, the paths, their copies.

Counted are the pool of rows, the rows gathered from it for the steps, the modules stacked for them,
paths as they are read, and the base model that routes. Paths may take the rest of the budget.
"""

import contextlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dipaco.errors import BadSetting
from dipaco.model.config import ModelConfig
from dipaco.model.inference import prepare
from dipaco.model.spec import Parts, describe
from dipaco.serving.decoding.decode import LoopLimits, make_pool

READ_AT_ONCE = 4  # paths, where a part of the budget is enough for so many
READING_PART = 8
BUDGET = 0.8  # share of the free bytes. Programs, their scratch space and others take the rest
CGROUP = Path("/sys/fs/cgroup")  # version 2: the limits of a container


class MemoryBudget(NamedTuple):
    """The bytes that paths may take, beside the rows, the stacks and the base model."""

    paths: int  # all paths together
    reading: int  # the copies of modules that are being read, one path's or more


def memory_budget(
    model: ModelConfig,
    limits: LoopLimits,
    path_bytes: int | None,
    free_bytes: int,
    stack_bytes: int = 0,
) -> MemoryBudget:
    """Divides the budget. All paths may take `path_bytes`, None = the rest. Raises `BadSetting`:
    the rows, or the paths beside them, do not fit.
    """
    budget = int(BUDGET * free_bytes) - stack_bytes
    beside = f", beside {stack_bytes:,} for modules side by side" if stack_bytes else ""
    row_bytes = _num_bytes(jax.eval_shape(lambda: make_pool(model, 0)))  # the spare row
    one_path = _num_bytes(jax.eval_shape(lambda: zero_path(model)))
    reading = base = one_path  # the base model has the sizes of a path
    rows = row_bytes * (limits.rows + 1 + limits.rows)
    left = budget - reading - base - rows
    if left < one_path:
        most = ((budget - reading - base - one_path) // row_bytes - 1) // 2  # beside a spare one
        expected = f"at most {most:,}" if most > 0 else "a machine with more free memory"
        hint = (
            f" A row takes {2 * row_bytes:,} bytes, a path {one_path:,}, and all together may take "
            f"{budget:,} of the {free_bytes:,} that are free{beside}."
        )
        raise BadSetting(name="--rows", value=limits.rows, expected=expected, hint=hint)
    more = min((READ_AT_ONCE - 1) * one_path, (left - one_path) // READING_PART)
    reading, left = reading + more, left - more
    if path_bytes is not None and path_bytes > left:
        together = f"{rows:,} of the {budget:,} bytes that rows and paths may take together"
        hint = f" {limits.rows} rows take {together}."
        expected = f"at most {left:,} bytes"
        raise BadSetting(name="--path-bytes", value=path_bytes, expected=expected, hint=hint)
    return MemoryBudget(left if path_bytes is None else path_bytes, reading)


def zero_path(model: ModelConfig) -> Parts:
    """Parameters of the right shapes, all 0."""
    zeros = jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), describe(model))
    return prepare(model, zeros)


def free_bytes() -> int:
    """Free bytes of the first device: on CPU of the machine, or of its container."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return min(_free_of_machine(), _free_of_container(CGROUP))


def _free_of_machine() -> int:
    with contextlib.suppress(OSError):  # Linux: counts the page cache as free
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = dict(line.split(":") for line in lines)
        if "MemAvailable" in found:
            return int(found["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_of_container(folder: Path) -> int:
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max" is no number
        used = int((folder / "memory.current").read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = int(counts.get("inactive_file", 0))  # given back when it is needed
        return max(0, int((folder / "memory.max").read_text()) - used + cached)
    return 1 << 62


def _num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
