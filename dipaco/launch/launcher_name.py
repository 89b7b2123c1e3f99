"""The name of a launcher that was given none.

A launcher that is killed leaves its workers at work. One that is started after it on the same
machine takes its name, so that its workers wait for the names of those, and replace them where they
end, instead of working beside them.
"""

import os
import re
import socket

from dipaco.control.life import Life, has_process
from dipaco.control.members import Members
from dipaco.control.names import name_of


def launcher_name(given: str | None, members: Members, roles: str = "") -> str:
    """The name that was given, else that of a launcher of this machine that has ended while
    workers of it are alive, else a new one. Raises `BadName`.

    Args:
      given: by the user.
      members: of the run.
      roles: a pattern of what stands between a launcher's name and the numbers of its workers.
    """
    if given is not None:
        return name_of(given)
    host, here = re.escape(socket.gethostname()), Life.here()
    for member in members.here():
        made_up = re.fullmatch(rf"({host}-(\d+)-[0-9a-f]+){roles}-\d+", member.name)
        life = here.neighbour(member.life)
        if made_up is None or life is None or life.is_over():
            continue
        launcher = int(made_up[2])
        if launcher == os.getpid() or not has_process(launcher):
            return made_up[1]
    return name_of(None)
