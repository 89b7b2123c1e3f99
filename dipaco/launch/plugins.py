"""Finds from installed packages whether JAX may have other devices than the CPU, without JAX.

A GPU need not have a file: WSL and ROCm have no `/dev/nvidia0`.
"""

import importlib.util
import os
import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points

PLUGINS = "jax_plugins"  # the entry points and the namespace in which JAX looks for plugins
FROM_ENVIRONMENT = "PJRT_NAMES_AND_LIBRARY_PATHS"  # JAX's variable for more of them


def is_for_cpu_only(environment: Mapping[str, str] = os.environ) -> bool:
    """True if this JAX cannot use a GPU or TPU, whatever this machine has."""
    space = importlib.util.find_spec(PLUGINS)
    folders = () if space is None else space.submodule_search_locations
    return not (
        environment.get(FROM_ENVIRONMENT)
        or entry_points(group=PLUGINS)
        or any(pkgutil.iter_modules(folders))
        or importlib.util.find_spec("libtpu")
    )
