"""`ModuleId`: one alternative of one level, as a value and as text (`early/0003`)."""

from __future__ import annotations

import re
from typing import NamedTuple

from dipaco.topology.errors import BadModuleId

_TEXT = re.compile(r"([a-z][a-z0-9_]*)/(\d{4,})")


class ModuleId(NamedTuple):
    """One alternative of one level, (l, e) in DiPaCo section 2.3. Ids order by level name, then by
    expert.
    """

    level: str
    expert: int

    def __str__(self) -> str:
        return f"{self.level}/{self.expert:04d}"

    @classmethod
    def parse(cls, text: str) -> ModuleId:
        """The inverse of `str`. Raises `BadModuleId`."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise BadModuleId(text=text)
        return cls(match[1], int(match[2]))
