"""A path's parts are the union of its modules' mappings, and `dissect` divides them again. Any
mapping will do, with or without arrays.

`assemble(dissect(parts)) == parts` for every topology and path.
"""

from collections.abc import Mapping
from typing import Any

from dipaco.topology.ids import ModuleId
from dipaco.topology.topology import Topology

Parts = Mapping[str, Any]


def assemble(
    modules: Mapping[ModuleId, Parts], path_modules: tuple[ModuleId, ...]
) -> dict[str, Any]:
    """The parts of one path: the union of its modules' parts, sorted by name (as JAX orders
    mappings).
    """
    parts = {name: part for module in path_modules for name, part in modules[module].items()}
    return dict(sorted(parts.items()))


def dissect(parts: Parts, topology: Topology, path: int) -> dict[ModuleId, dict[str, Any]]:
    """A path's parts, divided among the modules that own them."""
    return {
        module: {name: parts[name] for name in sorted(topology.parts_of(module))}
        for module in topology.modules_of(path)
    }
