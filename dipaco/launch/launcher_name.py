"""The name of a launcher: given by the user, taken over from a killed launcher, or made up.

A launcher that is killed leaves its workers running. The next launcher on the same machine takes
its name. The new workers then have the names of the old ones: each waits until the old one ends,
instead of working beside it. The ledger has the process of each name's launcher. A name is taken
only after that process has ended, and by one launcher.
"""

import re

from dipaco.control.ledger import Ledger
from dipaco.control.names import name_of
from dipaco.control.process_id import ProcessId
from dipaco.launch.errors import LauncherNameTaken


def launcher_name(given: str | None, ledger: Ledger, roles: str = "") -> str:
    """The given name. Without one, the name of a launcher that has ended while workers of it are
    alive on this machine. Else a new name. The ledger records it as this process's.

    Args:
      roles: pattern of the text between a launcher's name and the numbers of its workers.

    Raises:
      BadName: the given name cannot be used.
      LauncherNameTaken: a launcher of that name is alive on this machine. A launcher on another
        machine may be gone, so its name is free. If it is not, the launch ends with its workers'
        names taken.
    """
    here = ProcessId.here()
    if given is None:
        for member in ledger.members.here():
            made_up = re.fullmatch(rf"(.+-\d+-[0-9a-f]{{6}}){roles}-\d+", member.name)
            if made_up is None or not _is_alive_beside(here, member.process_id):
                continue
            before = ledger.meta.launcher_process(made_up[1])
            owner = None if before is None else here.neighbour(before)
            if owner is None or not owner.is_over():
                continue
            if ledger.meta.take_launcher_name(made_up[1], str(here), after=before):
                return made_up[1]
    name = name_of(given)
    while True:  # repeats if another launcher took the name meanwhile
        before = check_free(name, ledger)
        if ledger.meta.take_launcher_name(name, str(here), after=before):
            return name


def check_free(name: str, ledger: Ledger) -> str | None:
    """Checks that this process may have a name. Returns the process (`ProcessId`) that had it last.

    Raises:
      LauncherNameTaken: see `launcher_name`.
    """
    here, before = ProcessId.here(), ledger.meta.launcher_process(name)
    if before not in (None, str(here)) and _is_alive_beside(here, before):
        raise LauncherNameTaken(name=name, pid=ProcessId.parse(before).pid)
    return before


def _is_alive_beside(here: ProcessId, process_id: str) -> bool:
    neighbour = here.neighbour(process_id)
    return neighbour is not None and not neighbour.is_over()
