"""The needs of each program of a worker on one device, by the compiler.

Programs are lowered from shapes alone, and compiled for devices that need not be here. Floating
point operations are those of all products that JAX traces. Bytes are counted in the compiled
program (`hlo.py`), for TPUs. Figures are kept in the cache folder.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable, Generator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.extend.core import jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import SingleDeviceSharding

import dipaco.inner
import dipaco.model
import dipaco.runs.forecast
from dipaco.caches import cache_folder
from dipaco.config import RunConfig
from dipaco.errors import ExtraMissing
from dipaco.files import digest_of, make_folder, write_atomically
from dipaco.model import inference
from dipaco.model.cache import describe_cache
from dipaco.model.config import ModelConfig
from dipaco.model.kernels import compiling_for, target_devices
from dipaco.model.spec import describe
from dipaco.runs.errors import UnknownDevice
from dipaco.runs.forecast.devices import Device
from dipaco.runs.forecast.hlo import moved_bytes
from dipaco.runs.forecast.memory import step_flops
from dipaco.runs.programs import Programs
from dipaco.runs.scoring_programs import ScoringPrograms

TRAINING = "training step"
DECODED_ROWS, PREFILLED_ROWS, PREFILLED = 32, 8, 64
REFUSED = re.compile(r"(?:temporaries \(|Used )([\d.]+)([KMG])")
Lowered = tuple[Any, tuple[Any, ...], int]  # program, arguments, devices
# It does not look for the slice in a cloud, and shares the compiler with other processes.
ONLY_COMPILES = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
KEEPS_PROGRAMS = "jax_enable_compilation_cache"
SOURCES = (dipaco.model, dipaco.inner, dipaco.runs.forecast)
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """The needs of a program on each device of its mesh."""

    memory: int  # bytes: arguments, results and scratch
    flops: float
    model_flops: float  # without computing anything twice
    moved: int | None  # bytes to and from its memory. None: not known.


def devices_of(device: Device) -> Sequence[jax.Device]:
    """Descriptions of the devices of a slice of TPUs.

    Raises:
      ExtraMissing: the compiler is not installed.
      UnknownDevice: it knows no such slice.
    """
    os.environ.update(ONLY_COMPILES)
    from jax.experimental import topologies

    if not _version("libtpu"):
        feature = f"`--device {device.name}`"
        raise ExtraMissing(feature=feature, package="libtpu", extra="tpu-compile")
    try:
        return topologies.get_topology_desc(
            device.topology, "tpu", chip_config_name=device.kind.cores
        ).devices
    except jax.errors.JaxRuntimeError:
        least = f"{device.name.partition(':')[0]}:{device.kind.least}"
        raise UnknownDevice(name=device.name, known=least) from None


@contextlib.contextmanager
def _only_compiling() -> Generator[None]:
    """Takes `XLA_FLAGS` away meanwhile: the compiler of TPUs ends the process at a flag of CPUs.
    JAX keeps no program, since it reads none again for devices that are not here.
    """
    flags = os.environ.pop("XLA_FLAGS", None)
    keeps = getattr(jax.config, KEEPS_PROGRAMS)
    jax.config.update(KEEPS_PROGRAMS, False)
    compilation_cache.reset_cache()  # JAX looks at the setting once.
    try:
        yield
    finally:
        jax.config.update(KEEPS_PROGRAMS, keeps)
        compilation_cache.reset_cache()
        if flags is not None:
            os.environ["XLA_FLAGS"] = flags


def needs_of(config: RunConfig, devices: Sequence[jax.Device], name: str) -> Needs:
    """The needs of a program of a worker (`program_names`), compiled now or from the cache."""
    file = cache_folder() / "plans" / f"{_key(config, devices, name)}.json"
    if not file.is_file():
        with compiling_for(devices), _only_compiling():
            is_training = name == TRAINING
            needs = _compiled(_programs(config)[name], step_flops(config) if is_training else None)
        make_folder(file.parent)
        write_atomically(file, json.dumps(dataclasses.asdict(needs)).encode())
    return Needs(**json.loads(file.read_bytes()))


def memory_of_step(config: RunConfig, devices: Sequence[jax.Device]) -> int:
    """Bytes of the training step on each device."""
    return needs_of(config, devices, TRAINING).memory


def program_names(config: RunConfig) -> tuple[str, ...]:
    """The programs that a worker runs, and those that decode."""
    return tuple(_programs(config))


def _programs(config: RunConfig) -> dict[str, Callable[[], Lowered]]:
    """Name -> the program for the devices that programs are compiled for, and its arguments."""
    model, length = config.model, config.data.length
    rows = config.evaluation.batch_size

    def training() -> Lowered:
        programs = Programs(config)
        state = _placed(programs.state_like, programs.state_shardings)
        integers = _integers(config.inner.batch_size, length, sharding=programs.batch_sharding)
        batch = dict.fromkeys(("tokens", "segments", "positions"), integers)
        rate = jax.ShapeDtypeStruct((), jnp.float32)
        return programs.step, (state, batch, rate), programs.mesh.size

    def reading(name: str, arrays: int) -> Lowered:
        programs = ScoringPrograms(config)
        parts = _placed(describe(model), programs.parts_shardings)
        tokens = [_integers(rows, length)] * arrays
        return getattr(programs, name), (parts, *tokens), programs.mesh.size

    def serving(rows: int, tokens: int) -> Lowered:
        device = SingleDeviceSharding(target_devices()[0])
        prepared = jax.eval_shape(functools.partial(inference.prepare, model), _shapes_of(model))
        cache = describe_cache(model, rows, length)
        cache.pop("length")

        def served(prepared: Any, tokens_BT: jax.Array, starts_B: jax.Array, blocks: Any) -> Any:
            x_DN, blocks = inference.extend(model, prepared, tokens_BT, starts_B, blocks)
            return (inference.logits(model, prepared, x_DN) if tokens == 1 else None), blocks

        program = jax.jit(served, donate_argnums=3)
        tokens_BT, starts_B = _integers(rows, tokens), _integers(rows)
        return program, (_placed(prepared, device), tokens_BT, starts_B, _placed(cache, device)), 1

    return {
        TRAINING: training,
        f"scores of {rows} rows": lambda: reading("log_likelihood_program", 2),
        f"features of {rows} rows": lambda: reading("hidden_program", 1),
        f"prefill of {PREFILLED_ROWS} x {PREFILLED} tokens": lambda: serving(
            PREFILLED_ROWS, PREFILLED
        ),
        f"a token of {DECODED_ROWS} rows": lambda: serving(DECODED_ROWS, 1),
    }


def _key(config: RunConfig, devices: Sequence[jax.Device], name: str) -> str:
    """Whatever a program is made of: the settings, the compiler, and the source."""
    sizes = config.data.length, config.evaluation.batch_size
    settings = [repr(each) for each in (config.model, config.inner, config.mesh, sizes)]
    versions = [_version(package) for package in ("jax", "jaxlib", "libtpu")]
    where = f"{len(devices)} x {devices[0].device_kind}"
    return digest_of(name, where, *settings, *versions, *_sources())


@functools.cache
def _sources() -> tuple[str, ...]:
    files = (file for room in SOURCES for file in sorted(Path(room.__path__[0]).glob("*.py")))
    return tuple(file.read_text() for file in files)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _shapes_of(model: ModelConfig) -> Any:
    return jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), describe(model))


def _integers(*shape: int, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)


def _placed(like: Any, shardings: Any) -> Any:
    """Shapes and types without arrays, each with its place."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        like,
        jax.tree.broadcast(shardings, like),
    )


