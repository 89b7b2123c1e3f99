"""A release: an immutable, consistent set that can be evaluated, exported and served.

For every path the digests of its modules, and the versions of what belongs to them: tokenizer,
router, shards. Never "the latest files".
"""

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

from dipaco.receipt import Receipt
from dipaco.topology import ModuleId, Topology


class Release(NamedTuple):
    """What goes out of one arm at one phase."""

    arm: str
    phase: int
    objects: Mapping[str, Receipt]  # digest -> parameters of a module
    paths: tuple[Mapping[str, str], ...]  # per path: module -> digest
    companions: Mapping[str, str]  # `corpus`, `tokenizer`, `router`, `shards`, ... -> digest

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def modules_of(self, path: int) -> dict[ModuleId, Receipt]:
        """Where the modules of one path lie."""
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
    modules: Mapping[ModuleId, Receipt],
    companions: Mapping[str, str],
) -> Release:
    """The release of all modules of an arm at the start of one phase."""
    return Release(
        arm=arm,
        phase=phase,
        objects={receipt.digest: receipt for receipt in modules.values()},
        paths=tuple(
            {str(module): modules[module].digest for module in topology.modules_of(path)}
            for path in range(topology.num_paths)
        ),
        companions=dict(companions),
    )
