"""A release: an immutable, consistent set of modules that can be evaluated, exported and served.

It names for every path the digests of its modules, and the versions of what belongs to them:
tokenizer, router, shards. Never "the latest files".
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dipaco.receipt import Receipt
from dipaco.topology import ModuleId, Topology


class Release(NamedTuple):
    """The release of one arm at one phase."""

    arm: str
    phase: int
    objects: Mapping[str, Receipt]  # digest -> parameters of a module
    paths: tuple[Mapping[str, str], ...]  # per path: module -> digest
    companions: Mapping[str, str]  # `corpus`, `tokenizer`, `router`, `shards`, ... -> digest

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def modules_of(self, path: int) -> dict[ModuleId, Receipt]:
        """Receipts of the modules of one path."""
        return {
            ModuleId.parse(module): self.objects[digest]
            for module, digest in self.paths[path].items()
        }

    def to_json(self) -> str:
        return json.dumps(self._asdict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Release":
        body = json.loads(text)
        objects = {digest: Receipt(*receipt) for digest, receipt in body["objects"].items()}
        return cls(body["arm"], body["phase"], objects, tuple(body["paths"]), body["companions"])


def make_release(
    arm: str,
    phase: int,
    topology: Topology,
    modules: Sequence[Mapping[ModuleId, Receipt]],
    companions: Mapping[str, str],
) -> Release:
    """The release of an arm at the start of one phase.

    Args:
      modules: for every path where (at least) its modules lie: in that phase or, where
        paths stop early, at the path's best.
    """
    of_paths = [
        {module: modules[path][module] for module in topology.modules_of(path)}
        for path in range(topology.num_paths)
    ]
    return Release(
        arm=arm,
        phase=phase,
        objects={receipt.digest: receipt for path in of_paths for receipt in path.values()},
        paths=tuple(
            {str(module): receipt.digest for module, receipt in path.items()} for path in of_paths
        ),
        companions=dict(companions),
    )
