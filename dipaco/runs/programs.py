"""The compiled programs with which a run trains. All arms share them."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xxhash
from jax.experimental import multihost_utils

from dipaco.caches import cache_folder
from dipaco.config import RunConfig
from dipaco.inner.absent import PRESENT
from dipaco.inner.optimizer import make_optimizer
from dipaco.inner.state import Handover, PathState, state_like
from dipaco.inner.step import LossFn, gradient_function, make_step, path_loss
from dipaco.inner.synchronous import make_module_update
from dipaco.model.loss import LogitsLoss
from dipaco.model.sharding import batch_sharding, parts_shardings
from dipaco.model.spec import initialise
from dipaco.runs.machine import machine
from dipaco.runs.meshes import put, training_mesh


class Programs:
    """Programs compiled for one config on the devices of this process.

    Args:
      loss_rule: gives the run's own path loss, or None. Called when training is compiled.

    Raises:
      BadMesh, SettingsDisagree: as `training_mesh`.
    """

    def __init__(
        self, config: RunConfig, loss_rule: Callable[[], LogitsLoss | None] = lambda: None
    ):
        self.config = config
        self._loss_rule = loss_rule
        self.mesh = training_mesh(config)
        rules = dataclasses.asdict(config.mesh.rules)
        self._parts_shardings = parts_shardings(config.model, self.mesh, rules)
        self.batch_sharding = batch_sharding(self.mesh, rules)
        self._replicated = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        self._optimizer = make_optimizer(config.inner)
        self._module_optimizer = make_optimizer(config.inner, is_clipped=True)

    def initial_parts(self) -> Any:
        """Parameters of a model that has not been trained, from the run's seed."""
        # Not under one `jit`: leaves of equal shape then share a program, which compiles sooner.
        return jax.device_get(initialise(self.config.model, _key(self.config.seed)))

    @functools.cached_property
    def state_like(self) -> PathState:
        """Shapes and types of what a path carries."""
        return state_like(self.config.model, self._optimizer)

    def place(self, parts: Any, optimizer_state: Any | None, step: int) -> PathState:
        """A path's state on the mesh. Without an optimizer state, it starts at zero."""
        return self.place_taken(Handover(PathState(parts, optimizer_state, step)))

    def place_taken(self, handover: Handover) -> PathState:
        """Same as `place`, leaf by leaf: each is freed on the host when it is on the mesh."""
        leaves, structure = jax.tree.flatten(self.on_host(*handover.take()))
        shardings = jax.tree.leaves(jax.tree.broadcast(self.state_shardings, self.state_like))
        leaves.reverse()
        return jax.tree.unflatten(
            structure, [put(leaves.pop(), sharding, may_alias=False) for sharding in shardings]
        )

    def on_host(self, parts: Any, optimizer_state: Any | None, step: int) -> PathState:
        """A path's state in NumPy arrays. Without an optimizer state, it starts at zero."""
        if optimizer_state is None:
            optimizer_state = jax.tree.map(
                lambda leaf: np.zeros(leaf.shape, leaf.dtype), self.state_like.optimizer
            )
        return PathState(parts, optimizer_state, np.int32(step))

    def place_batch(self, batch: Any) -> Any:
        """A batch on the mesh, rows divided over the data axes."""
        shardings = {
            name: self._replicated if name == PRESENT else self.batch_sharding for name in batch
        }
        return put(batch, shardings)

    def gather(self, tree: Any) -> Any:
        """Gathers the arrays of a mesh of several hosts whole on each of them, leaf by leaf: the
        devices have room for one leaf besides the state.
        """
        return multihost_utils.process_allgather(tree, tiled=True)

    @functools.cached_property
    def state_shardings(self) -> PathState:
        optimizer = _beside(self._parts_shardings, self.state_like.optimizer, self._replicated)
        return PathState(self._parts_shardings, optimizer, self._replicated)

    @functools.cached_property
    def step(self) -> Any:
        """One inner step of any arm."""
        return make_step(self._loss(), self.config.inner, self.state_shardings)

    @functools.cached_property
    def gradient(self) -> Any:
        """(parts, batch) -> (gradient, metrics) of a path that steps together with others."""
        return jax.jit(gradient_function(self._loss(), self.config.inner))

    @functools.cached_property
    def update(self) -> Any:
        """One step of a module, with the mean of its paths' gradients (`inner.synchronous`)."""
        return make_module_update(self.config.inner)

    def module_state_like(self, parts: Any) -> Any:
        """Shapes and types of the optimiser state of a module whose paths step together."""
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), parts)
        return jax.eval_shape(self._module_optimizer.init, like)

    def place_module(self, parts: Any, optimizer_state: Any | None) -> tuple[Any, Any]:
        """A module and its optimiser state on the mesh. Without a state, it starts at zero."""
        like = self.module_state_like(parts)
        if optimizer_state is None:
            optimizer_state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
        shardings = {name: self._parts_shardings[name] for name in parts}
        of_state = _beside(shardings, like, self._replicated)
        return jax.device_put(parts, shardings), jax.device_put(optimizer_state, of_state)

    def _loss(self) -> LossFn:
        config, rows_sharding = self.config, self.batch_sharding if self.mesh.size > 1 else None
        return path_loss(config.model, config.inner, rows_sharding, self._loss_rule())


def _beside(shardings: Any, state: Any, otherwise: Any) -> Any:
    """For each leaf of an optimiser's state the sharding of the parameter that it belongs to, whose
    path ends its own. Leaves that belong to none, such as a count, get `otherwise`.
    """
    of_parameters = dict(jax.tree_util.tree_leaves_with_path(shardings))

    def place(path: tuple[Any, ...], _: Any) -> Any:
        ends = (path[start:] for start in range(len(path)))
        return next((of_parameters[end] for end in ends if end in of_parameters), otherwise)

    return jax.tree_util.tree_map_with_path(place, state)


def _key(seed: int) -> jax.Array:
    """A key from a seed of up to 63 bits. JAX's own takes the low 32 of them."""
    high, low = divmod(seed, 1 << 32)
    key = jax.random.key(low)
    return jax.random.fold_in(key, high) if high else key


def use_compilation_cache(folder: Path | None = None) -> None:
    """Keeps compiled programs in a folder per kind of machine, below `folder` or, without one, the
    folder of caches. Changes no result.
    """
    folder = folder or cache_folder() / "compiled"
    kind = machine()
    key = "".join(letter if letter.isalnum() else "-" for letter in kind.partition(", jax ")[0])
    name = f"{key[:100]}-{xxhash.xxh3_64_hexdigest(kind.encode())}"
    jax.config.update("jax_compilation_cache_dir", str(folder / name))
    # Small programs too: there are dozens, and each is read in a few milliseconds.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
