"""Parameters and batches on a mesh of devices: logical axes -> mesh axes.

The training step is written for one device. Its arrays are placed by these rules, and XLA's
partitioner adds the communication: the rows of the batch are divided along `data` and `fsdp`,
d_model of the parameters along `fsdp` (fully sharded: ZeRO, arXiv 1910.02054), heads, feed-forward
and vocabulary along `tensor` (Megatron, arXiv 1909.08053). An axis whose size is not divisible by
its devices stays whole on each of them.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dipaco.model.config import MESH_AXES, MeshConfig, ModelConfig, ShardingRules
from dipaco.model.kernels import target_devices
from dipaco.model.spec import ParamSpec, Tree, describe

Rules = Mapping[str, tuple[str, ...]]
RULES: Rules = dataclasses.asdict(ShardingRules())


def make_mesh(mesh_config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh with axes data, fsdp and tensor over `devices` (None: all that programs are compiled
    for).

    Raises:
      BadMesh: the sizes asked for do not fit the devices.
    """
    devices = target_devices() if devices is None else devices
    shape = mesh_config.shape(len(devices))
    return Mesh(np.array(devices[: math.prod(shape)]).reshape(shape), MESH_AXES)


def parts_shardings(config: ModelConfig, mesh: Mesh, rules: Rules = RULES) -> dict[str, Tree]:
    """A `NamedSharding` for every parameter, in a tree shaped like the parts."""
    return shardings(describe(config), mesh, rules)


def shardings(specs: Tree, mesh: Mesh, rules: Rules = RULES) -> Tree:
    """The same for any tree of `ParamSpec`, for instance a cache."""
    return jax.tree.map(lambda spec: _sharding(spec, mesh, rules), specs)


def batch_sharding(mesh: Mesh, rules: Rules = RULES) -> NamedSharding:
    """For arrays [B, ...], divided by rows: the batch's mesh axes must divide B."""
    return NamedSharding(mesh, PartitionSpec(rules["batch"]))


def _sharding(spec: ParamSpec, mesh: Mesh, rules: Rules) -> NamedSharding:
    places = []
    for size, axis in zip(spec.shape, spec.axes, strict=True):
        mesh_axes = rules.get(axis, ()) if axis is not None else ()
        num_devices = math.prod(mesh.shape[mesh_axis] for mesh_axis in mesh_axes)
        places.append(mesh_axes if mesh_axes and size % num_devices == 0 else None)
    return NamedSharding(mesh, PartitionSpec(*places))
