"""Names that users give to workers, launchers and volunteers; files are named after them."""

import re

from dipaco.control.errors import BadName

_NAME = re.compile(r"[^\W_][\w.-]*")
MOST_BYTES = 100  # launchers and files add to it


def check_name(name: str) -> str:
    """The name itself. Raises `BadName`."""
    if not _NAME.fullmatch(name) or len(name.encode()) > MOST_BYTES:
        raise BadName(name=name)
    return name
