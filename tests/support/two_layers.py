"""A model of two layers that trains by real inner steps in milliseconds, on paths with own data."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dipaco import trees
from dipaco.inner.config import InnerSettings
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.phase import run_phase
from dipaco.inner.state import PathState
from dipaco.inner.step import make_step
from dipaco.outer.config import OuterSettings
from dipaco.topology import PER_PATH, Level, Topology, dissect

TAU, PHASES, RATE = 3, 3, 0.05
INNER = InnerSettings(steps=TAU, batch_size=4, clip_norm=1e6, warmup_steps=0)
PLAIN = OuterSettings(
    learning_rate=1.0, momentum=0.0, rescale_by_fan_in=False, weigh_by_documents=False
)
PAPER = OuterSettings(learning_rate=0.7, momentum=0.9, rescale_by_fan_in=False)


def loss_fn(parts, batch):
    """Summed squared error of a network with one hidden layer, and the number of targets."""
    hidden = jnp.tanh(batch["x"] @ parts["embed"]["w"])
    errors = hidden @ parts["head"]["w"] - batch["y"]
    return (errors**2).sum(), jnp.float32(errors.size)


def initial_parts():
    rng = np.random.default_rng(0)
    return {
        "embed": {"w": rng.normal(size=(3, 4)).astype(np.float32)},
        "head": {"w": rng.normal(size=(4, 1)).astype(np.float32)},
    }


def batch_of(path, step):
    """Each path has data of its own."""
    rng = np.random.default_rng([path, step])
    x = rng.normal(path, 1, size=(4, 3)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(axis=1, keepdims=True) + path).astype(np.float32)}


STEP = make_step(loss_fn, INNER)


def train_path(path, phase, parts, carried):
    """Lines 5-10 of Algorithm 1, by the room `inner`."""
    optimizer, step = (
        (make_optimizer(INNER).init(parts), jnp.int32(0)) if carried is None else carried
    )
    state = jax.tree.map(jnp.array, PathState(parts, optimizer, step))
    batches = (batch_of(path, number) for number in itertools.count(phase * TAU))
    state = run_phase(state, batches, np.full(TAU, RATE, np.float32), STEP).state
    return state.parts, (state.optimizer, state.step)


def start(topology, parts=None):
    """Every module cut from the same model."""
    parts = parts or initial_parts()
    modules = {}
    for path in range(topology.num_paths):
        modules |= dissect(parts, topology, path)
    return modules


def dense(paths=1):
    """All shared, and an empty level that makes `paths` paths: DiLoCo; one path: a dense model."""
    return Topology(
        levels=(Level(name="all", parts=("embed", "head")), Level(name="replica", experts=paths))
    )


GRID = Topology(
    levels=(
        Level(name="early", parts=("embed",), experts=2),
        Level(name="late", parts=("head",), experts=2),
    )
)
PRIVATE = Topology(
    levels=(
        Level(name="early", parts=("embed",), experts=2),
        Level(name="own", parts=("head",), experts=PER_PATH),
    )
)
FLAT = Topology(levels=(Level(name="all", parts=("embed", "head"), experts=3),))


def assert_close(got, expected, rtol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, atol=1e-6), got, expected)


def digests(modules):
    return {module: trees.digest(parts) for module, parts in modules.items()}


# --- the same by optax alone ----------------------------------------------------------------------

ADAMW = optax.adamw(RATE, b1=0.9, b2=0.95, weight_decay=0.1)


@jax.jit
def adamw_step(parts, state, batch):
    gradient = jax.grad(lambda parts: loss_fn(parts, batch)[0] / 4)(parts)
    updates, state = ADAMW.update(gradient, state, parts)
    return optax.apply_updates(parts, updates), state
