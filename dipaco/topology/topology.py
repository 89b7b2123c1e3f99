"""The topology: from levels to paths and modules, and back."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping

from dipaco.topology.errors import BadTopology, PartOwnedTwice, PartUnowned, UnknownPart
from dipaco.topology.ids import ModuleId
from dipaco.topology.levels import PER_PATH, Level


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """Levels in order. Paths are numbered 0..P-1, the last level with a choice changing fastest.

    P is the product of the experts of the levels with two or more. Shared and per-path levels do
    not multiply (DiPaCo section 2.3). Levels that own no part have no modules, but their experts
    count towards P.
    """

    levels: tuple[Level, ...]
    """Levels in order; each part of the model belongs to one of them."""

    def __post_init__(self):
        if not self.levels:
            raise BadTopology(problem="A topology needs at least one level.")
        owner: dict[str, str] = {}
        names: set[str] = set()
        for level in self.levels:
            if level.name in names:
                raise BadTopology(
                    problem=f"Two levels are called `{level.name}`. Rename one of them."
                )
            names.add(level.name)
            for part in level.parts:
                if part in owner:
                    raise PartOwnedTwice(part=part, first=owner[part], second=level.name)
                owner[part] = level.name
        if not owner:
            raise BadTopology(problem="No level owns any part.")

    @functools.cached_property
    def num_paths(self) -> int:
        return math.prod(level.experts for level in self.levels if level.is_choice)

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of experts at each level with a choice, in order: `(4, 4)` for a 4x4."""
        return tuple(level.experts for level in self.levels if level.is_choice)

    @functools.cached_property
    def modules(self) -> tuple[ModuleId, ...]:
        """Every module, level by level."""
        return tuple(
            ModuleId(level.name, expert)
            for level in self.levels
            if level.parts
            for expert in range(self._num_experts(level))
        )

    def modules_of(self, path: int) -> tuple[ModuleId, ...]:
        """The modules of a path, one per level that owns parts."""
        return self.modules_by_path[path]

    def paths_through(self, module: ModuleId) -> tuple[int, ...]:
        """P_m: the paths that use `module`, ascending."""
        return self._paths_by_module[module]

    def fan_in(self, module: ModuleId) -> int:
        """Number of paths through `module`."""
        return len(self._paths_by_module[module])

    def parts_of(self, module: ModuleId) -> tuple[str, ...]:
        """Names of the parts in `module`."""
        return self._level_by_name[module.level].parts

    def module_sizes(self, part_sizes: Mapping[str, int]) -> dict[ModuleId, int]:
        """The size of each module, from the sizes of the parts."""
        return {
            module: sum(part_sizes[part] for part in self.parts_of(module))
            for module in self.modules
        }

    def check_owns(self, part_names: Iterable[str]) -> None:
        """Raises unless each of the model's parts, and no other, is owned by a level.

        Raises:
          UnknownPart, PartUnowned.
        """
        known = tuple(part_names)
        for level in self.levels:
            for part in level.parts:
                if part not in known:
                    raise UnknownPart(level=level.name, part=part, known=", ".join(known))
        owned = {part for level in self.levels for part in level.parts}
        for part in known:
            if part not in owned:
                levels = "; ".join(
                    f"{v.name} = {', '.join(v.parts) or 'nothing'}" for v in self.levels
                )
                raise PartUnowned(part=part, owned=levels)

    def _num_experts(self, level: Level) -> int:
        return self.num_paths if level.experts == PER_PATH else level.experts

    @functools.cached_property
    def _level_by_name(self) -> dict[str, Level]:
        return {level.name: level for level in self.levels}

    @functools.cached_property
    def modules_by_path(self) -> tuple[tuple[ModuleId, ...], ...]:
        """`modules_of` each path."""
        return tuple(self._walk(path) for path in range(self.num_paths))

    def _walk(self, path: int) -> tuple[ModuleId, ...]:
        """Reads the path's number as digits, one per level with a choice."""
        stride, modules = self.num_paths, []
        for level in self.levels:
            if level.is_choice:
                stride //= level.experts
                expert = path // stride % level.experts
            else:
                expert = path if level.experts == PER_PATH else 0
            if level.parts:
                modules.append(ModuleId(level.name, expert))
        return tuple(modules)

    @functools.cached_property
    def _paths_by_module(self) -> dict[ModuleId, tuple[int, ...]]:
        paths: dict[ModuleId, list[int]] = {module: [] for module in self.modules}
        for path, modules in enumerate(self.modules_by_path):
            for module in modules:
                paths[module].append(path)
        return {module: tuple(through) for module, through in paths.items()}
