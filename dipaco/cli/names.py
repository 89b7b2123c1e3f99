"""What a process that takes part in a run is called."""

import os
import socket

from dipaco.control.names import check_name


def name_of(given: str | None) -> str:
    """The name that was given with `--name`, else host and process number. Raises `BadName`."""
    return f"{socket.gethostname()}-{os.getpid()}" if given is None else check_name(given)
