"""The devices of this process that a run trains and scores on, and arrays on them."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dipaco.config import RunConfig, check_mesh
from dipaco.errors import MachineFault, SettingsDisagree
from dipaco.model.config import MESH_AXES, MeshConfig
from dipaco.model.errors import BadMesh, DevicesUnfit
from dipaco.model.kernels import check_kernel, target_devices
from dipaco.model.sharding import make_mesh


def training_mesh(config: RunConfig) -> Mesh:
    """The mesh of the run.

    Raises:
      BadMesh: this process has too few devices for it.
      SettingsDisagree: batches cannot be divided among these, or hosts have more.
    """
    mesh = make_mesh(config.mesh)
    _check_sizes(config, mesh.shape, len(target_devices()), jax.process_count())
    return mesh


def check_number(config: RunConfig, num_devices: int, hosts: int) -> None:
    """Checks whether a worker elsewhere, with so many devices on all its hosts, can train a run.
    Raises `BadMesh`, `SettingsDisagree` as `training_mesh` does there.
    """
    shape = config.mesh.shape(num_devices)
    _check_sizes(config, dict(zip(MESH_AXES, shape, strict=True)), num_devices, hosts)


def _check_sizes(config: RunConfig, sizes: Mapping[str, int], num_devices: int, hosts: int) -> None:
    """Raises `SettingsDisagree`. `sizes` are the devices along each axis of the mesh."""
    check_mesh(config, sizes)
    taken = math.prod(sizes.values())
    if hosts > 1 and taken < num_devices:
        raise SettingsDisagree(
            problem=f"the hosts of this worker have {num_devices} devices together, and "
            f"the mesh takes {taken}; one axis of `mesh` may be -1, the rest"
        )


def check_devices(config: RunConfig) -> None:
    """For a process that is to train: whether it can, on its devices.

    Raises:
      BadMesh: they are too few.
      DevicesUnfit: batches cannot be divided among them, or hosts have more than the mesh.
      KernelUnavailable: the attention kernel that is asked for does not run on them.
    """
    try:
        training_mesh(config)
    except SettingsDisagree as error:
        raise DevicesUnfit(**error.values) from error
    check_kernel(config.model)


def why_not_trained(config: RunConfig) -> MachineFault | None:
    """The error that `check_devices` raises. None: this process can train the run."""
    try:
        check_devices(config)
    except MachineFault as fault:
        return fault
    return None


def scoring_mesh(config: RunConfig) -> Mesh:
    """The mesh of the run, or one device if this process has too few for it. Raises `BadMesh`:
    several hosts have too few together.
    """
    try:
        return make_mesh(config.mesh)
    except BadMesh:
        if jax.process_count() > 1:
            raise
        return make_mesh(MeshConfig())


def whole_everywhere(mesh: Mesh) -> NamedSharding | None:
    """For outputs that the host reads: they must be whole on each host. None = one device."""
    return NamedSharding(mesh, PartitionSpec()) if mesh.size > 1 else None


def put(tree: Any, shardings: Any, may_alias: bool | None = None) -> Any:
    """Puts arrays on a mesh. All hosts hold whole arrays, and each puts its own devices' part.

    Args:
      may_alias: False copies on CPU too: a step cannot give its result the memory of an array that
        NumPy owns. None: JAX chooses.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings, may_alias=may_alias)

    def put_one(sharding, leaf):
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(put_one, jax.tree.broadcast(shardings, tree), tree)
