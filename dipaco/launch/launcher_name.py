"""The name of a launcher that was given none.

A launcher that is killed leaves its workers at work. One that is started after it on the same
machine takes its name, so that its workers wait for the names of those, and replace them where they
end, instead of working beside them. The ledger has the life of each name's launcher: a name is
taken only where that is over, and by one launcher.
"""

import re

from dipaco.control.ledger import Ledger
from dipaco.control.life import Life
from dipaco.control.names import name_of
from dipaco.launch.errors import LauncherNameTaken


def launcher_name(given: str | None, ledger: Ledger, roles: str = "") -> str:
    """The name that was given, else that of a launcher that has ended while workers of it are alive
    on this machine, else a new one. It is recorded as this process's.

    Args:
      given: by the user.
      ledger: of the run.
      roles: a pattern of what stands between a launcher's name and the numbers of its workers.

    Raises:
      BadName.
      LauncherNameTaken: the launcher of that name is alive on this machine; of one on another that
        is not known, and it may be gone.
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
    while True:  # again where another took it meanwhile
        before = check_free(name, ledger)
        if ledger.meta.take_launcher_name(name, str(here), after=before):
            return name


def check_free(name: str, ledger: Ledger) -> str | None:
    """Looks whether this process may have a name. Returns the life that had it last.

    Raises:
      LauncherNameTaken: as `launcher_name`.
    """
    here, before = Life.here(), ledger.meta.launcher_life(name)
    if before not in (None, str(here)) and _is_alive_beside(here, before):
        raise LauncherNameTaken(name=name, pid=Life.parse(before).pid)
    return before


def _is_alive_beside(here: Life, life: str) -> bool:
    neighbour = here.neighbour(life)
    return neighbour is not None and not neighbour.is_over()
