"""The compiled step of a run, on one device and on eight."""

import dataclasses
import functools
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from dipaco.config import BaseSettings
from dipaco.data.config import DataConfig
from dipaco.inner.config import InnerSettings
from dipaco.model.config import MeshConfig, ShardingRules, part_names
from dipaco.model.spec import initialise
from dipaco.runs.programs import Programs
from dipaco.topology import Level, Topology
from tests.support.tiny_run import TOY

MODEL = dataclasses.replace(TOY.model, vocab_size=512, d_model=16, num_layers=1, d_ff=32)
CONFIG = dataclasses.replace(
    TOY,
    model=MODEL,
    topology=Topology(levels=(Level(name="all", parts=part_names(MODEL)),)),
    data=DataConfig(length=64),
    base=BaseSettings(steps=10),
    phases=2,
    inner=InnerSettings(steps=5, batch_size=8, learning_rate=1e-2, warmup_steps=2),
)


def batch_of(seed: int, lengths_B: np.ndarray) -> dict[str, np.ndarray]:
    tokens = np.random.default_rng(seed).integers(1, 512, (8, 64)).astype(np.int32)
    return {
        "tokens": tokens,
        "segments": (np.arange(64) < lengths_B[:, None]).astype(np.int32),
        "positions": np.broadcast_to(np.arange(64, dtype=np.int32), (8, 64)),
    }


@functools.cache
def three_steps(
    mesh: MeshConfig, settings: tuple = (), *, uneven: bool = False
) -> tuple[dict, list[float], jax.Array]:
    """Of full rows, or of rows of 8, 16, ... tokens, so that pieces of a batch count unequally."""
    inner = dataclasses.replace(CONFIG.inner, **dict(settings))
    programs = Programs(dataclasses.replace(CONFIG, mesh=mesh, inner=inner))
    state = programs.place(programs.initial_parts(), None, 0)
    lengths_B = np.arange(8, 72, 8) if uneven else np.full(8, 64)
    losses = []
    for seed in range(3):
        batch = batch_of(seed, lengths_B)
        state, metrics = programs.step(state, programs.place_batch(batch), np.float32(1e-2))
        losses.append(float(metrics.loss))
    return jax.device_get(state.parts), losses, state.parts["block_00"]["feed_forward"]["up"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [MeshConfig(data=8), MeshConfig(data=2, fsdp=2, tensor=2), MeshConfig(fsdp=-1)],
    ids=["data", "all three", "fully sharded"],
)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_steps_on_eight_devices_equal_those_on_one(mesh, optimizer):
    settings = (("optimizer", optimizer),)
    parts, losses, _ = three_steps(MeshConfig(), settings)
    sharded_parts, sharded_losses, weight = three_steps(mesh, settings)
    np.testing.assert_allclose(losses, sharded_losses, rtol=1e-5)
    # AdamW divides by the square root of tiny second moments, so parameters are a little further
    # apart: of three steps of 1e-2 each.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), parts, sharded_parts)
    assert len(weight.sharding.device_set) == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "may_move_activations"),
    [(MeshConfig(fsdp=8), False), (MeshConfig(data=2, fsdp=2, tensor=2), True)],
    ids=["fully sharded", "all three"],
)
def test_devices_exchange_parameters_and_not_hidden_states(mesh, may_move_activations, capfd):
    programs = Programs(dataclasses.replace(CONFIG, mesh=mesh))
    state = programs.place(programs.initial_parts(), None, 0)
    batch = programs.place_batch(batch_of(0, np.full(8, 64)))
    text = programs.step.lower(state, batch, np.float32(1e-2)).compile().as_text()
    assert "rematerialization" not in capfd.readouterr().err  # XLA's word for giving up
    sent = re.findall(r"= (.*) (?:all-gather|all-reduce|all-to-all|collective-permute)\(", text)
    assert sent
    if not may_move_activations:  # 64 tokens to a row; no parameter has such an axis
        assert [shapes for shapes in sent if re.search(r"[\[,]64[,\]]", shapes)] == []


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(MeshConfig(), id="one"),
        pytest.param(MeshConfig(data=2), id="two devices", marks=pytest.mark.slow),
    ],
)
def test_settings_that_save_memory_train_like_the_plain_step(mesh):
    saving = (("loss_chunks", 4), ("rematerialise", True), ("accumulation_steps", 4))
    parts, losses, _ = three_steps(MeshConfig(), uneven=True)
    saved_parts, saved_losses, _ = three_steps(mesh, saving, uneven=True)
    np.testing.assert_allclose(losses, saved_losses, rtol=1e-5)
    # Of three steps of 1e-2 each.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), parts, saved_parts)


def test_the_rules_of_the_config_decide_what_is_sharded():
    def placed(rules):
        mesh = MeshConfig(fsdp=4, tensor=2, rules=rules)
        programs = Programs(dataclasses.replace(CONFIG, mesh=mesh))
        state = programs.place(programs.initial_parts(), None, 0)
        moment = state.optimizer[1].mu["block_00"]["feed_forward"]["up"]
        assert moment.sharding == state.parts["block_00"]["feed_forward"]["up"].sharding
        return moment

    assert not placed(ShardingRules()).sharding.is_fully_replicated
    assert placed(ShardingRules(embed=(), feed_forward=())).sharding.is_fully_replicated


def test_every_seed_has_parameters_of_its_own():
    def table(seed):
        return Programs(dataclasses.replace(CONFIG, seed=seed)).initial_parts()["embed"]["table"]

    seeds = (5, 6, 5 + 2**32, 5 + 2**33)
    assert len({table(seed).tobytes() for seed in seeds}) == len(seeds)
    alone = initialise(CONFIG.model, jax.random.key(5))["embed"]["table"]
    np.testing.assert_array_equal(table(5), alone)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_steps_of_gigabytes_find_their_memory_again_and_it_is_returned_after_a_task():
    """By page faults: one page of each MiB is touched."""
    source = """
import ctypes, resource
from dipaco.runs.allocator import keep_freed_memory, return_freed_memory
keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.malloc.argtypes = [ctypes.c_size_t]
def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = libc.malloc(5 << 30)
    for place in range(0, 5 << 30, 1 << 20):
        ctypes.c_char.from_address(block + place).value = b"x"
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(step(), step(), return_freed_memory(), step())
"""
    said = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True
    )
    first, kept, _, returned = said.stdout.split()
    assert int(kept) < 100
    assert min(int(first), int(returned)) > 1000
