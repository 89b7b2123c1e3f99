"""The devices of this process that a run trains and scores on, and arrays on them."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dipaco.config import RunConfig, check_mesh
from dipaco.errors import MachineFault, SettingsDisagree
from dipaco.model.config import MeshConfig
from dipaco.model.errors import BadMesh, DevicesUnfit
from dipaco.model.kernels import check_kernel
from dipaco.model.sharding import make_mesh


def training_mesh(config: RunConfig) -> Mesh:
    """The mesh of the run.

    Raises:
      BadMesh: this process has too few devices for it.
      SettingsDisagree: batches cannot be divided among these, or hosts have more.
    """
    mesh = make_mesh(config.mesh)
    check_mesh(config, mesh.shape)
    if jax.process_count() > 1 and mesh.size < len(jax.devices()):
        raise SettingsDisagree(
            problem=f"the hosts of this worker have {len(jax.devices())} devices together, and "
            f"the mesh takes {mesh.size}; one axis of `mesh` may be -1, the rest"
        )
    return mesh


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
    """What `check_devices` raises; None: this process can train the run."""
    try:
        check_devices(config)
    except MachineFault as fault:
        return fault
    return None


def scoring_mesh(config: RunConfig) -> Mesh:
    """The mesh of the run; one device where this process has too few for it. Raises `BadMesh`:
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


def put(tree: Any, shardings: Any) -> Any:
    """Puts arrays on a mesh; on a mesh of several hosts, each puts its own devices' part of arrays
    that all of them hold.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def put_one(sharding, leaf):
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(put_one, jax.tree.broadcast(shardings, tree), tree)
