"""Chooses the name of a launcher that was given none.

A launcher that is killed leaves its workers running. The next launcher on the same machine takes
its name, so that the new workers wait for the old ones' names, and replace them when they end,
instead of working beside them. The ledger records the process of each name's launcher. A name is
taken only if that process has ended, and by one launcher.
"""

import re

from dipaco.control.ledger import Ledger
from dipaco.control.names import name_of
from dipaco.control.process_id import Life
from dipaco.launch.errors import LauncherNameTaken


def launcher_name(given: str | None, ledger: Ledger, roles: str = "") -> str:
    """The given name, or the name of an ended launcher that left workers alive on this machine, or
    a new one. It is recorded as this process's.

    Args:
      given: the user's choice.
      ledger: the ledger of the run.
      roles: a pattern of the text between a launcher's name and the numbers of its workers.

    Raises:
      BadName.
      LauncherNameTaken: the launcher of that name is alive on this machine. A launcher on another
        machine may be gone, and does not count.
    """
    here = Life.here()
    if given is None:
        for member in ledger.members.here():
            made_up = re.fullmatch(rf"(.+-\d+-[0-9a-f]{{6}}){roles}-\d+", member.name)
            if made_up is None or not _is_alive_beside(here, member.life):
                continue
            before = ledger.meta.launcher_life(made_up[1])
            owner = None if before is None else here.neighbour(before)
            if owner is None or not owner.is_over():
                continue
            if ledger.meta.take_launcher_name(made_up[1], str(here), after=before):
                return made_up[1]
    name = name_of(given)
    while True:  # again if another launcher took the name meanwhile
        before = check_free(name, ledger)
        if ledger.meta.take_launcher_name(name, str(here), after=before):
            return name


def check_free(name: str, ledger: Ledger) -> str | None:
    """Checks that this process may have a name. Returns the process that had it last.

    Raises:
      LauncherNameTaken: the same as for `launcher_name`.
    """
    here, before = Life.here(), ledger.meta.launcher_life(name)
    if before not in (None, str(here)) and _is_alive_beside(here, before):
        raise LauncherNameTaken(name=name, pid=Life.parse(before).pid)
    return before


def _is_alive_beside(here: Life, life: str) -> bool:
    neighbour = here.neighbour(life)
    return neighbour is not None and not neighbour.is_over()