def _compiled(make: Callable[[], Lowered], model_flops: float | None) -> Needs:
    program, arguments, num_devices = make()
    traced = program.trace(*arguments)
    needed, _ = dce_jaxpr(traced.jaxpr.jaxpr, [True] * len(traced.jaxpr.out_avals))
    flops, moved = flops_of(needed), None
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if (found := REFUSED.search(str(error))) is None:
            raise
        shapes = (
            (leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape, leaf.dtype)
            for leaf in jax.tree.leaves(arguments)
        )
        memory = sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)
        memory += float(found[1]) * UNITS[found[2]]
    else:
        stats = compiled.memory_analysis()
        memory = stats.argument_size_in_bytes + stats.temp_size_in_bytes
        memory += stats.output_size_in_bytes - stats.alias_size_in_bytes
        if target_devices()[0].platform == "tpu":
            moved = moved_bytes(compiled.as_text())
    return Needs(
        memory=round(memory),
        flops=flops / num_devices,
        model_flops=(flops if model_flops is None else model_flops) / num_devices,
        moved=moved,
    )


def flops_of(jaxpr: Any) -> float:
    """Floating point operations of all products of a program, on all devices."""
    total = 0.0
    for equation in jaxpr.eqns:
        params, times = equation.params, 1.0
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
            total += 2 * math.prod(result) * math.prod(left[axis] for axis in contracted)
        elif equation.primitive.name == "scan":
            times = params["length"]
        elif equation.primitive.name == "pallas_call":
            times = math.prod(params["grid_mapping"].grid) * _unmasked(equation)
        elif equation.primitive.name == "shard_map":
            times = math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
        total += times * sum(map(flops_of, jaxprs_in_params(params)))
    return total


def _unmasked(kernel: Any) -> float:
    """The share of a kernel's blocks that it computes."""
    if not str(kernel.params["name"]).startswith("splash_mha"):
        return 1.0
    from dipaco.model.splash import unmasked_blocks

    queries = kernel.invars[kernel.params["grid_mapping"].num_index_operands]
    return unmasked_blocks(queries.aval.shape[-1], "dkv" in kernel.params["name"])
