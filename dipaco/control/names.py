"""Names that people give to workers, launchers and volunteers; files are called after them."""

import re

from dipaco.errors import BadName

_NAME = re.compile(r"[^\W_][\w.-]{0,199}")


def check_name(name: str) -> str:
    """The name itself. Raises `BadName`."""
    if not _NAME.fullmatch(name):
        raise BadName(name=name)
    return name
