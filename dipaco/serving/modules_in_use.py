"""The modules that some paths go through, and their bytes together, kept as paths come and go.

Paths share modules, so neither follows from the paths' sizes; to count all of them each time would
take longer than reading a small path does.
"""

from collections import Counter
from collections.abc import Iterable, Mapping


class ModulesInUse:
    """Of a set of paths. Not thread-safe.

    Args:
      sizes: digest -> bytes of a module; may change between calls, except as `resize` says.

    Attributes:
      num_bytes: of all modules together.
    """

    def __init__(self, sizes: Mapping[str, int]):
        self._sizes, self.num_bytes = sizes, 0
        self._num_paths: Counter[str] = Counter()  # digest -> of the paths, those through it

    def add(self, path: Iterable[str]) -> None:
        """A path, by the digests of its modules, that is not in the set."""
        for digest in set(path):
            self._num_paths[digest] += 1
            if self._num_paths[digest] == 1:
                self.num_bytes += self._sizes[digest]

    def remove(self, path: Iterable[str]) -> list[str]:
        """Of a path in the set, the modules that no other goes through."""
        unused = []
        for digest in set(path):
            self._num_paths[digest] -= 1
            if not self._num_paths[digest]:
                del self._num_paths[digest]
                self.num_bytes -= self._sizes[digest]
                unused.append(digest)
        return unused

    def resize(self, digest: str, more_bytes: int) -> None:
        """A module is to take so many more bytes from now on, or fewer."""
        if digest in self._num_paths:
            self.num_bytes += more_bytes

    def bytes_with(self, path: Mapping[str, int]) -> int:
        """As `num_bytes`, with a path more: digest -> bytes of its modules."""
        return self.num_bytes + sum(
            size for digest, size in path.items() if digest not in self._num_paths
        )

    def copy(self) -> "ModulesInUse":
        """A set of the same paths."""
        other = ModulesInUse(self._sizes)
        other.num_bytes, other._num_paths = self.num_bytes, self._num_paths.copy()
        return other
