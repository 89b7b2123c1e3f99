"""A level is a set of part names with a number of alternatives for them."""

import dataclasses
import re

from dipaco.topology.errors import BadTopology

SHARED = 1  # one module, used by all paths
PER_PATH = 0  # one module for each path. Such a level does not multiply the number of paths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Level:
    """A set of part names, with `experts` interchangeable modules for them.

    A level may own any parts, neighbours or not, or none: an empty level of P experts only
    multiplies the number of paths by P, which expresses P replicas of shared parameters (DiLoCo).
    """

    name: str
    """Its name in lower case, as in the modules' names: `early`."""
    parts: tuple[str, ...] = ()
    """Parts of the model that it owns, by name: `embed`, `block_00`, `head`."""
    experts: int = SHARED
    """Modules that a path chooses from (DiPaCo's K, section 2.3): 1 (`SHARED`) = one, used by all
    paths; 0 (`PER_PATH`) = one for each path."""

    def __post_init__(self):
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", self.name):
            raise BadTopology(
                problem=f"`{self.name}` cannot name a level. Use lower-case letters, digits and _, "
                "a letter first, 64 at most."
            )
        if self.experts < 0:
            raise BadTopology(
                problem=f"Level `{self.name}` has {self.experts} experts. Expected 1 (shared), "
                f"2 or more, or {PER_PATH} (one per path)."
            )
        if len(set(self.parts)) != len(self.parts):
            raise BadTopology(
                problem=f"Level `{self.name}` names a part twice: {', '.join(self.parts)}."
            )

    @property
    def is_choice(self) -> bool:
        """True if a path chooses a module here. The level then multiplies the number of paths."""
        return self.experts > 1


def blocks(first: int, last: int | None = None) -> tuple[str, ...]:
    """Names of the blocks `first` to `last`, both included: `blocks(0, 1) == ("block_00",
    "block_01")`. Without a last one, of the first alone.
    """
    last = first if last is None else last
    return tuple(f"block_{i:02d}" for i in range(first, last + 1))
